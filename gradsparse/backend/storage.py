"""The order in which TPUs store the elements of a leaf.

A TPU stores the last two axes in tiles of 8 rows and 128 columns. A vector of
all elements in row-major order is another array, and writing it takes as long
as three or four reads, by XLA's estimate for a v5e. In the order of the tiles
it is the same memory: XLA copies nothing. So selections read rows of 128
elements in that order, and sums of messages are added up in it.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from gradsparse.backend import platforms
import jax

# Rows and columns of a tile, and of a TPU's vector register.
SUBLANES, LANES = 8, 128
# Elements of a tile. A leaf in a vector begins with a whole tile.
TILE = SUBLANES * LANES


def is_tiled(shape: Sequence[int]) -> bool:
  """Whether a leaf of this shape is stored in whole tiles."""
  return (
    platforms.stores_tiles()
    and len(shape) > 1
    and math.prod(shape) > 0
    and shape[-2] % SUBLANES == 0
    and shape[-1] % LANES == 0
  )


def blocks(shape: Sequence[int]) -> int:
  """The number of tiles side by side; 1 if the order is row-major."""
  return shape[-1] // LANES if is_tiled(shape) else 1


def stored_row(number: Any, side_by_side: Any) -> Any:
  """The number of a row of 128 elements in the order in which it is stored.

  Args:
    number: int32, the row's number in row-major order.
    side_by_side: `blocks` of the leaf's shape.
  """
  row, block = number // side_by_side, number % side_by_side
  return (row // SUBLANES * side_by_side + block) * SUBLANES + row % SUBLANES


def place(index: jax.Array, side_by_side: Any) -> jax.Array:
  """The place of an element in the order in which it is stored.

  Args:
    index: int32, the element's place in row-major order. What is beyond either
      end of a leaf stays beyond it.
    side_by_side: `blocks` of the leaf's shape.
  """
  row, lane = index // LANES, index % LANES
  return stored_row(row, side_by_side) * LANES + lane


def vector(x: jax.Array) -> jax.Array:
  """The elements of a leaf in the order in which they are stored."""
  return (tiles(x) if is_tiled(x.shape) else x).reshape(-1)


def tiles(x: jax.Array) -> jax.Array:
  """The tiles of a leaf that `is_tiled`: [., blocks, 8, 128]."""
  side_by_side = x.shape[-1] // LANES
  rows = x.reshape(-1, SUBLANES, side_by_side, LANES)
  return rows.transpose(0, 2, 1, 3)


def leaf(stored: jax.Array, shape: Sequence[int]) -> jax.Array:
  """The leaf of this shape; inverse of `vector`."""
  if not is_tiled(shape):
    return stored.reshape(tuple(shape))
  found = stored.reshape(-1, shape[-1] // LANES, SUBLANES, LANES)
  return found.transpose(0, 2, 1, 3).reshape(tuple(shape))
