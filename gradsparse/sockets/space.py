"""The joined index space of leaves that travel together, and sums over it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import itertools
import math
from typing import Any

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend.reductions import LANES
import jax
import jax.numpy as jnp
import numpy as np

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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Joined(Sequence):
  """Leaves that lie in one vector: a sequence, cut where it is read.

  Attributes:
    vector: of all leaves, one after the other.
    shapes: of the leaves.
    divisor: by which a leaf is divided where it is read: not the vector, which
      would be written out once more.
  """

  vector: jax.Array
  shapes: tuple[Shape, ...] = dataclasses.field(metadata={'static': True})
  divisor: int = dataclasses.field(default=1, metadata={'static': True})

  def __truediv__(self, number: int) -> Joined:
    return dataclasses.replace(self, divisor=self.divisor * number)

  def __len__(self) -> int:
    return len(self.shapes)

  def __iter__(self) -> Iterator[jax.Array]:
    for x in joining.split(self.vector, self.shapes):
      yield x if self.divisor == 1 else x / self.divisor

  def __getitem__(self, place):
    return list(self)[place]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseSum(Sequence):
  """A sum of sparse messages: a sequence of leaves, made where it is read.

  A few rows of LANES elements that are not zero, and for each row of each leaf
  which of them it is. Whoever reads a leaf looks its rows up in the same loop:
  nothing as large as the model is written.

  Attributes:
    rows: float32[m, LANES]; the first is zero.
    number: int32, for each row of all leaves which of those it is. Rows begin
      with the first element of a leaf; its last one may be longer than it.
    shapes: of the leaves.
  """

  rows: jax.Array
  number: jax.Array
  shapes: tuple[Shape, ...] = dataclasses.field(metadata={'static': True})

  @staticmethod
  def pays(entries: int, space: Space) -> bool:
    """Whether the rows of so many entries are few among those of all leaves.

    Never off CPUs: there each row of a leaf that is read is a gather.
    """
    few = 0 < 2 * entries * LANES <= space.size
    return few and platforms.is_cpu()

  @staticmethod
  def of(values: jax.Array, indices: jax.Array, space: Space) -> SparseSum:
    """Adds messages up, in order: all who do it get the same bits.

    Args:
      values: float32[messages, k].
      indices: int32[messages, k], distinct in each; `space.size` is an empty
        slot.
      space: the leaves that the indices count through.
    """
    lengths = _lengths(space)
    begins = np.cumsum([0, *lengths[:-1]])
    leaf = space.leaf_of(indices)
    place = indices - jnp.asarray(space.offsets[:-1], jnp.int32)[leaf]
    row = jnp.asarray(begins, jnp.int32)[leaf] + place // LANES
    row = jnp.where(indices < space.size, row, sum(lengths))
    # A row that is not zero has the number of the last entry in it.
    entry = 1 + jnp.arange(indices.size, dtype=jnp.int32)
    empty = jnp.zeros_like(row, shape=sum(lengths))
    number = empty.at[row.reshape(-1)].max(entry, mode='drop')
    own = number.at[row].get(mode='fill', fill_value=indices.size + 1)
    at = own * LANES + place % LANES

    def add(rows, message):
      return rows.at[message[0]].add(message[1], mode='drop'), None

    rows = jnp.zeros_like(values, shape=(indices.size + 1) * LANES)
    rows, _ = jax.lax.scan(add, _typed(rows, values, at), (at, values))
    return SparseSum(rows.reshape(-1, LANES), number, space.shapes)

  def __truediv__(self, number: Any) -> SparseSum:
    return dataclasses.replace(self, rows=self.rows / number)

  def __len__(self) -> int:
    return len(self.shapes)

  def __iter__(self) -> Iterator[jax.Array]:
    space = Space.whole(self.shapes)
    rows, number = barriers.barrier_if_shared(
      (self.rows, self.number), len(self)
    )
    cut = joining.split(number, [(length,) for length in _lengths(space)])
    for own, size, shape in zip(cut, space.sizes, self.shapes, strict=True):
      found = rows.at[own].get(
        mode='promise_in_bounds', wrap_negative_indices=False
      )
      yield found.reshape(-1)[:size].reshape(shape)

  def __getitem__(self, place):
    return list(self)[place]


def _lengths(space: Space) -> list[int]:
  """How many rows each leaf has."""
  return [-(-size // LANES) for size in space.sizes]


def _typed(x: jax.Array, *like: jax.Array) -> jax.Array:
  """x, by type differing between devices as the others do."""
  for other in like:
    x = x + ((other.reshape(-1)[0] > 0) & False).astype(x.dtype)
  return x
