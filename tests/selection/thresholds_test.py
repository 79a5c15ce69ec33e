"""The largest numbers of segments: exactly so many, the first of equal ones."""

import functools

from gradsparse.backend import platforms
from gradsparse.selection import thresholds
from gradsparse.selection.thresholds import ROW
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay

# Rows of 32 are counted as one block, where they are of one segment.
LENGTHS = ((1,), (4,), (2, 1, 2), (32,), (70, 31), (64, 5, 1, 100))


@functools.cache
def _largest(lengths, batch=None, platform='cpu'):
  def fn(numbers, counts):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(platforms, 'name', lambda: platform)
      return thresholds.largest(numbers, lengths, counts)

  if batch:
    fn = jax.vmap(fn, in_axes=(0, None))
  return jax.jit(fn, compiler_options=replay.QUICKLY)


def _expected(numbers, lengths, counts):
  marks, first = np.zeros(numbers.shape, bool), 0
  for length, count in zip(lengths, counts, strict=True):
    own = numbers[first : first + length].reshape(-1).astype(np.int64)
    there = np.zeros(own.size, bool)
    there[np.argsort(-own, kind='stable')[:count]] = True
    marks[first : first + length] = there.reshape(length, ROW)
    first += length
  return marks


@given(
  st.sampled_from(LENGTHS),
  st.sampled_from((1, 3, 1000, 2**31 - 1)),
  st.integers(0, 2**32 - 1),
  st.sampled_from(('cpu', 'tpu')),
)
def test_exactly_so_many_are_marked(lengths, top, seed, platform):
  rng = np.random.default_rng(seed)
  numbers = rng.integers(0, top, (sum(lengths), ROW)).astype(np.int32)
  counts = np.int32([rng.integers(0, n * ROW + 1) for n in lengths])
  np.testing.assert_array_equal(
    _largest(lengths, platform=platform)(numbers, counts),
    _expected(numbers, lengths, counts),
  )


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
def test_none_or_all_are_marked(platform):
  """Thresholds of none and of all, found bit by bit."""
  lengths, counts = (2, 33, 31, 1), np.int32([0, 33 * ROW, 0, ROW])
  numbers = np.random.default_rng(0).integers(0, 2**31, (67, ROW), np.int32)
  numbers[0, 0] = numbers[40, 0] = 2**31 - 1
  np.testing.assert_array_equal(
    _largest(lengths, platform=platform)(numbers, counts),
    _expected(numbers, lengths, counts),
  )


def _rows_with_large_tops(rng, rows):
  """Rows that were taken because each has a large number."""
  every = np.abs(rng.normal(size=(20 * rows, ROW))).astype(np.float32)
  order = np.argsort(-every.max(axis=1), kind='stable')
  return every[order[:rows]]


def _mostly_zero(rng, rows):
  x = np.abs(rng.normal(size=(rows, ROW)))
  return np.where(rng.random((rows, ROW)) < 0.001, x, 0)


@pytest.mark.parametrize(
  'make, count, most',
  [
    pytest.param(
      lambda rng, rows: np.abs(rng.normal(size=(rows, ROW))),
      300,
      10,
      marks=pytest.mark.slow,
    ),
    pytest.param(_rows_with_large_tops, 128, 4, marks=pytest.mark.slow),
    pytest.param(_mostly_zero, 60, 3, marks=pytest.mark.slow),
    pytest.param(
      lambda rng, rows: rng.integers(0, 9, (rows, ROW)),
      200,
      30,
      marks=pytest.mark.slow,
    ),
    (lambda rng, rows: 10.0 ** rng.uniform(-38, 38, (rows, ROW)), 300, 7),
    pytest.param(
      lambda rng, rows: 10.0 ** rng.choice([-38, 38], (rows, ROW)),
      2000,
      10,
      marks=pytest.mark.slow,
    ),
  ],
)
def test_few_counts_find_the_bar(make, count, most, monkeypatch):
  x = make(np.random.default_rng(3), 128).astype(np.float32)
  counted, count_all = [], thresholds._Segments.exceeding

  def exceeding(self, bars):
    jax.debug.callback(lambda bars: counted.append(bars), bars)
    return count_all(self, bars)

  def largest(x):
    numbers = thresholds.ranks(thresholds.magnitudes(x))
    return numbers, thresholds.largest(numbers, (128,), np.int32([count]))

  monkeypatch.setattr(thresholds._Segments, 'exceeding', exceeding)
  numbers, found = jax.jit(largest, compiler_options=replay.QUICKLY)(x)
  np.testing.assert_array_equal(
    found, _expected(np.asarray(numbers), (128,), [count])
  )
  jax.effects_barrier()
  assert 0 < len(counted) <= most


def test_the_so_many_th_of_each_segment_and_how_many_reach_it():
  numbers = np.random.default_rng(1).integers(0, 40, (6, ROW))
  lengths, counts = (2, 1, 3), np.int32([5, ROW, 1])
  fn = jax.jit(
    lambda x: (
      bars := thresholds.least(x, lengths, counts),
      thresholds.reaching(x, lengths, bars),
    )
  )
  bars, reach = fn(numbers.astype(np.int32))
  own = np.split(numbers, [2, 3])
  expected = [
    np.sort(x, axis=None)[-k] for x, k in zip(own, counts, strict=True)
  ]
  np.testing.assert_array_equal(bars, expected)
  both = zip(own, expected, strict=True)
  np.testing.assert_array_equal(reach, [np.sum(x >= bar) for x, bar in both])


@pytest.mark.parametrize('workers', marks.few([2, 4], 2))
def test_side_by_side_for_several_workers(workers):
  """Four workers of four rows: see the trap in the code."""
  numbers = np.random.default_rng(0).integers(0, 50, (workers, 4, ROW))
  marks = _largest((4,), workers)(numbers.astype(np.int32), np.int32([6]))
  for own, found in zip(numbers, marks, strict=True):
    np.testing.assert_array_equal(found, _expected(own, (4,), [6]))


def test_magnitudes_order_as_numbers_do():
  x = jnp.float32([0, -0.0, 1e-45, -1, 1.5, -3e38, jnp.inf, jnp.nan])
  bits = np.asarray(thresholds.magnitudes(x))
  assert bits[0] == bits[1] and np.all(np.diff(bits[1:]) > 0)
