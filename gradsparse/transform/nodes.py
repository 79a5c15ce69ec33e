"""Small leaves side by side: how the memory sees a model of many leaves.

What a memory does it writes out for each leaf, and XLA takes time to compile
each of these loops. Most leaves of a model are small. So those that follow each
other are joined to one vector before anything is done to them, and cut out of
it at the end: two small copies a leaf, instead of some two hundred
instructions. Large leaves are left where they are.

A node is a leaf by itself or several leaves that are joined. Messages know
nothing of that: an element has the same index either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.sockets import Joined
from gradsparse.sockets import Leaves
from gradsparse.sockets import Memory
from gradsparse.sockets import Shape
from gradsparse.sockets import Signal
from gradsparse.sockets import SparseSum
from gradsparse.transform.layout import Group
from gradsparse.transform.layout import Layout
import jax
import jax.numpy as jnp

# Leaves of up to so many elements are joined: of the first of these sizes with
# which the copies cost next to nothing. On CPUs they take about 3 ns an
# element, and a leaf by itself takes about 30 us. So what is joined may be a
# small share of all elements, or leaves that are tiny on average.
SMALL = (1 << 18, 1 << 16, 1 << 14, 1 << 13)
SHARE = 1 / 16
TINY = 1 << 13
# Fewer leaves than so many XLA on CPUs would not copy, see
# `joining.concat_few`.
FEWEST = 9
# Elements of a node of several leaves, or little more: memory for many more is
# fresh in each step, and takes longer to get than to write.
MOST = 3 << 19


@dataclasses.dataclass(frozen=True)
class Nodes:
  """A static division of the leaves of a tree into nodes.

  Attributes:
    layout: of the leaves.
    members: numbers of the leaves of each node.
    treedef: of a tree of nodes: that of the leaves if none are joined.
    begins: of each node, where its leaves begin in it; int32 scalars.
  """

  layout: Layout
  members: tuple[tuple[int, ...], ...]
  treedef: Any
  begins: tuple[Sequence[jax.Array], ...] = ()

  @property
  def joins(self) -> bool:
    """Whether any leaves are joined."""
    return len(self.members) < len(self.layout.shapes)

  @functools.cached_property
  def shapes(self) -> tuple[Shape, ...]:
    """Of the nodes."""
    each = [self.layout.shapes_of(own) for own in self.members]
    return tuple(
      own[0] if len(own) == 1 else (sum(map(math.prod, own)),) for own in each
    )

  @functools.cached_property
  def _dense(self) -> tuple[bool, ...]:
    dense = set(self.layout.dense)
    return tuple(own[0] in dense for own in self.members)

  def whole(self) -> Any:
    """Tree of bools: what is in the node stays dense."""
    return jax.tree.unflatten(self.treedef, self._dense)

  def numbers(self, leaves: Sequence[int]) -> list[int]:
    """The nodes that these leaves are in, each once, in the order of leaves."""
    node = {i: n for n, own in enumerate(self.members) for i in own}
    return list(dict.fromkeys(node[i] for i in leaves))

  def tree(self, nodes: Mapping[int, Any] | Sequence[Any]) -> Any:
    """The tree with these in the places of nodes, by their numbers."""
    return jax.tree.unflatten(
      self.treedef, [nodes[n] for n in range(len(self.members))]
    )

  def runs(self, group: Group) -> tuple[int, ...]:
    """How many of a group's compressed leaves each of their nodes has."""
    return tuple(len(self.members[n]) for n in self.numbers(group.compressed))

  # --- leaves to nodes ---------------------------------------------------

  def join(self, tree: Any) -> Any:
    """A tree like the parameters as a tree of nodes."""
    if not self.joins:
      return tree
    leaves = self.layout.treedef.flatten_up_to(tree)
    return self.tree(
      [_joined([leaves[i] for i in own]) for own in self.members]
    )

  def join_state(self, state: Any) -> Any:
    """The state of a memory, whose fields are trees like the parameters."""
    return self._in_fields(state, self.layout.treedef, self.join)

  def join_means(self, means: Sequence[jax.Array], group: Group) -> list[Any]:
    """What came back of a group's compressed leaves, node by node."""
    runs = self.runs(group)
    if isinstance(means, SparseSum | Joined):
      if len(means.shapes) == len(runs):
        return list(means)
      if isinstance(means, Joined):
        own = self.numbers(group.compressed)
        shapes = tuple(self.shapes[n] for n in own)
        return list(dataclasses.replace(means, shapes=shapes))
    leaves = iter(means)
    return [_joined(list(itertools.islice(leaves, n))) for n in runs]

  # --- nodes to leaves ---------------------------------------------------

  def cut(self, tree: Any) -> Any:
    """Inverse of `join`."""
    if not self.joins:
      return tree
    nodes = self.treedef.flatten_up_to(tree)
    return self.layout.tree(
      {
        i: x
        for n, own in enumerate(self.members)
        for i, x in zip(own, self._parts(n, nodes[n]), strict=True)
      }
    )

  def cut_state(self, state: Any) -> Any:
    """Inverse of `join_state`."""
    return self._in_fields(state, self.treedef, self.cut)

  def signals(self, nodes: Sequence[Signal]) -> dict[int, Signal]:
    """Those of the compressed leaves, by number.

    Args:
      nodes: of each node.
    """
    out: dict[int, Signal] = {}
    for n, own in enumerate(self.members):
      if self._dense[n]:
        continue
      parts = [
        [None] * len(own) if x is None else self._parts(n, x) for x in nodes[n]
      ]
      for i, *fields in zip(own, *parts, strict=True):
        out[i] = Signal(*fields)
    return out

  def _in_fields(self, state: Any, treedef: Any, fn: Any) -> Any:
    if not self.joins:
      return state
    return state._replace(
      **{
        name: fn(tree)
        for name, tree in state._asdict().items()
        if jax.tree.structure(tree) == treedef
      }
    )

  def _parts(self, number: int, node: jax.Array) -> list[jax.Array]:
    own = self.members[number]
    if len(own) == 1:
      return [node]
    shapes = self.layout.shapes_of(own)
    return joining.split(node, shapes, self.begins[number])


