"""The first difference between the structures of two trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def first_difference(
  tree: Any,
  like: Any,
  is_leaf: Callable[[Any], bool] = lambda x: False,
  path: tuple[Any, ...] = (),
) -> tuple[tuple[Any, ...], Any, Any] | None:
  """The first node at which two trees do not have the same children.

  Args:
    tree: any tree.
    like: the other tree.
    is_leaf: whether a node of `tree` may stand for any part of the other.
    path: the path to both.

  Returns:
    (path, node of the tree, node of the other); None if there is none.
  """
  if is_leaf(tree):
    return None
  sides: Any = (
    jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y, x=x: y is not x)
    for x in (tree, like)
  )
  (own, kind), (others, other_kind) = sides
  if kind != other_kind:
    return path, tree, like
  if jax.tree_util.treedef_is_leaf(kind):
    return None
  found = (
    first_difference(x, y, is_leaf, (*path, *key))
    for (key, x), (_, y) in zip(own, others, strict=True)
  )
  return next(filter(None, found), None)


def tree_difference(tree: Any, like: Any) -> str | None:
  """Where the structure of a tree differs from that of another, in words.

  Returns:
    The first difference; None if there is none.
  """
  found = first_difference(tree, like)
  if found is None:
    return None
  path, *nodes = found
  place = jax.tree_util.keystr(path) or 'the whole'
  kinds = [type(node).__name__ for node in nodes]
  if kinds[0] != kinds[1]:
    return f'{place} is {kinds[0]} and not {kinds[1]}'
  children = [
    jax.tree_util.tree_leaves_with_path(
      node, is_leaf=lambda x, node=node: x is not node
    )
    for node in nodes
  ]
  has, wanted = (
    ', '.join(jax.tree_util.keystr(key) for key, _ in x) or 'nothing'
    for x in children
  )
  if has == wanted:
    return f'{place} differs in static fields'
  return f'{place} has {has} and not {wanted}'
