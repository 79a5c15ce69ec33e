"""How QSGD cuts a leaf into buckets, whose elements share a norm."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math

from gradsparse.backend import platforms
from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp

_FEW = 8  # buckets in a row of a leaf


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
  each field. A bucket is a tile of that. Buckets are counted column by column.
  The fields themselves are a matrix (in, out) here: what is computed for each
  element is so in the leaf's own layout.

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

  @property
  def view(self) -> Shape:
    """(taps, in, out): the shape in which the elements are computed.

    XLA for CPUs computes long rows faster: there all fields are one.
    """
    if len(self.shape) < 2 or platforms.is_cpu():
      return self.taps, 1, self.fields
    out = self.shape[-1]
    return self.taps, self.fields // max(out, 1), out

  def reduced(
    self, leaf: jax.Array, fn: Callable[[jax.Array, int], jax.Array]
  ) -> jax.Array:
    """Each bucket as one number, a vector.

    Args:
      leaf: of the shape `view`.
      fn: (array, axis) -> array without that axis. Zeros change nothing.
    """
    rows, columns = self._grid()
    high, wide = self.tile
    _, inputs, out = self.view
    # Along the taps first: that is the same for all fields.
    tall = _padded(leaf, 0, rows * high).reshape(rows, high, inputs, out)
    short = fn(tall, 1)
    if inputs > 1 and out % wide == 0 and out <= _FEW * wide:
      # Cut out of rows as they lie, which are not copied.
      starts = range(0, out, wide)
      cut = [fn(short[:, :, a : a + wide], 2) for a in starts]
      return jnp.stack(cut, 2).reshape(rows, columns).T.reshape(-1)
    short = _padded(short.reshape(rows, -1), 1, columns * wide)
    return fn(short.reshape(rows, columns, wide), 2).T.reshape(-1)

  def spread(self, of_buckets: jax.Array) -> jax.Array:
    """Such a vector in the shape `view`, but one tap if all have the same."""
    rows, columns = self._grid()
    high, wide = self.tile
    _, inputs, out = self.view
    grid = of_buckets.reshape(columns, rows).T
    if out % wide == 0 and out <= _FEW * wide:
      # Chosen by comparison, which is computed where it is read.
      grid = grid.reshape(rows, inputs, out // wide)
      block = jnp.arange(out, dtype=jnp.int32) // wide
      fields = jnp.broadcast_to(grid[..., :1], (rows, inputs, out))
      for number in range(1, out // wide):
        own = grid[..., number : number + 1]
        fields = jnp.where(block == number, own, fields)
    elif wide % out == 0 and self.fields % wide == 0:
      # So many whole rows of the matrix of fields share a bucket.
      fields = jnp.repeat(grid, wide // out, axis=1)[:, :, None]
      fields = jnp.broadcast_to(fields, (rows, inputs, out))
    else:
      fields = jnp.repeat(grid, wide, axis=1)[:, : self.fields]
      fields = fields.reshape(rows, inputs, out)
    if rows > 1:
      fields = jnp.repeat(fields, high, axis=0)[: self.taps]
    return fields

  def _grid(self) -> tuple[int, int]:
    high, wide = self.tile
    return -(-self.taps // high), -(-self.fields // wide)


def _padded(x: jax.Array, axis: int, length: int) -> jax.Array:
  """An array, with zeros up to a length of the axis."""
  missing = length - x.shape[axis]
  if not missing:
    return x
  return jnp.pad(x, [(0, missing * (i == axis)) for i in range(x.ndim)])


def buckets(shape: Shape, bucket_size: int) -> Buckets:
  """How a leaf of this shape is cut."""
  taps = max(math.prod(shape[:-2]), 1)
  if taps <= bucket_size:
    # A bucket that is larger than the leaf would be filled up with zeros.
    fields = max(math.prod(shape) // taps, 1)
    return Buckets(shape, taps, (taps, min(bucket_size // taps, fields)))
  parts = -(-taps // bucket_size)
  return Buckets(shape, taps, (-(-taps // parts), 1))
