"""How QSGD cuts a leaf into buckets, whose elements share a norm."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math

from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Buckets:
  """How a leaf is cut into buckets of at most `bucket_size` elements.

  A leaf (..., in, out) of three and more dimensions is a kernel: the leading
  ones are the taps of a receptive field, one for each input and output. A
  bucket holds as many whole fields as fit, in the order of (in, out). A field
  that is larger than a bucket is split into the fewest parts that fit, equally
  long but for the last, which may be shorter. Matrices and vectors have fields
  of one element.

  So a leaf is a matrix, its memory as it is: a row for each tap, a column for
  each field. A bucket is a tile of that. Buckets are counted column by column;
  on the wire elements come in the order of memory.

  Attributes:
    shape: of the leaf.
    taps: elements of a field.
    tile: rows and columns of a bucket; at the last ones it may have fewer.
  """

  shape: Shape
  taps: int
  tile: tuple[int, int]

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def fields(self) -> int:
    return self.size // self.taps

  @property
  def count(self) -> int:
    """How many buckets it has."""
    rows, columns = self._grid()
    return rows * columns

  def matrix(self, leaf: jax.Array) -> jax.Array:
    """A leaf, or its elements in a vector, as (taps, fields)."""
    return leaf.reshape(self.taps, self.fields)

  def reduced(
    self, matrix: jax.Array, fn: Callable[[jax.Array, int], jax.Array]
  ) -> jax.Array:
    """Each bucket as one number, a vector.

    Args:
      matrix: (taps, fields).
      fn: (array, axis) -> array without that axis. Zeros change nothing.
    """
    rows, columns = self._grid()
    high, wide = self.tile
    # Along the taps first: that is the same for all fields.
    tall = _padded(matrix, 0, rows * high).reshape(rows, high, self.fields)
    short = _padded(fn(tall, 1), 1, columns * wide)
    return fn(short.reshape(rows, columns, wide), 2).T.reshape(-1)

  def spread(self, of_buckets: jax.Array) -> jax.Array:
    """Such a vector as (taps, fields), or (1, fields) if all taps have one."""
    rows, columns = self._grid()
    high, wide = self.tile
    grid = of_buckets.reshape(columns, rows).T
    if rows > 1:
      grid = jnp.repeat(grid, high, axis=0)[: self.taps]
    return jnp.repeat(grid, wide, axis=1)[:, : self.fields]

  def _grid(self) -> tuple[int, int]:
    high, wide = self.tile
    return -(-self.taps // high), -(-self.fields // wide)


def _padded(matrix: jax.Array, axis: int, length: int) -> jax.Array:
  """A matrix, with zeros up to a length of the axis."""
  missing = length - matrix.shape[axis]
  if not missing:
    return matrix
  return jnp.pad(matrix, [(0, missing * (i == axis)) for i in range(2)])


def buckets(shape: Shape, bucket_size: int) -> Buckets:
  """How a leaf of this shape is cut."""
  taps = max(math.prod(shape[:-2]), 1)
  if taps <= bucket_size:
    # A bucket that is larger than the leaf would be filled up with zeros.
    fields = max(math.prod(shape) // taps, 1)
    return Buckets(shape, taps, (taps, min(bucket_size // taps, fields)))
  parts = -(-taps // bucket_size)
  return Buckets(shape, taps, (-(-taps // parts), 1))
