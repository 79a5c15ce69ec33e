"""Which leaves of a tree are compressed, decided from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
import re
from typing import Any

from gradsparse.sockets import LeafRule
from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp

DensePaths = str | Callable[[str], bool] | None


@dataclasses.dataclass(frozen=True)
class Layout:
  """A static division of the leaves of a tree.

  Attributes:
    treedef: structure of the tree.
    names: path of each leaf, such as "['dense']['kernel']".
    shapes: shape of each leaf.
    compressed: numbers of the leaves in the message.
    dense: numbers of the leaves that are all-reduced as they are.
  """

  treedef: Any
  names: tuple[str, ...]
  shapes: tuple[Shape, ...]
  compressed: tuple[int, ...]
  dense: tuple[int, ...]

  @property
  def compressed_shapes(self) -> tuple[Shape, ...]:
    return tuple(self.shapes[i] for i in self.compressed)

  def whole(self) -> Any:
    """Tree of bools: the leaf stays dense."""
    kept = set(self.compressed)
    return jax.tree.unflatten(
      self.treedef, [i not in kept for i in range(len(self.shapes))]
    )

  def pick(self, leaves: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    return [leaves[i] for i in numbers]

  def join(self, compressed: Sequence[Any], dense: Sequence[Any]) -> Any:
    """The tree with these nodes in the places of its leaves."""
    nodes: list[Any] = [None] * len(self.shapes)
    for i, x in zip(self.compressed, compressed, strict=True):
      nodes[i] = x
    for i, x in zip(self.dense, dense, strict=True):
      nodes[i] = x
    return jax.tree.unflatten(self.treedef, nodes)

  def spread(self, compressed: Sequence[jax.Array]) -> Any:
    """The tree with zeros for dense leaves; () if there are no arrays."""
    if not compressed:
      return ()
    zeros = [jnp.zeros(self.shapes[i], jnp.float32) for i in self.dense]
    return self.join(compressed, zeros)

  def collect(self, tree: Any) -> Sequence[jax.Array]:
    """Inverse of `spread`."""
    leaves = jax.tree.leaves(tree)
    return self.pick(leaves, self.compressed) if leaves else ()


def make_layout(
  tree: Any,
  rule: LeafRule,
  min_size: int | None,
  dense_paths: DensePaths,
) -> Layout:
  """Divides the leaves by the scheme's own rule, or the user's.

  Args:
    tree: parameters or gradients.
    rule: of the scheme: which leaves it accepts, and which it compresses.
    min_size: leaves with fewer elements stay dense; None is the scheme's
      rule; 0 compresses every leaf that the compressor accepts.
    dense_paths: leaves whose path matches (re.search) or for which the
      function returns True stay dense, whatever their size.
  """
  pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
  names = tuple(jax.tree_util.keystr(path) for path, _ in pairs)
  shapes = tuple(tuple(jnp.shape(leaf)) for _, leaf in pairs)

  def is_dense(name, shape):
    if math.prod(shape) == 0 or not rule.accepts(shape):
      return True
    if isinstance(dense_paths, str) and re.search(dense_paths, name):
      return True
    if callable(dense_paths) and dense_paths(name):
      return True
    if min_size is not None:
      return math.prod(shape) < min_size
    if rule.dense_1d and len(shape) < 2:
      return True
    return math.prod(shape) < rule.min_size

  stays = [is_dense(n, s) for n, s in zip(names, shapes, strict=True)]
  return Layout(
    treedef,
    names,
    shapes,
    compressed=tuple(i for i, d in enumerate(stays) if not d),
    dense=tuple(i for i, d in enumerate(stays) if d),
  )


def check_something_to_do(layout: Layout, rule: LeafRule, name: str) -> None:
  """Law 7: asked to compress and no leaf qualifies is an error.

  Args:
    layout: the division.
    rule: the scheme's rule, by which it was made.
    name: of the scheme, for the message.

  Raises:
    ValueError: there are leaves, and none is compressed.
  """
  if layout.compressed or not any(map(math.prod, layout.shapes)):
    return
  why = []
  if rule.dense_1d:
    why.append('leaves of fewer than two dimensions stay dense')
  if rule.min_size:
    why.append(f'leaves under {rule.min_size} elements stay dense')
  raise ValueError(
    f'{name} has nothing to compress: none of the {len(layout.shapes)} leaves '
    'qualifies'
    + (f' ({"; ".join(why)})' if why else '')
    + '. min_size=0 compresses every leaf that the scheme accepts; use '
    'gs.dense for a model this small.'
  )
