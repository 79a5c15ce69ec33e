"""Marks the k largest numbers of each segment of an array.

Nothing is sorted. A threshold for each segment is found by counting the numbers
that exceed a guess, for all segments at once. A segment is a run of rows of
`ROW` numbers (see `backend.reductions`). CPUs make one guess at a time, the
best they can, until every threshold is found. A GPU would ask its host before
each turn of such a loop, and to read the numbers takes a TPU as long as to
compare them several times. So both make many guesses at once, in a fixed number
of turns.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend import searching
from gradsparse.backend.reductions import ROW
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# Guesses aim alternately above and below the wanted count, by this fraction of
# the distance to the known bound, so that both bounds come near.
_BESIDE = 0.02
_CONSTANT = 1 << 20  # the most numbers in a constant of a program
# GPUs find the bits of a threshold in groups of 4. Above _MANY numbers, reading
# these takes most of the time, and groups are of 2 bits. On TPUs they are of 3.
_WORD, _MANY = 32, 1 << 22


def magnitudes(x: jax.Array) -> jax.Array:
  """The bits of |x|, int32 >= 0, which order as |x| does; NaN is largest.

  Args:
    x: float32.
  """
  # Masked, as jnp.abs(x) would double the time of the maximum that follows.
  return jax.lax.bitcast_convert_type(x, jnp.int32) & np.int32(2**31 - 1)


def ranks(magnitudes: jax.Array) -> jax.Array:
  """int32 > 0 that order as the magnitudes do; padding has rank 0.

  Args:
    magnitudes: int32 >= 0. The largest int32 gets the rank of the next smaller.
  """
  return jnp.minimum(magnitudes, jnp.int32(2**31 - 2)) + 1


def largest(
  numbers: jax.Array, lengths: Sequence[int], counts: jax.Array
) -> jax.Array:
  """Marks exactly `counts` of the largest numbers of each segment.

  Of equal numbers, the first are marked.

  Args:
    numbers: int32[rows, ROW], none negative.
    lengths: how many rows each segment has, at least one.
    counts: int32[segments], how many to mark; at most the segment's size.

  Returns:
    bool[rows, ROW].
  """
  segments = _Segments(numbers, lengths)
  find = _by_guesses if platforms.loops_freely() else _by_digits
  bar, missing = find(numbers, segments, counts)
  bar, missing = segments.spread(bar), segments.spread(missing)
  equal = bitmap.pack((numbers == bar).reshape(-1))
  room = missing[:, 0] - segments.before(equal)
  # A barrier, or the first of equal numbers would be found for each number.
  first = barriers.fusion_barrier(bitmap.lowest(equal, room))
  lanes = np.arange(ROW, dtype=np.uint32)[None]
  return (numbers > bar) | ((first[:, None] >> lanes) & 1 == 1)


def _by_digits(
  numbers: jax.Array, segments: _Segments, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The counts-th largest number of each segment, a group of bits in a turn.

  Returns:
    As `_by_guesses`.
  """
  on_gpus = 4 if numbers.size <= _MANY else 2
  bits = 3 if platforms.stores_tiles() else on_gpus
  zero = (counts * 0 + (numbers[0, 0] & 0)).astype(jnp.uint32)
  digits = jnp.arange(1, 1 << bits, dtype=jnp.uint32)

  def turn(number, carry):
    # `above` numbers are larger than all that begin as the bar does.
    bar, above = carry
    # The last group may begin with a bit that is known.
    shift = jnp.maximum(_WORD - bits * (number + 1), 0).astype(jnp.uint32)
    reach = segments.reaching(bar, digits << shift)
    enough = reach >= counts
    digit = jnp.sum(enough, axis=0, dtype=jnp.uint32)
    fewer = jnp.max(jnp.where(enough, 0, reach), axis=0)
    bar = jnp.minimum(bar + (digit << shift), np.uint32(1 << 31))
    return bar, jnp.maximum(above, fewer)

  start = zero, zero.astype(jnp.int32)
  # Turns that are written out save a GPU a counter's launch in each.
  unroll = platforms.launches_each()
  bar, above = jax.lax.fori_loop(
    0, -(-_WORD // bits), turn, start, unroll=unroll
  )
  bar = jnp.minimum(bar, np.uint32(2**31 - 1)).astype(jnp.int32)
  return bar, jnp.where(counts > 0, counts - above, 0)


def _by_guesses(
  numbers: jax.Array, segments: _Segments, counts: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """The bar of each segment, and how many numbers equal to it to mark as well.

  Returns:
    (int32[segments], int32[segments]).
  """
  # Typed like the numbers, which may differ between devices.
  zero = counts * 0 + (numbers[0, 0] & 0)
  least, most = segments.tops()
  wanted = counts.astype(jnp.float32)

  def open_(low, high, more, fewer):
    return (more > counts) & (fewer < counts) & (low + 1 < high)

  # At least `counts` numbers exceed low, and at most `counts` exceed high.
  def step(carry):
    turn, low, high, more, fewer = carry
    above, below = more.astype(jnp.float32), fewer.astype(jnp.float32)
    # Interpolation of the counts is fast for evenly spread numbers, that of
    # their logarithms for exponential tails. Bisection always converges.
    kind = turn % 3
    middle = (low & high) + ((low ^ high) >> 1)  # their sum may overflow

    def scaled(count):
      return jnp.where(kind == 2, count, jnp.log(count + 0.5))

    aim = wanted + _BESIDE * jnp.where(
      turn % 2 == 0, above - wanted, below - wanted
    )
    aim = jnp.clip(aim, below + 0.3, above - 0.3)
    share = (scaled(above) - scaled(aim)) / (scaled(above) - scaled(below))
    ahead = (share * (high - low).astype(jnp.float32)).astype(jnp.int32)
    guess = low + jnp.clip(ahead, 1, high - low - 1)
    bar = jnp.where(kind == 0, middle, guess)
    # The first bar is for segments of mostly zeros, which interpolation misses.
    # The second is for candidate rows: it is below every row's maximum.
    known = jnp.where(turn == 0, 1, least - 1)
    bar = jnp.where(turn < 2, jnp.clip(known, low + 1, high - 1), bar)
    there = segments.exceeding(bar)
    going = open_(low, high, more, fewer)
    up, down = going & (there >= counts), going & (there < counts)
    return (
      turn + 1,
      jnp.where(up, bar, low),
      jnp.where(down, bar, high),
      jnp.where(up, there, more),
      jnp.where(down, there, fewer),
    )

  start = (zero[0], zero - 1, zero + most, zero + segments.sizes(), zero)
  _, low, high, more, fewer = jax.lax.while_loop(
    lambda carry: jnp.any(open_(*carry[1:])), step, start
  )
  exact = more == counts
  return jnp.where(exact, low, high), jnp.where(exact, 0, counts - fewer)


def least(
  numbers: jax.Array, lengths: Sequence[int], counts: jax.Array
) -> jax.Array:
  """int32[segments]: the counts-th largest number of each segment.

  Args:
    numbers: int32[rows, ROW], none negative.
    lengths: how many rows each segment has, at least one.
    counts: int32[segments], from 1 to the segment's size.
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
    numbers: int32[rows, ROW].
    lengths: how many rows each segment has, at least one.
    bars: int32[segments], none negative.
  """
  segments = _Segments(numbers, lengths)
  return segments.exceeding(bars - 1)


def segment_of(lengths: Sequence[int]) -> jax.Array:
  """int32: the segment of each place, for segments of these lengths."""
  total = int(sum(lengths))
  if total <= _CONSTANT:
    return jnp.asarray(np.repeat(np.arange(len(lengths)), lengths), jnp.int32)
  ends = jnp.asarray(np.cumsum(lengths), jnp.int32)
  places = jnp.arange(total, dtype=jnp.int32)
  return searching.searchsorted(ends, places, 'right')


class _Segments:
  """Runs of rows, one after the other, whose numbers are counted.

  Args:
    numbers: int32[rows, ROW].
    lengths: how many rows each segment has.
  """

  def __init__(self, numbers: jax.Array, lengths: Sequence[int]):
    rows = numbers.shape[0]
    assert sum(lengths) == rows and min(lengths) > 0
    self._number, self._numbers = len(lengths), numbers
    self._sizes = np.asarray(lengths, np.int32) * ROW
    self._firsts = joining.offsets(lengths)
    self._of_row = segment_of(lengths)
    # Blocks of ROW rows are counted lane by lane, which is up to six times as
    # fast as row by row. The few blocks with rows of several segments, and the
    # last one if it is not full, are counted row by row.
    blocks = rows // ROW
    ends = np.cumsum(lengths)
    shared = np.unique(ends[ends % ROW > 0] // ROW)
    few = (shared[:, None] * ROW + np.arange(ROW)).reshape(-1)
    few = few[few < rows]
    shared = shared[shared < blocks]
    self._is_shared = jnp.zeros(blocks, bool).at[shared].set(True)
    whole = numbers[: blocks * ROW]
    self._of_block = self._of_row[: blocks * ROW : ROW]
    self._few, self._of_few = numbers[few], self._of_row[few]
    if platforms.stores_tiles():
      # A block's bar is spread over its lanes, and a row's over its column.
      self._blocks, self._few = whole.reshape(blocks, ROW**2), self._few.T
    else:
      lanes = reductions.row_length()
      self._blocks = whole.reshape(blocks, ROW**2 // lanes, lanes)

  def sizes(self) -> np.ndarray:
    """int32, how many numbers each segment has."""
    return self._sizes

  def spread(self, x: jax.Array) -> jax.Array:
    """The value of each row's segment: [rows, 1]."""
    return x[self._of_row][:, None]

  def reaching(self, bar: jax.Array, steps: jax.Array) -> jax.Array:
    """int32[G, segments], how many numbers reach a segment's bar + a step.

    Args:
      bar: uint32[segments], at most 2^31.
      steps: uint32[G].
    """

    def below(bar, step):
      return (jnp.minimum(bar + step, np.uint32(1 << 31)) - 1).astype(jnp.int32)

    if not platforms.stores_tiles():
      return jax.vmap(lambda step: self.exceeding(below(bar, step)))(steps)
    # Several comparisons share a read if they are written out.
    if self._number == 1:
      bars = [below(bar[0], step) for step in steps]
      return jnp.stack(
        [
          jnp.sum(self._blocks > x, dtype=jnp.int32)
          + jnp.sum(self._few > x, dtype=jnp.int32)
          for x in bars
        ]
      )[:, None]
    own, of_few = (
      searching.taken(bar.astype(jnp.int32), of).astype(jnp.uint32)
      for of in (self._of_block, self._of_few)
    )
    large, small = [], []
    for step in steps:
      least = jnp.where(self._is_shared, 2**31 - 1, below(own, step))[:, None]
      large.append(jnp.sum(self._blocks > least, axis=1, dtype=jnp.int32))
      least = below(of_few, step)
      small.append(jnp.sum(self._few > least, axis=0, dtype=jnp.int32))
    return searching.sums_of_segments(
      large, self._of_block, self._number
    ) + searching.sums_of_segments(small, self._of_few, self._number)

  def exceeding(self, bars: jax.Array) -> jax.Array:
    """int32[segments], how many numbers of each exceed its bar, >= -1."""
    if platforms.stores_tiles():
      return self.reaching(
        bars.astype(jnp.uint32) + 1, jnp.zeros(1, jnp.uint32)
      )[0]
    if self._number == 1 and not platforms.needs_long_rows():
      return jnp.sum(self._numbers > bars, dtype=jnp.int32)[None]
    own = searching.taken(bars, self._of_block)
    own = jnp.where(self._is_shared, 2**31 - 1, own)
    lanes = jnp.sum(self._blocks > own[:, None, None], axis=1, dtype=jnp.uint32)
    # As another type, or XLA merges the two reductions, which is slow.
    found = jnp.sum(lanes.astype(jnp.int32), axis=1)
    few = self._few > searching.taken(bars, self._of_few)[:, None]
    return self._total(found, self._of_block) + self._total(
      jnp.sum(few, axis=1, dtype=jnp.int32), self._of_few
    )

  def tops(self) -> tuple[jax.Array, jax.Array]:
    """The least of each segment's row maxima, and the largest; on CPUs only.

    Returns:
      (int32[segments], int32[segments]).
    """
    whole = reductions.row_max(self._blocks)
    few = reductions.row_max(self._few)
    least = jnp.where(self._is_shared, 2**31 - 1, jnp.min(whole, axis=1))
    most = jnp.where(self._is_shared, 0, jnp.max(whole, axis=1))
    return (
      jnp.minimum(
        self._each(jax.ops.segment_min, least, self._of_block),
        self._each(jax.ops.segment_min, few, self._of_few),
      ),
      jnp.maximum(
        self._each(jax.ops.segment_max, most, self._of_block),
        self._each(jax.ops.segment_max, few, self._of_few),
      ),
    )

  def before(self, words: jax.Array) -> jax.Array:
    """int32[rows], how many bits of the segment are set before each row.

    Args:
      words: uint32[rows], a bit for each number.
    """
    own = jax.lax.population_count(words).astype(jnp.int32)
    before = jnp.cumsum(own) - own
    return before - before[self._firsts][self._of_row]

  def _total(self, counts: jax.Array, segment: jax.Array) -> jax.Array:
    # uint32 avoids a bug of XLA (jax 0.10.2): if all segment numbers are zero,
    # int32 sums share their array, which is overwritten while it is read.
    sums = self._each(jax.ops.segment_sum, counts.astype(jnp.uint32), segment)
    return sums.astype(jnp.int32)

  def _each(self, reduce, x: jax.Array, segment: jax.Array) -> jax.Array:
    return reduce(x, segment, self._number, indices_are_sorted=True)