def make_nodes(
  layout: Layout,
  groups: Sequence[Group],
  memory: Memory,
  grads: Any,
  beside: jax.Array,
) -> Nodes:
  """Divides the leaves.

  Small leaves are joined that follow each other in a message, or among those
  that stay dense beside it, and are of one type. None are where the memory
  looks at leaves as a whole or keeps nothing, or where JAX divides arrays by
  itself.

  Args:
    layout: of the leaves, as this device has them.
    groups: what travels together.
    memory: of the scheme.
    grads: tree of gradients.
    beside: of which XLA knows no value, equal on all workers; see
      `barriers.hidden_numbers`.
  """
  leaves = jax.tree.leaves(grads)
  alone = tuple((i,) for i in range(len(leaves)))
  as_they_are = Nodes(layout, alone, layout.treedef)
  if not memory.elementwise or not memory.floats or not joining.can_concat():
    return as_they_are
  total = sum(x.size for x in leaves)
  for largest in SMALL:
    members = _members(groups, leaves, largest)
    joined = [leaves[i].size for own in members if len(own) > 1 for i in own]
    if sum(joined) <= max(SHARE * total, TINY * len(joined)):
      break
  else:
    members = alone
  if len(members) == len(leaves):
    return as_they_are
  return Nodes(
    layout,
    members,
    jax.tree.structure([0] * len(members)),
    tuple(
      barriers.hidden_offsets(layout.shapes_of(own), beside) for own in members
    ),
  )


def _members(
  groups: Sequence[Group], leaves: Sequence[jax.Array], largest: int
) -> tuple[tuple[int, ...], ...]:
  """Numbers of the leaves of each node, if so large leaves are joined."""

  def kind(i):
    return leaves[i].dtype, -1 if leaves[i].size <= largest else i

  sizes = [x.size for x in leaves]
  return tuple(
    own
    for group in groups
    for numbers in (group.compressed, group.dense)
    for _, run in itertools.groupby(numbers, kind)
    for part in _parted(list(run), sizes)
    for own in ([part] if len(part) >= FEWEST else [(i,) for i in part])
  )


def _parted(run: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
  """Leaves that follow each other, in parts of about one size, none too large.

  Args:
    run: numbers of leaves.
    sizes: of all leaves.
  """
  total = sum(sizes[i] for i in run)
  most = total / max(1, -(-total // MOST))
  parts: list[list[int]] = [[]]
  for before, i in zip(
    itertools.accumulate(sizes[i] for i in run), run, strict=True
  ):
    if parts[-1] and before > most * len(parts):
      parts.append([])
    parts[-1].append(i)
  return [tuple(part) for part in parts]


def _joined(arrays: Sequence[jax.Array]) -> jax.Array:
  if len(arrays) == 1:
    return arrays[0]
  return Leaves([jnp.asarray(x) for x in arrays]).joined()
