"""The joined index space of leaves that travel together, and sums over it."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import itertools
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend.reductions import LANES
import jax
import jax.numpy as jnp

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Space:
  """The joined index space of some leaves: shapes only, so it is static.

  Attributes:
    shapes: the leaves' shapes.
    limits: for each leaf, the most entries of a message that can fall in it.
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
    """Where each leaf begins in the joined space, and N at the end."""
    out = [0]
    for size in self.sizes:
      out.append(out[-1] + size)
    return tuple(out)

  @property
  def size(self) -> int:
    return sum(self.sizes)

  def merged(self, runs: Sequence[int]) -> Space:
    """The same where leaves that follow each other are one.

    Args:
      runs: how many leaves each of the new ones has; () leaves all alone.
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
    """A vector over the joined space as the leaves it consists of."""
    return joining.split(joined, self.shapes)

  def leaf_of(self, indices: jax.Array) -> jax.Array:
    """int32, the leaf that holds each index; empty slots get the last one."""
    if len(self.shapes) == 1:
      return jnp.zeros_like(indices)
    bounds = jnp.asarray(self.offsets[1:-1], jnp.int32)
    return reductions.searchsorted(bounds, indices, 'right')


def sums_few_rows(entries: int, space: Space) -> bool:
  """Whether the rows of so many entries are few among those of all leaves.

  Never off CPUs: there each row of a leaf that is read is a gather.
  """
  few = 0 < 2 * entries * LANES <= space.size
  return few and platforms.is_cpu()


def sum_in_rows(
  values: jax.Array, indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The leaves of a sum of sparse messages, of which most elements are zero.

  The messages are added up in a few rows of LANES elements. Whoever reads a
  leaf looks its rows up in the same loop: nothing as large as the model is
  written.

  Args:
    values: float32[messages, k]; messages are added in order, so that all who
      do it get the same bits.
    indices: int32[messages, k], distinct in each; `space.size` is an empty
      slot.
    space: the leaves that the indices count through.
  """
  # Rows begin with the first element of a leaf; its last one may be longer.
  lengths = [-(-size // LANES) for size in space.sizes]
  leaf = space.leaf_of(indices)
  place = indices - jnp.asarray(space.offsets[:-1], jnp.int32)[leaf]
  begins = joining.offsets(lengths)
  row = jnp.asarray(begins, jnp.int32)[leaf] + place // LANES
  row = jnp.where(indices < space.size, row, sum(lengths))
  # A row that is not zero has the number of the last entry in it; the row of
  # number 0 is zero.
  entry = 1 + jnp.arange(indices.size, dtype=jnp.int32)
  empty = jnp.zeros_like(row, shape=sum(lengths))
  number = empty.at[row.reshape(-1)].max(entry, mode='drop')
  own = number.at[row].get(mode='fill', fill_value=indices.size + 1)
  at = own * LANES + place % LANES

  def add(rows, message):
    return rows.at[message[0]].add(message[1], mode='drop'), None

  rows = jnp.zeros_like(values, shape=(indices.size + 1) * LANES)
  rows, _ = jax.lax.scan(add, _typed(rows, values, at), (at, values))
  rows, number = barriers.barrier_if_shared(
    (rows.reshape(-1, LANES), number), len(space.shapes)
  )
  found = [
    rows.at[own].get(mode='promise_in_bounds', wrap_negative_indices=False)
    for own in joining.split(number, [(length,) for length in lengths])
  ]
  return [
    x.reshape(-1)[:size].reshape(shape)
    for x, size, shape in zip(found, space.sizes, space.shapes, strict=True)
  ]


def _typed(x: jax.Array, *like: jax.Array) -> jax.Array:
  """x, by type differing between devices as the others do."""
  for other in like:
    x = x + ((other.reshape(-1)[0] > 0) & False).astype(x.dtype)
  return x
