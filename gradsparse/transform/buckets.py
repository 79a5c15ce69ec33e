"""Buckets: vectors of concatenated small leaves, on which a step computes.

A memory's code is unrolled over arrays, and XLA takes time to compile each
loop. Most leaves of a model are small. So consecutive small leaves are
concatenated to one vector at the beginning of a step, which is split at the
end: two small copies a leaf, instead of some two hundred instructions. A large
leaf is its own bucket. Outside a step the state is shaped like the parameters.
Messages do not depend on buckets: the index of an element is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any

from gradsparse.backend import joining
from gradsparse.sockets import Leaves
from gradsparse.sockets import Memory
from gradsparse.sockets import Shape
from gradsparse.sockets import Signal
from gradsparse.transform.layout import Group
from gradsparse.transform.layout import Layout
import jax
import jax.numpy as jnp

# Leaves of up to this many elements are concatenated: the first of these sizes
# at which the copies are cheap. A copy takes about 3 ns an element, and a leaf
# by itself about 30 us. So the concatenated leaves must be a small share of all
# elements, or tiny on average.
SMALL = (1 << 18, 1 << 16, 1 << 14, 1 << 13)
SHARE = 1 / 16
TINY = 1 << 13
# Fewer leaves might not be copied, see `joining.concat_few`.
FEWEST = 9
# The most elements, roughly, of a bucket of several leaves: larger arrays are
# allocated anew in each step, which takes longer than writing them.
MOST = 3 << 19


@dataclasses.dataclass(frozen=True)
class Buckets:
  """A static division of the leaves of a tree into buckets.

  Attributes:
    layout: of the leaves.
    members: numbers of the leaves of each bucket.
    treedef: structure of a tree of buckets: that of the leaves if each is a
      bucket.
    groups: the leaves of each message.
    dtypes: dtypes of the leaves' gradients.
    begins: offsets of the leaves of each bucket in the bucket; int32 scalars.
  """

  layout: Layout
  members: tuple[tuple[int, ...], ...]
  treedef: Any
  groups: tuple[Group, ...]
  dtypes: tuple[Any, ...]
  begins: tuple[Sequence[jax.Array], ...] = ()

  @property
  def joins(self) -> bool:
    """Whether any leaves are concatenated."""
    return len(self.members) < len(self.layout.shapes)

  @functools.cached_property
  def shapes(self) -> tuple[Shape, ...]:
    """Shapes of the buckets."""
    each = [self.layout.shapes_of(own) for own in self.members]
    return tuple(
      own[0] if len(own) == 1 else (sum(map(math.prod, own)),) for own in each
    )

  @functools.cached_property
  def _dense(self) -> tuple[bool, ...]:
    dense = set(self.layout.dense)
    return tuple(own[0] in dense for own in self.members)

  def is_dense(self) -> Any:
    """Tree of bools: whether the leaves of a bucket stay dense."""
    return jax.tree.unflatten(self.treedef, self._dense)

  def of_leaves(self, leaves: Sequence[int]) -> list[int]:
    """The buckets of these leaves, each once, in the order of leaves."""
    bucket = {i: n for n, own in enumerate(self.members) for i in own}
    return list(dict.fromkeys(bucket[i] for i in leaves))

  def tree(self, values: Mapping[int, Any] | Sequence[Any]) -> Any:
    """The tree of buckets with these values, by number of the bucket."""
    return jax.tree.unflatten(
      self.treedef, [values[n] for n in range(len(self.members))]
    )

  def lengths(self, group: Group) -> tuple[int, ...]:
    """The number of leaves in each bucket of a group's compressed leaves."""
    return tuple(len(self.members[n]) for n in self.of_leaves(group.compressed))

  # --- leaves to buckets -------------------------------------------------

  def join(self, tree: Any) -> Any:
    """Converts a tree like the parameters to a tree of buckets."""
    if not self.joins:
      return tree
    leaves = self.layout.treedef.flatten_up_to(tree)
    return self.tree([joined([leaves[i] for i in own]) for own in self.members])

  def join_state(self, state: Any) -> Any:
    """Converts a memory's state, whose fields are trees like the parameters."""
    return self._in_fields(state, self.layout.treedef, self.join)

  def join_total(self, total: Any, group: Group) -> list[jax.Array]:
    """The total of a group's compressed leaves, bucket by bucket.

    Args:
      total: see `Exchanged.total`.
      group: the leaves.

    Raises:
      TypeError: the exchange returned arrays of other shapes.
    """
    own = self.of_leaves(group.compressed)
    shapes = [self.shapes[n] for n in own]
    if not isinstance(total, list):
      return joining.split(total, shapes)
    leaves = iter(total)
    if len(total) > len(own):
      total = [
        joined(list(itertools.islice(leaves, len(self.members[n]))))
        for n in own
      ]
    found = [x.shape for x in total]
    if found != shapes:
      raise TypeError(
        'exchange.run must return a total of the shapes of the leaves, '
        f'{shapes}, got {found}'
      )
    return total

  # --- buckets to leaves -------------------------------------------------

  def cut(self, tree: Any) -> Any:
    """Inverse of `join`."""
    if not self.joins:
      return tree
    buckets = self.treedef.flatten_up_to(tree)
    return self.layout.tree(
      {
        i: x
        for n, own in enumerate(self.members)
        for i, x in zip(own, self.leaves(n, buckets[n]), strict=True)
      }
    )

  def cut_state(self, state: Any) -> Any:
    """Inverse of `join_state`."""
    return self._in_fields(state, self.treedef, self.cut)

  def signals(self, by_bucket: Sequence[Signal]) -> dict[int, Signal]:
    """Signals of the compressed leaves, by number.

    Args:
      by_bucket: signals of the buckets.
    """
    out: dict[int, Signal] = {}
    for n, own in enumerate(self.members):
      if self._dense[n]:
        continue
      parts = [
        [None] * len(own) if x is None else self.leaves(n, x)
        for x in by_bucket[n]
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

  def leaves(self, number: int, bucket: jax.Array) -> list[jax.Array]:
    """The leaves of one bucket."""
    own = self.members[number]
    if len(own) == 1:
      return [bucket]
    shapes = self.layout.shapes_of(own)
    return joining.split(bucket, shapes, self.begins[number])


def make_buckets(
  layout: Layout, memory: Memory, grads: Any, beside: jax.Array
) -> Buckets:
  """Divides the leaves into buckets.

  Small leaves of one dtype are concatenated if they are consecutive in a
  message, or among its group's dense leaves. No leaves are concatenated if the
  memory is not elementwise or keeps nothing, or where JAX itself shards arrays.

  Args:
    layout: the leaves, as this device has them.
    memory: the memory of the scheme.
    grads: tree of gradients.
    beside: an array that is no constant for XLA, equal on all workers; see
      `barriers.hidden_numbers`.
  """
  leaves, groups = jax.tree.leaves(grads), layout.groups()
  dtypes = tuple(x.dtype for x in leaves)
  alone = tuple((i,) for i in range(len(leaves)))
  as_they_are = Buckets(layout, alone, layout.treedef, groups, dtypes)
  if (
    not memory.facts.elementwise
    or not memory.floats
    or not joining.can_concat()
  ):
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
  return Buckets(
    layout,
    members,
    jax.tree.structure([0] * len(members)),
    groups,
    dtypes,
    tuple(
      joining.hidden_offsets(layout.shapes_of(own), beside) for own in members
    ),
  )


def _members(
  groups: Sequence[Group], leaves: Sequence[jax.Array], largest: int
) -> tuple[tuple[int, ...], ...]:
  """Numbers of each bucket's leaves, if leaves up to `largest` are small."""

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
  """Divides consecutive leaves into parts of about equal size, at most MOST.

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


def joined(arrays: Sequence[jax.Array]) -> jax.Array:
  """The bucket of these leaves."""
  if len(arrays) == 1:
    return arrays[0]
  return Leaves([jnp.asarray(x) for x in arrays]).joined()
