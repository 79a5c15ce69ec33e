"""Sums of sparse messages, of which no dense vector is made.

A sum is a few rows of `reductions.LANES` elements that are not zero, and for
each row of each leaf which of them it is. Whoever reads a leaf looks its rows
up in the same loop: nothing as large as the model is written, which on CPUs
takes longer than all that a message does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend.reductions import LANES
from gradsparse.sockets.space import Shape
from gradsparse.sockets.space import Space
import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseSum(Sequence):
  """Leaves, most of whose rows are zero: a sequence, made where it is read.

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
    """Whether the rows of so many entries are few among those of all leaves."""
    return 0 < 2 * entries * LANES <= space.size

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
