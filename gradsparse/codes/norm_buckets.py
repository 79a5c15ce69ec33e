"""Cuts a leaf into QSGD's buckets, whose elements share a norm."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Any

from gradsparse.backend import platforms
from gradsparse.backend import repeating
from gradsparse.sockets import Shape
import jax
import jax.numpy as jnp

_FEW = 8  # the most buckets in a row of a leaf
_ROWS = 8  # at least so many rows for each row of padding


@dataclasses.dataclass(frozen=True)
class Buckets:
  """A partition of a leaf into buckets of at most `bucket_size` elements.

  A leaf (..., in, out) of three or more dimensions is a convolution kernel. Its
  leading dimensions are the taps of a receptive field, one field for each input
  and output. A bucket holds as many whole fields as fit, in the order of
  (in, out). A field that is larger than a bucket is split into the fewest parts
  that fit, equally long except the last, which may be shorter. Matrices and
  vectors have fields of one element.

  The leaf is thus read, without a copy, as a matrix: a row for each tap, a
  column for each field. A bucket is a tile of this matrix. Buckets are numbered
  column by column. The columns are also kept as a matrix (in, out), so that
  elementwise work stays in the leaf's own layout.

  Attributes:
    shape: of the leaf.
    taps: elements of a field.
    tile: rows and columns of a bucket; the last buckets may have fewer.
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
    """The number of buckets."""
    rows, columns = self._grid()
    return rows * columns

  @property
  def view(self) -> Shape:
    """The shape of elementwise work: `rows`, or one long row a tap on CPUs."""
    return (
      (self.taps, 1, self.fields) if platforms.needs_long_rows() else self.rows
    )

  @property
  def rows(self) -> Shape:
    """(taps, in, out), or (1, 1, n) for a vector."""
    out = self.shape[-1] if len(self.shape) > 1 else self.fields
    return self.taps, self.fields // max(out, 1), out

  def reduced(
    self, leaf: jax.Array, fn: Callable[[jax.Array, int], jax.Array]
  ) -> jax.Array:
    """Reduces each bucket to one number, a vector.

    Args:
      leaf: of the shape `view`.
      fn: (array, axis) -> array without that axis; zeros must not matter. A
        bucket is reduced along one axis or two.
    """
    rows, columns = self._grid()
    high, wide = self.tile
    _, inputs, out = self.view
    # The taps first, as all fields have equally many.
    tall = _padded(leaf, 0, rows * high).reshape(rows, high, inputs, out)
    short = fn(tall, 1) if high > 1 else tall[:, 0]
    if inputs > 1 and out % wide == 0 and out <= _FEW * wide:
      # Slices of rows, which need no copy.
      starts = range(0, out, wide)
      cut = [fn(short[:, :, a : a + wide], 2) for a in starts]
      return jnp.stack(cut, 2).reshape(rows, columns).T.reshape(-1)
    unit = wide // math.gcd(wide, out)
    if _ROWS * unit <= inputs:
      # Pads whole rows, as TPUs take long to lengthen a vector, until the last
      # row ends a bucket.
      short = _padded(short, 1, -(-inputs // unit) * unit)
    short = short.reshape(rows, -1)
    short = _padded(short, 1, max(short.shape[1], columns * wide))
    return fn(short.reshape(rows, -1, wide), 2)[:, :columns].T.reshape(-1)

  def spread(
    self,
    of_buckets: jax.Array,
    cut: Callable[[jax.Array], Any] = lambda array: array,
  ) -> Any:
    """Broadcasts a number for each bucket to `view`, or to one tap of it.

    Args:
      of_buckets: the numbers, a vector.
      cut: cuts an array (taps, in, ...) by its second axis; what it makes of
        `view` is returned. XLA for TPUs would write out what is cut, so numbers
        are cut before they are repeated.
    """
    rows, columns = self._grid()
    high, wide = self.tile
    _, inputs, out = self.view
    grid = of_buckets.reshape(columns, rows).T
    if out % wide == 0 and out <= _FEW * wide:
      # By comparison, which XLA fuses into the readers.
      block = jnp.arange(out, dtype=jnp.int32) // wide

      def of_columns(grid):
        fields = jnp.broadcast_to(grid[..., :1], (*grid.shape[:-1], out))
        for number in range(1, out // wide):
          own = grid[..., number : number + 1]
          fields = jnp.where(block == number, own, fields)
        return fields

      grid = cut(grid.reshape(rows, inputs, out // wide))
      fields = jax.tree.map(of_columns, grid)
    elif wide % out == 0 and self.fields % wide == 0:
      # Whole rows of the matrix of fields share a bucket.
      fields = jax.tree.map(
        lambda x: jnp.broadcast_to(x[..., None], (*x.shape, out)),
        cut(jnp.repeat(grid, wide // out, axis=1)),
      )
    else:
      each = [repeating.in_rows(row, wide, inputs, out, cut) for row in grid]
      fields = jax.tree.map(lambda *x: jnp.concatenate(x), *each)
    if rows > 1:
      fields = jax.tree.map(
        lambda x: jnp.repeat(x, high, axis=0)[: self.taps], fields
      )
    return fields

  def _grid(self) -> tuple[int, int]:
    high, wide = self.tile
    return -(-self.taps // high), -(-self.fields // wide)


def _padded(x: jax.Array, axis: int, length: int) -> jax.Array:
  """Pads an axis with zeros to a length."""
  missing = length - x.shape[axis]
  if not missing:
    return x
  return jnp.pad(x, [(0, missing * (i == axis)) for i in range(x.ndim)])


def buckets(shape: Shape, bucket_size: int) -> Buckets:
  """The partition of a leaf of this shape."""
  taps = max(math.prod(shape[:-2]), 1)
  if taps <= bucket_size:
    # No larger than the leaf, or the bucket would be padded with zeros.
    fields = max(math.prod(shape) // taps, 1)
    return Buckets(shape, taps, (taps, min(bucket_size // taps, fields)))
  parts = -(-taps // bucket_size)
  return Buckets(shape, taps, (-(-taps // parts), 1))
