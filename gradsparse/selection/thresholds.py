"""Which numbers of each segment of an array are its k largest.

Nothing is sorted: a threshold for each segment is found bit by bit, by counting
what reaches it, for all segments at once. A segment is a run of rows of
`LANES` numbers. On CPUs XLA reduces integers in rows as short as these at the
speed of memory; rows of floating-point numbers, or longer ones, take ten times
as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

LANES = 32
_BITS = 31  # of a magnitude


def magnitudes(x: jax.Array) -> jax.Array:
  """The bits of |x|, int32 >= 0, which order as |x| does; NaN is largest.

  Args:
    x: float32.
  """
  return jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)


def in_rows(x: jax.Array) -> jax.Array:
  """A vector as rows of `LANES` numbers, filled up with zeros."""
  missing = -x.shape[0] % LANES
  if missing:
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, LANES)


def row_tops(rows: jax.Array) -> jax.Array:
  """The largest of each row, int32[..., rows]."""
  return jnp.max(rows, axis=-1)


def largest(
  numbers: jax.Array, lengths: Sequence[int], counts: jax.Array
) -> jax.Array:
  """Marks exactly so many of the largest numbers of each segment.

  Of equal numbers the first are marked.

  Args:
    numbers: int32[rows, LANES], none negative.
    lengths: how many rows each segment has, at least one.
    counts: int32[segments], how many to mark; at most what there is.

  Returns:
    bool[rows, LANES].
  """
  segments = _Segments(numbers.shape[0], lengths)
  # Typed like the numbers, which may differ between devices.
  zero = counts * 0 + (numbers[0, 0] & 0)

  def narrow(
    bits: int, reached: Callable[[jax.Array], jax.Array], start: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """The largest threshold that `counts` reach, and how many do.

    Ends as soon as no segment has too many.
    """

    def going(carry):
      bit, _, found = carry
      return (bit >= 0) & jnp.any(found != counts)

    def step(carry):
      bit, low, found = carry
      tried = low | (jnp.int32(1) << bit)
      there = segments.total(reached(segments.spread(tried)))
      fits = there >= counts
      return (
        bit - 1,
        jnp.where(fits, tried, low),
        jnp.where(fits, there, found),
      )

    _, low, found = jax.lax.while_loop(
      going, step, (bits - 1 + zero[0], zero, start)
    )
    return low, found

  low, found = narrow(
    _BITS, lambda low: numbers >= low, zero + segments.sizes()
  )
  # Where equal numbers are too many, the last of them are left out: the same
  # again with places, counted from the end.
  behind = segments.behind()
  bar = segments.spread(low)
  least, _ = narrow(
    segments.place_bits,
    lambda least: (numbers > bar) | ((numbers == bar) & (behind >= least)),
    found,
  )
  return (numbers > bar) | (
    (numbers == bar) & (behind >= segments.spread(least))
  )


class _Segments:
  """Runs of rows, one after the other."""

  def __init__(self, rows: int, lengths: Sequence[int]):
    assert sum(lengths) == rows and min(lengths) > 0
    self._number = len(lengths)
    self._sizes = np.asarray(lengths, np.int32) * LANES
    self._ends = jnp.asarray(np.cumsum(self._sizes), jnp.int32)
    # The segment of each row.
    first = jnp.arange(rows, dtype=jnp.int32) * LANES
    of_row = jnp.searchsorted(self._ends, first, side='right')
    self._of_row = of_row.astype(jnp.int32)
    self.place_bits = int(self._sizes.max()).bit_length()

  def sizes(self) -> np.ndarray:
    """int32, how many numbers each has."""
    return self._sizes

  def spread(self, x: jax.Array) -> jax.Array:
    """One number a segment, for each row: [rows, 1]."""
    return x[self._of_row][:, None]

  def total(self, mask: jax.Array) -> jax.Array:
    """int32[segments], how many are True."""
    # In two parts, for one segment as well: as one sum of all it would be slow.
    return jax.ops.segment_sum(
      jnp.sum(mask, axis=1, dtype=jnp.int32),
      self._of_row,
      self._number,
      indices_are_sorted=True,
    )

  def behind(self) -> jax.Array:
    """int32[rows, LANES], how many numbers of the segment come after each."""
    rows = self._of_row.shape[0]
    place = jnp.arange(rows * LANES, dtype=jnp.int32).reshape(rows, LANES)
    return self.spread(self._ends) - 1 - place
