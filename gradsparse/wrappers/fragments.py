"""Fragments of the parameters, which are exchanged one after the other."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import re
from typing import Any

from gradsparse.state.scheme import CompressedMeanState
from gradsparse.transform.layout import Layout
import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class Fragments:
  """A static division of the leaves of a tree.

  A fragment is a tree like the whole one, with None for the leaves of others.

  Attributes:
    treedef: structure of the whole tree.
    members: numbers of the leaves of each fragment, ascending.
  """

  treedef: Any
  members: tuple[tuple[int, ...], ...]

  @classmethod
  def of(cls, tree: Any, fragments: int | tuple[str, ...]) -> Fragments:
    """Divides a tree into fragments.

    Args:
      tree: the parameters.
      fragments: how many runs of leaves, of about equal numbers of elements; or
        for each fragment a regular expression for paths of leaves.

    Raises:
      ValueError: a fragment would have no leaf, or a leaf no fragment.
    """
    if isinstance(fragments, tuple):
      return cls._by_paths(tree, fragments)
    number = fragments
    leaves, treedef = jax.tree.flatten(tree)
    if len(leaves) < number:
      raise ValueError(
        f'fragments must be at most the number of leaves, {len(leaves)}, got '
        f'{number}'
      )
    ends = np.cumsum([max(math.prod(jnp.shape(x)), 1) for x in leaves])
    middles = ends - np.diff(ends, prepend=0) / 2
    wanted = np.minimum(middles * number // ends[-1], number - 1).astype(int)
    # Each fragment has a leaf, whatever their sizes.
    for i in range(len(leaves)):
      least = wanted[i - 1] if i else 0
      last = number - (len(leaves) - i)
      wanted[i] = min(max(wanted[i], least, last), least + 1 if i else 0)
    members = [np.flatnonzero(wanted == n).tolist() for n in range(number)]
    return cls(treedef, tuple(map(tuple, members)))

  @classmethod
  def _by_paths(cls, tree: Any, patterns: tuple[str, ...]) -> Fragments:
    pairs, treedef = jax.tree_util.tree_flatten_with_path(tree)
    members: list[list[int]] = [[] for _ in patterns]
    for i, (path, _) in enumerate(pairs):
      name = jax.tree_util.keystr(path)
      found = [n for n, each in enumerate(patterns) if re.search(each, name)]
      if not found:
        raise ValueError(
          f'fragments must match all leaves, got {patterns!r}, of which none '
          f'matches {name}'
        )
      members[found[0]].append(i)
    for pattern, own in zip(patterns, members, strict=True):
      if not own:
        raise ValueError(
          f'fragments must each have a leaf, but none is left for {pattern!r}'
        )
    return cls(treedef, tuple(map(tuple, members)))

  def pick(self, tree: Any, number: int) -> Any:
    """A fragment of a tree, or of a tree with a node for each leaf."""
    if len(self.members) == 1:
      return tree
    own = set(self.members[number])
    nodes = self.treedef.flatten_up_to(tree)
    return self.treedef.unflatten(
      [x if i in own else None for i, x in enumerate(nodes)]
    )

  def put(self, tree: Any, part: Any, number: int) -> Any:
    """The whole tree, with another fragment."""
    if len(self.members) == 1:
      return part
    own = set(self.members[number])
    pairs = zip(
      self.treedef.flatten_up_to(tree),
      self.treedef.flatten_up_to(part),
      strict=True,
    )
    return self.treedef.unflatten(
      [new if i in own else old for i, (old, new) in enumerate(pairs)]
    )

  def pick_state(
    self, state: CompressedMeanState, number: int, layout: Layout
  ) -> CompressedMeanState:
    """The part of a scheme's state that belongs to a fragment.

    Args:
      state: the scheme's state for the whole tree.
      number: the fragment's number.
      layout: the layout of the whole tree.
    """
    if len(self.members) == 1:
      return state
    own = self.members[number]
    fields = [
      self.pick(x, number) if self._is_tree(x) else x for x in state.memory
    ]
    return state._replace(
      memory=type(state.memory)(*fields),
      compressor=self._compressed(state.compressor, own, layout),
      exchange=self.pick(state.exchange, number) if state.exchange else (),
      dense_leaves={
        str(n): () for n, i in enumerate(own) if str(i) in state.dense_leaves
      },
    )

  def put_state(
    self,
    state: CompressedMeanState,
    part: CompressedMeanState,
    number: int,
    layout: Layout,
  ) -> CompressedMeanState:
    """Inverse of `pick_state`: the whole state, with a fragment's new part."""
    if len(self.members) == 1:
      return part
    own = self.members[number]
    memory = type(state.memory)(
      *(
        self.put(old, new, number) if self._is_tree(old) else new
        for old, new in zip(state.memory, part.memory, strict=True)
      )
    )
    compressor = state.compressor
    if compressor:
      mine = [n for n, i in enumerate(layout.compressed) if i in own]
      leaves = list(compressor)
      for n, new in zip(mine, part.compressor, strict=True):
        leaves[n] = new
      compressor = tuple(leaves)
    return part._replace(
      memory=memory,
      compressor=compressor,
      exchange=(
        self.put(state.exchange, part.exchange, number)
        if state.exchange
        else ()
      ),
      dense_leaves=state.dense_leaves,
    )

  def _is_tree(self, node: Any) -> bool:
    """Whether a node of a memory has a part for each leaf."""
    try:
      self.treedef.flatten_up_to(node)
    except (TypeError, ValueError):
      return False
    return True

  def _compressed(
    self, state: Sequence[Any], own: Sequence[int], layout: Layout
  ) -> tuple[Any, ...]:
    """The compressor's state of the leaves of a fragment."""
    if not state:
      return ()
    return tuple(
      x for i, x in zip(layout.compressed, state, strict=True) if i in own
    )
