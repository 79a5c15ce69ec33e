"""What the kernels for TPUs and for GPUs share.

A kernel accumulates, finds the k largest elements of each chunk, and removes
them, in one pass over a leaf and the memory: chunk_kernels.py for TPUs, and
chunk_kernels_gpu.py for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The bits of what is beyond the end of a leaf, and of padding: it ranks below
# all numbers. (A NaN has these bits too, but a step with a NaN delivers
# nothing.)
FILLED = np.int32(-1)
_MAGNITUDE = np.int32(2**31 - 1)
# Ranks of elements that a search has found: to be removed, and to be left.
REMOVED, _LEFT = np.int32(-2), np.int32(-3)


class Pass(NamedTuple):
  """What `take` computes for each element, of blocks of any shape.

  Attributes:
    accumulate: (a mask that is the same everywhere, gradient, fields) ->
      (fields, the values to search in).
    remove: (fields, the values, a mask of what is removed) -> fields.
    changed: the numbers of the fields that `remove` changes.
    searched: the number of the field that is what is searched in, if one is.
  """

  accumulate: Callable[..., tuple[list[jax.Array], jax.Array]]
  remove: Callable[..., list[jax.Array]]
  changed: tuple[int, ...]
  searched: int | None = None

  @property
  def kept(self) -> list[int]:
    """The changed fields whose elements are kept beside the entries."""
    return [i for i in self.changed if i != self.searched]

  def lanes(self, k: int) -> int:
    """How many numbers are written of a chunk with k entries."""
    return (2 + len(self.kept)) * k

  def first_lane(self, field: int, k: int) -> int:
    """Where the elements of a changed field are among these numbers."""
    if field == self.searched:
      return 0
    return (2 + self.kept.index(field)) * k


def search(
  bits: jax.Array,
  kept: Sequence[tuple[int, jax.Array]],
  k: int,
  wanted: Any,
  place: jax.Array,
  lane: jax.Array,
  fold: Callable[..., jax.Array],
) -> tuple[jax.Array, jax.Array]:
  """Each of k rounds takes the largest element that is left of each chunk.

  Args:
    bits: int32 blocks of chunks, of float32 values; `FILLED` marks none.
    kept: for each field of `Pass.kept` its first lane, and its bits.
    k: how many rounds.
    wanted: how many entries are to be removed; of each chunk, or of all.
    place: of each element in its chunk.
    lane: the numbers of the lanes of a chunk's entries.
    fold: (jnp.max or jnp.min, a block) -> that of each chunk.

  Returns:
    (ranks like the bits, `REMOVED` where an element is to be removed; entries
    like the lanes: k values' bits, the largest first, their k places, and what
    is kept.)
  """
  rank = jnp.where(bits == FILLED, -1, bits & _MAGNITUDE)
  # One reduction finds the first of equal magnitudes, and its sign.
  signed = 2 * place + (bits < 0).astype(jnp.int32)

  def take_one(j, left):
    rank, entries = left
    top = fold(jnp.max, rank)
    first = fold(jnp.min, jnp.where(rank == top, signed, _MAGNITUDE))
    here = signed == first
    entries = jnp.where(lane == j, top | (first << 31), entries)
    entries = jnp.where(lane == k + j, first >> 1, entries)
    for lanes, x in kept:
      before = fold(jnp.max, jnp.where(here, x, -_MAGNITUDE - 1))
      entries = jnp.where(lane == lanes + j, before, entries)
    rank = jnp.where(here, jnp.where(j < wanted, REMOVED, _LEFT), rank)
    return rank, entries

  return jax.lax.fori_loop(
    0, k, take_one, (rank, jnp.zeros(lane.shape, jnp.int32))
  )


def call(
  kernel: Callable[..., None], *arrays: jax.Array, **options: Any
) -> Any:
  """Runs a kernel, of 32 bits also where JAX has 64.

  Args:
    kernel: a function of references to arrays.
    *arrays: its arguments.
    **options: those of `pallas_call`.
  """
  with jax.enable_x64(False):
    return pallas().pallas_call(kernel, **options)(*arrays)


def like(shape: tuple[int, ...], x: jax.Array, dtype: Any = None) -> Any:
  """A ShapeDtypeStruct of this shape, with x's dtype and manual axes."""
  own = jax.typeof(x).manual_axis_type
  return jax.ShapeDtypeStruct(shape, dtype or x.dtype, manual_axis_type=own)


def pallas() -> Any:
  """Pallas takes a second to import, so it is imported where it is needed."""
  from jax.experimental import pallas as pl

  return pl
