"""The k largest elements of each of many segments, in loops for CPUs.

A segment is cut into groups of neighbours. A first search finds at least k
groups with the largest maxima: the k largest elements are in them. A second
search finds these among the elements of the groups. Both guess a bar for each
segment, and count what exceeds it.

As in thresholds.py all segments are handled together, and of equal numbers the
first are taken. But segments are rows of one array, so no loop asks where a
segment begins, and a few groups too many may be found: the first search takes
half as many guesses.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend.reductions import ROW
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# How many groups more than k are found.
SPARE = 8
# Of at least _MANY segments, the last 1 / _LAST that are open are searched by
# themselves.
_LAST, _MANY = 8, 64
# A guess aims beside the count, by this fraction of the distance to a bound.
_BESIDE = 0.02


class Cells(NamedTuple):
  """Elements of segments.

  Attributes:
    group: int32[segments, k], the number of each element's group among the
      groups that `of_groups` got.
    place: int32[segments, k], each element's place in its group.
  """

  group: jax.Array
  place: jax.Array


def largest(
  tops: jax.Array,
  groups: np.ndarray,
  of_groups: Callable[[jax.Array], jax.Array],
  most: int,
  wanted: jax.Array,
) -> Cells:
  """The largest elements of each segment, by place.

  Args:
    tops: int32[segments, g], the largest rank of each group, at least 1 (see
      `thresholds.ranks`); 0 is no group.
    groups: int[segments], how many groups each segment has.
    of_groups: int32[segments, m] ascending numbers of groups -> the ranks of
      their elements, int32[segments, m, n].
    most: k, with k + SPARE groups in each segment.
    wanted: int32[segments], from 1 to k, how many are wanted of each segment.
      Further cells are arbitrary.
  """
  segments = tops.shape[0]
  found = most + SPARE
  rows = _padded(tops)
  full = jnp.full(segments, most, jnp.int32)
  near = _search(rows, full, SPARE, None)
  marks = _marks(rows, near, full + SPARE, groups)
  ranks = of_groups(barriers.fusion_barrier(places(marks, found)))
  size = ranks.shape[2]
  cells = _padded(ranks.reshape(segments, -1))
  bars = _search(cells, wanted, 0, near)
  marks = _marks(cells, bars, wanted, np.full(segments, found * size))
  place = barriers.fusion_barrier(places(marks, most))
  return Cells(place // size, place % size)


def places(words: jax.Array, count: int) -> jax.Array:
  """int32[segments, count]: the places of the set bits of each segment.

  Args:
    words: uint32[segments, m].
    count: how many; places of missing bits are arbitrary.
  """
  before = _before(words)
  rank = jnp.arange(count, dtype=jnp.int32)[None]
  word, start, number = words[:, :1], before[:, :1], jnp.zeros_like(rank)
  for i in range(1, words.shape[1]):
    ahead = before[:, i : i + 1] <= rank
    word = jnp.where(ahead, words[:, i : i + 1], word)
    start = jnp.where(ahead, before[:, i : i + 1], start)
    number = jnp.where(ahead, i, number)
  # The last of the lowest bits up to this one.
  upto = bitmap.lowest(word.reshape(-1), (rank - start + 1).reshape(-1))
  last = ROW - 1 - jax.lax.clz(upto).astype(jnp.int32)
  return ROW * number + last.reshape(number.shape)


class _Bars(NamedTuple):
  """A bar for each segment, whose numbers above it are found, and a few more.

  Attributes:
    bar: int32[segments].
    more: int32[segments], how many numbers exceed the bar.
    tied: bool[segments], whether numbers equal to the bar are taken next. If
      not, any numbers may be taken, or none is needed.
  """

  bar: jax.Array
  more: jax.Array
  tied: jax.Array


class _Bounds(NamedTuple):
  """At least `counts` numbers exceed low, and fewer exceed high.

  Attributes:
    low: int32[segments].
    high: int32[segments].
    more: int32[segments], how many exceed low.
    fewer: int32[segments], how many exceed high.
  """

  low: jax.Array
  high: jax.Array
  more: jax.Array
  fewer: jax.Array

  def are_open(self, counts: jax.Array, room: int) -> jax.Array:
    return (self.more > counts + room) & (self.low + 1 < self.high)


def _search(
  numbers: jax.Array, counts: jax.Array, room: int, known: _Bars | None
) -> _Bars:
  """Bars that `counts` to `counts + room` numbers exceed, where there are.

  Args:
    numbers: int32[segments, n], ranks.
    counts: int32[segments], at least 1.
    room: how many more may exceed the bar.
    known: bars that `counts` numbers reach.
  """
  segments, size = numbers.shape
  zero = counts * 0 + (numbers[0, 0] & 0)
  low, more, tied = zero, zero + size, zero == 0
  if known is not None:
    low, tied = jnp.where(known.tied, known.bar - 1, known.bar), known.tied
    more = _exceeding(numbers, low)
  high = jnp.max(jnp.max(_rows(numbers), axis=1), axis=1)
  bounds = _Bounds(low, high, more, zero)
  narrowed = functools.partial(_narrowed, room=room)
  if segments < _MANY:
    bounds = narrowed(numbers, counts, bounds, tied, left=0)
  else:
    last = segments // _LAST
    bounds = narrowed(numbers, counts, bounds, tied, left=last)
    still = bounds.are_open(counts, room)
    own = jnp.nonzero(still, size=last, fill_value=segments)[0]
    taken = jax.tree.map(
      lambda x: x.at[own].get(mode='clip'), (numbers, counts, bounds, tied)
    )
    few = narrowed(*taken, left=0)
    bounds = jax.tree.map(
      lambda x, new: x.at[own].set(new, mode='drop'), bounds, few
    )
  exact = bounds.more <= counts + room
  return _Bars(
    jnp.where(exact, bounds.low, bounds.high),
    jnp.where(exact, bounds.more, bounds.fewer),
    ~exact,
  )


def _narrowed(
  numbers: jax.Array,
  counts: jax.Array,
  bounds: _Bounds,
  tied: jax.Array,
  *,
  left: int,
  room: int,
) -> _Bounds:
  """Bounds of which at most `left` are open.

  Args:
    numbers: as for `_search`.
    counts: as for `_search`.
    bounds: of the numbers.
    tied: bool[segments], where `low + 1` is the first guess: many numbers may
      be equal to it.
    left: how many may stay open.
    room: as for `_search`.
  """
  wanted = counts.astype(jnp.float32) + room / 2

  def turn(carry):
    number, bounds = carry
    low, high, more, fewer = bounds
    above, below = more.astype(jnp.float32), fewer.astype(jnp.float32)
    # Alternately above and below, so that both bounds come near.
    beside = jnp.where(number % 2 == 0, above - wanted, below - wanted)
    aim = jnp.clip(wanted + _BESIDE * beside, below + 0.3, above - 0.3)
    # The largest of many numbers have about an exponential tail.
    least, own, most = (jnp.log(x + 0.5) for x in (below, aim, above))
    share = (most - own) / (most - least)
    a, b = _magnitude(low), _magnitude(high)
    guess = jax.lax.bitcast_convert_type(a + share * (b - a), jnp.int32) + 1
    middle = low + ((high - low) >> 1)
    bar = jnp.where(number % 3 == 2, middle, guess)
    bar = jnp.where((number == 0) & tied, low, bar)
    bar = jnp.clip(bar, low + 1, high - 1)
    there = _exceeding(numbers, bar)
    going = bounds.are_open(counts, room)
    up, down = going & (there >= counts), going & (there < counts)
    return number + 1, _Bounds(
      jnp.where(up, bar, low),
      jnp.where(down, bar, high),
      jnp.where(up, there, more),
      jnp.where(down, there, fewer),
    )

  def is_going(carry):
    still = carry[1].are_open(counts, room)
    return jnp.sum(still, dtype=jnp.int32) > left

  start = (numbers[0, 0] & 0, bounds)
  return jax.lax.while_loop(is_going, turn, start)[1]


def _magnitude(rank: jax.Array) -> jax.Array:
  """The number of a rank, float32; 0 for the rank 0."""
  return jax.lax.bitcast_convert_type(jnp.maximum(rank, 1) - 1, jnp.float32)


def _padded(x: jax.Array) -> jax.Array:
  """The array with whole rows of ROW numbers a segment, of rank 0."""
  missing = -x.shape[1] % ROW
  return jnp.pad(x, ((0, 0), (0, missing))) if missing else x


def _rows(numbers: jax.Array) -> jax.Array:
  return numbers.reshape(numbers.shape[0], -1, ROW)


def _exceeding(numbers: jax.Array, bars: jax.Array) -> jax.Array:
  """int32[segments], how many numbers of each exceed its bar."""
  exceed = _rows(numbers) > bars[:, None, None]
  lanes = jnp.sum(exceed, axis=1, dtype=jnp.uint32)
  # As another type, or XLA merges the two reductions, which is slow.
  return jnp.sum(lanes.astype(jnp.int32), axis=1)


def _marks(
  numbers: jax.Array, bars: _Bars, counts: jax.Array, sizes: np.ndarray
) -> jax.Array:
  """uint32[segments, n / ROW]: bits of `counts` numbers of each segment.

  Args:
    numbers: int32[segments, n].
    bars: as `_search` found them.
    counts: int32[segments].
    sizes: int[segments], how many numbers each segment has.
  """
  bar = bars.bar[:, None]

  def packed(mask):
    return bitmap.pack(mask.reshape(-1)).reshape(numbers.shape[0], -1)

  marks = packed(numbers > bar)
  begins = ROW * np.arange(marks.shape[1])
  inside = jnp.clip(
    jnp.asarray(sizes, jnp.int32)[:, None] - begins[None], 0, ROW
  )
  outside = jnp.minimum(ROW - inside, ROW - 1).astype(jnp.uint32)
  bits = jnp.where(inside > 0, np.uint32(2**32 - 1) >> outside, 0)
  rest = ~marks & bits.astype(jnp.uint32)
  next_ = jax.lax.cond(
    jnp.any(bars.tied),
    lambda: jnp.where(bars.tied[:, None], packed(numbers == bar), rest),
    lambda: rest,
  )
  room = (counts - bars.more)[:, None] - _before(next_)
  few = bitmap.lowest(next_.reshape(-1), room.reshape(-1))
  return marks | few.reshape(marks.shape)


def _before(words: jax.Array) -> jax.Array:
  """int32, how many bits of the segment are set before each word."""
  own = jax.lax.population_count(words).astype(jnp.int32)
  return jnp.cumsum(own, axis=1) - own
