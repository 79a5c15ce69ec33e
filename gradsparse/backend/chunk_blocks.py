"""Blocks of a leaf, in which kernels for TPUs read it chunk by chunk.

A chunk is a run of elements in row-major order, but a TPU stores a matrix in
tiles of 8 x 128. A block is whole rows and whole chunks. In its fast memory a
kernel moves the parts of rows, 128 elements each, into the order of chunks. So
XLA copies no leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse.backend import chunk_search
from gradsparse.backend.storage import LANES
from gradsparse.backend.storage import SUBLANES
import jax
import jax.numpy as jnp

# Elements that a kernel reads and writes at a time: about, and at most. Fast
# memory must hold twice as many, and what is computed of them.
_BLOCK, _MOST = 5 << 17, 15 << 16
# Arrays of a kernel, if it has no more: a gradient, and two fields of a memory.
_ARRAYS = 5


class View(NamedTuple):
  """A leaf as a matrix, and its blocks.

  Attributes:
    rows: of the matrix.
    columns: of the matrix.
    high: rows of a block.
    chunk_size: elements of a chunk.
  """

  rows: int
  columns: int
  high: int
  chunk_size: int

  @property
  def grid(self) -> int:
    """The number of blocks."""
    return -(-self.rows // self.high)

  @property
  def chunks(self) -> int:
    """Chunks of a block."""
    return self.high * self.columns // self.chunk_size

  @property
  def all_chunks(self) -> int:
    """Chunks of the leaf."""
    return -(-self.rows * self.columns // self.chunk_size)

  def whole(self) -> Any:
    """The specification of an array like the leaf."""
    pl = chunk_search.pallas()
    return pl.BlockSpec((self.high, self.columns), lambda i, *_: (i, 0))

  def lanes(self) -> Any:
    """That of an array with a row of lanes for each chunk of each block."""
    pl = chunk_search.pallas()
    return pl.BlockSpec(
      (1, self.chunks, LANES), lambda i, *own: (i, 0, *(own or (0,)))
    )

  def room(self) -> Any:
    """Fast memory for a block in the order of chunks."""
    from jax.experimental.pallas import tpu as pltpu

    shape = (self.high * self.columns // LANES, LANES)
    return pltpu.VMEM(shape, jnp.int32)

  def in_chunks(self, block: jax.Array, room: Any) -> jax.Array:
    """int32[chunks, ., 128], the bits of a block of float32."""
    side_by_side = self.columns // LANES
    bits = jax.lax.bitcast_convert_type(block, jnp.int32)
    if side_by_side > 1:
      for b in range(side_by_side):
        part = bits[:, b * LANES : (b + 1) * LANES]
        room[chunk_search.pallas().Slice(b, self.high, side_by_side), :] = part
      bits = room[...]
    return bits.reshape(self.chunks, -1, LANES)

  def in_rows(self, bits: jax.Array, room: Any) -> jax.Array:
    """int32, the bits of a block, from those in the order of chunks."""
    side_by_side = self.columns // LANES
    bits = bits.reshape(-1, LANES)
    if side_by_side > 1:
      room[...] = bits
      parts = [
        room[chunk_search.pallas().Slice(b, self.high, side_by_side), :]
        for b in range(side_by_side)
      ]
      bits = jnp.concatenate(parts, axis=1)
    return bits


def fits(shape: Sequence[int], chunk_size: int, arrays: int = _ARRAYS) -> bool:
  """Whether kernels can read leaves of this shape.

  Args:
    shape: of a leaf.
    chunk_size: elements of a chunk.
    arrays: how many arrays of this shape a kernel reads and writes.
  """
  if len(shape) < 2 or shape[-1] % LANES or chunk_size % LANES:
    return False
  # The rows of several matrices are those of one if each fills its tiles.
  if len(shape) > 2 and shape[-2] % SUBLANES:
    return False
  least = math.lcm(chunk_size, SUBLANES * shape[-1])
  most = _MOST // max(arrays, _ARRAYS)
  return least <= min(most, math.prod(shape))


def view_of(
  shape: Sequence[int], chunk_size: int, arrays: int = _ARRAYS
) -> View:
  """The view of a leaf whose shape `fits`."""
  columns = shape[-1]
  rows = math.prod(shape[:-1])
  least = math.lcm(chunk_size, SUBLANES * columns) // columns
  block = min(_BLOCK // max(arrays, _ARRAYS), rows * columns)
  most = max(1, block // (least * columns))

  def merit(n):
    """Chunks that fill registers, blocks that divide the leaf, large ones."""
    chunks = n * least * columns // chunk_size
    return chunks % SUBLANES == 0, rows % (n * least) == 0, n

  best = max(range(-(-most // 4), most + 1), key=merit)
  return View(rows, columns, best * least, chunk_size)


def places(shape: tuple[int, ...]) -> jax.Array:
  """The place of each element in its chunk, of [chunks, ., 128]."""
  row = jax.lax.broadcasted_iota(jnp.int32, shape, 1)
  return row * LANES + jax.lax.broadcasted_iota(jnp.int32, shape, 2)


def reduced(fold: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
  """The fold of each chunk, [chunks, 1, 1]."""
  return fold(fold(x, axis=1, keepdims=True), axis=2, keepdims=True)


def column(x: jax.Array, number: int, shape: tuple[int, ...]) -> jax.Array:
  """A number of each chunk, repeated for its elements."""
  lanes = jnp.broadcast_to(x[:, number : number + 1], x.shape)
  return jnp.broadcast_to(lanes[:, None, :], shape)


def rolled(x: jax.Array) -> jax.Array:
  """Rows of 128 lanes, of which each number has moved one lane to the left.

  A kernel can read a lane whose number is static. In a loop, which compiles
  faster than its turns one by one, the next entry comes to that lane.
  """
  from jax.experimental.pallas import tpu as pltpu

  return pltpu.roll(x, LANES - 1, axis=1)
