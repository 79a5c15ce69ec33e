"""The joint index space of a message's leaves, and sums over it."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import searching
from gradsparse.backend import storage
from gradsparse.backend.reductions import ROW
import jax
import jax.numpy as jnp

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Space:
  """The index space of concatenated leaves: shapes only, so it is static.

  >>> import gradsparse as gs
  >>> space = gs.extend.Space.at_most(3, ((2, 4), (2,)))
  >>> space.size, space.offsets, space.limits
  (10, (0, 8, 10), (3, 2))

  Attributes:
    shapes: the leaves' shapes.
    limits: for each leaf, the most entries of a message in it.
  """

  shapes: tuple[Shape, ...]
  limits: tuple[int, ...]

  @staticmethod
  def whole(shapes: Sequence[Shape]) -> Space:
    """The space of messages that can hold every element."""
    return Space(tuple(shapes), tuple(map(math.prod, shapes)))

  @staticmethod
  def at_most(slots: int, shapes: Sequence[Shape]) -> Space:
    """The space of messages whose slots can all fall in one leaf."""
    limits = tuple(min(slots, math.prod(shape)) for shape in shapes)
    return Space(tuple(shapes), limits)

  @property
  def sizes(self) -> tuple[int, ...]:
    return tuple(math.prod(shape) for shape in self.shapes)

  @property
  def offsets(self) -> tuple[int, ...]:
    """The offset of each leaf, and N at the end."""
    return (*itertools.accumulate(self.sizes, initial=0),)

  @property
  def size(self) -> int:
    return sum(self.sizes)

  def merged(self, runs: Sequence[int]) -> Space:
    """The space in which runs of consecutive leaves are one leaf.

    Args:
      runs: the number of leaves of each run; () keeps all leaves.
    """
    if len(runs) in (0, len(self.shapes)):
      return self
    leaves, limits = iter(self.shapes), iter(self.limits)
    shapes = []
    for n in runs:
      own = list(itertools.islice(leaves, n))
      shapes.append(own[0] if n == 1 else (sum(map(math.prod, own)),))
    return Space(
      tuple(shapes), tuple(sum(itertools.islice(limits, n)) for n in runs)
    )

  def split(self, joined: jax.Array) -> list[jax.Array]:
    """Splits a vector over the space into leaves."""
    return joining.split(joined, self.shapes)

  def leaf_of(self, indices: jax.Array, ascend: bool = False) -> jax.Array:
    """int32, the leaf that holds each index; empty slots get the last one.

    Args:
      indices: int32, of any shape.
      ascend: whether they are a vector that ascends: CPUs and TPUs take less
        time.
    """
    if len(self.shapes) == 1:
      return jnp.zeros_like(indices)
    bounds = jnp.asarray(self.offsets[1:-1], jnp.int32)
    return searching.searchsorted(bounds, indices, 'right', ascend)


def sums_by_leaf(entries: int, space: Space) -> bool:
  """Whether `sum_by_leaf` of this many entries is faster than a vector's sum.

  On CPUs they must touch few rows. On TPUs a leaf must be stored in tiles.
  """
  if platforms.reads_singly():
    return 0 < 2 * entries * ROW <= space.size
  stored = sum(_stored_sizes(space)) < 2**31
  return stored and any(map(storage.is_tiled, space.shapes))


def sum_by_leaf(
  values: jax.Array, indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The leaves of a sum of sparse messages.

  Args:
    values: float32[messages, k]; messages are added in order, so that all
      workers get the same bits.
    indices: int32[messages, k], distinct in each; `space.size` is an empty
      slot.
    space: the leaves that the indices point into.
  """
  form = _sum_in_rows if platforms.reads_singly() else _sum_as_stored
  return form(values, indices, space)


def _sum_in_rows(
  values: jax.Array, indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The sum of messages that leave most elements zero.

  The messages are summed in a few rows of ROW elements. Readers of a leaf
  gather its rows in their own loop: no array as large as the model is written.
  """
  # The first row of a leaf begins with its first element; the last row may
  # exceed the leaf.
  lengths = [-(-size // ROW) for size in space.sizes]
  leaf = space.leaf_of(indices)
  place = indices - jnp.asarray(space.offsets[:-1], jnp.int32)[leaf]
  begins = joining.offsets(lengths)
  row = jnp.asarray(begins, jnp.int32)[leaf] + place // ROW
  row = jnp.where(indices < space.size, row, sum(lengths))
  # The number of a nonzero row is that of its last entry; row 0 is zero.
  entry = 1 + jnp.arange(indices.size, dtype=jnp.int32)
  empty = jnp.zeros_like(row, shape=sum(lengths))
  number = empty.at[row.reshape(-1)].max(entry, mode='drop')
  own = number.at[row].get(mode='fill', fill_value=indices.size + 1)
  at = own * ROW + place % ROW

  def add(rows, message):
    return rows.at[message[0]].add(message[1], mode='drop'), None

  rows = jnp.zeros_like(values, shape=(indices.size + 1) * ROW)
  rows, _ = jax.lax.scan(add, _typed(rows, values, at), (at, values))
  rows, number = barriers.barrier_if_shared(
    (rows.reshape(-1, ROW), number), len(space.shapes)
  )
  found = [
    rows.at[own].get(mode='promise_in_bounds', wrap_negative_indices=False)
    for own in joining.split(number, [(length,) for length in lengths])
  ]
  return [
    x.reshape(-1)[:size].reshape(shape)
    for x, size, shape in zip(found, space.sizes, space.shapes, strict=True)
  ]


def _sum_as_stored(
  values: jax.Array, indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The sum in a vector whose leaves are as TPUs store them."""
  sizes = _stored_sizes(space)
  begins = joining.offsets(sizes).tolist()
  blocks = [storage.blocks(shape) for shape in space.shapes]
  offset, begin, side_by_side = searching.looked_up(
    indices, space.offsets[:-1], [space.offsets[:-1], begins, blocks]
  )
  place = begin + storage.place(indices - offset, side_by_side)
  place = jnp.where(indices < space.size, place, sum(sizes))

  def add(total, message):
    return total.at[message[0]].add(message[1], mode='drop'), None

  total = jnp.zeros_like(values, shape=sum(sizes))
  total, _ = jax.lax.scan(add, _typed(total, values, place), (place, values))
  return [
    storage.leaf(total[begin : begin + size], shape)
    for begin, size, shape in zip(
      begins, space.sizes, space.shapes, strict=True
    )
  ]


def _stored_sizes(space: Space) -> list[int]:
  """The elements of each leaf, padded to whole tiles."""
  return [-(-size // storage.TILE) * storage.TILE for size in space.sizes]


def _typed(x: jax.Array, *like: jax.Array) -> jax.Array:
  """x, typed varying between devices as the others are."""
  for other in like:
    x = x + ((other.reshape(-1)[0] > 0) & False).astype(x.dtype)
  return x
