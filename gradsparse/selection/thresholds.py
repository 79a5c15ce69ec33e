"""Which numbers of each segment of an array are its k largest.

Nothing is sorted: a threshold for each segment is found bit by bit, by counting
what reaches it, for all segments at once. A segment is a run of rows of
`LANES` numbers (see folding.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.folding import LANES
import jax
import jax.numpy as jnp
import numpy as np

_BITS = 31  # of a magnitude
_CONSTANT = 1 << 20  # numbers, at most, in a table inside of a program


def magnitudes(x: jax.Array) -> jax.Array:
  """The bits of |x|, int32 >= 0, which order as |x| does; NaN is largest.

  Args:
    x: float32.
  """
  return jax.lax.bitcast_convert_type(jnp.abs(x), jnp.int32)


def ranks(magnitudes: jax.Array) -> jax.Array:
  """int32 > 0 that order as the magnitudes do: what fills a row up, 0, is less.

  Args:
    magnitudes: int32 >= 0. The largest of all int32 ranks as the next smaller.
  """
  return jnp.minimum(magnitudes, jnp.int32(2**31 - 2)) + 1


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
  behind = segments.behind()
  # First the bits of the threshold. Where too many numbers are equal to it, the
  # last of them are left out: then the bits of a place, counted from the end.
  bits = _BITS + segments.place_bits

  def reached(low, least):
    bar = segments.spread(low)
    last = behind >= segments.spread(least)
    return (numbers > bar) | ((numbers == bar) & last)

  def going(carry):
    bit, _, _, found = carry
    return (bit >= 0) & jnp.any(found != counts)

  def step(carry):
    bit, low, least, found = carry
    place = bit < segments.place_bits
    one = jnp.int32(1) << jnp.where(place, bit, bit - segments.place_bits)
    higher = jnp.where(place, low, low | one)
    later = jnp.where(place, least | one, least)
    there = segments.total(reached(higher, later))
    fits = there >= counts
    return (
      bit - 1,
      jnp.where(fits, higher, low),
      jnp.where(fits, later, least),
      jnp.where(fits, there, found),
    )

  start = (bits - 1 + zero[0], zero, zero, zero + segments.sizes())
  _, low, least, _ = jax.lax.while_loop(going, step, start)
  return reached(low, least)


def least(
  numbers: jax.Array, lengths: Sequence[int], counts: jax.Array
) -> jax.Array:
  """int32[segments]: of each segment the number that is so many-th largest.

  Args:
    numbers: int32[rows, LANES], none negative.
    lengths: how many rows each segment has, at least one.
    counts: int32[segments], from 1 to what there is.
  """
  marks = largest(numbers, lengths, counts)
  marked = jnp.where(marks, numbers, jnp.int32(2**31 - 1))
  return jax.ops.segment_min(
    jnp.min(marked, axis=1),
    segment_of(lengths),
    len(lengths),
    indices_are_sorted=True,
  )


def reaching(
  numbers: jax.Array, lengths: Sequence[int], bars: jax.Array
) -> jax.Array:
  """int32[segments], how many numbers of each segment reach its bar.

  Args:
    numbers: int32[rows, LANES].
    lengths: how many rows each segment has, at least one.
    bars: int32[segments].
  """
  segments = _Segments(numbers.shape[0], lengths)
  return segments.total(numbers >= segments.spread(bars))


def segment_of(lengths: Sequence[int]) -> jax.Array:
  """int32: of places in segments of these lengths, in which one each is."""
  total = int(sum(lengths))
  if total <= _CONSTANT:
    return jnp.asarray(np.repeat(np.arange(len(lengths)), lengths), jnp.int32)
  ends = jnp.asarray(np.cumsum(lengths), jnp.int32)
  places = jnp.arange(total, dtype=jnp.int32)
  return jnp.searchsorted(ends, places, side='right').astype(jnp.int32)


class _Segments:
  """Runs of rows, one after the other."""

  def __init__(self, rows: int, lengths: Sequence[int]):
    assert sum(lengths) == rows and min(lengths) > 0
    self._number = len(lengths)
    self._sizes = np.asarray(lengths, np.int32) * LANES
    self._ends = jnp.asarray(np.cumsum(self._sizes), jnp.int32)
    self._of_row = segment_of(lengths)
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
    # Not of int32, as the numbers of segments are: where those are all zero,
    # XLA on CPUs (jax 0.10.2) takes them and the zeros to which is added for
    # one array, and overwrites it while it reads.
    sums = jax.ops.segment_sum(
      jnp.sum(mask, axis=1, dtype=jnp.uint32),
      self._of_row,
      self._number,
      indices_are_sorted=True,
    )
    return sums.astype(jnp.int32)

  def behind(self) -> jax.Array:
    """int32[rows, LANES], how many numbers of the segment come after each."""
    rows = self._of_row.shape[0]
    place = jnp.arange(rows * LANES, dtype=jnp.int32).reshape(rows, LANES)
    return self.spread(self._ends) - 1 - place
