"""Which entries are the k largest: counts, ties, two stages."""

import functools
from unittest import mock

from gradsparse import selection
from gradsparse.selection import candidates
from gradsparse.selection import exact
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import sparse
from tests.selection.vectors import numbers
from tests.selection.vectors import ranked

# (n, k): one stage below 4096; two above, of one block length or another, with
# a tail that is no block (4159 is prime) and without, and with k too large.
SIZES = (
  (1, 1),
  (7, 3),
  (300, 1),
  (300, 300),
  (4096, 10),
  (4159, 12),
  (4200, 17),
  (6400, 25),
  (6000, 3000),
)


# How many numbers are too few for thresholds: these are small, so by default
# they would all be sorted.
LIMITS = (0, 1 << 14)


@functools.cache
def top_k(size, k, ranked=True, limit=0):
  """x float32[size] -> its top k, not optimised."""
  x = jax.ShapeDtypeStruct((size,), jnp.float32)
  with mock.patch.object(exact, '_SMALL', limit):
    fn = jax.jit(lambda x: selection.top_k(x, k, ranked=ranked)).lower(x)
  return fn.compile(replay.QUICKLY)


@given(st.floats(1e-6, 1), st.integers(1, 10**8))
def test_k_is_density_times_n_rounded_up(density, size):
  k = selection.count(density, size)
  assert k == sparse.count(density, size)
  assert 1 <= k <= size
  assert k - 1 < density * size + 1e-6


def test_k_of_round_products_is_exact_and_of_nothing_is_nothing():
  assert selection.count(0.1, 10) == 1
  assert selection.count(0.7, 10) == 7  # 0.7 * 10 is above 7
  assert selection.count(1.0, 132) == 132
  assert selection.count(0.001, 25_557_032) == 25_558
  assert selection.count(0.5, 0) == 0


@given(st.floats(2**-20, 1, width=32), st.integers(1, 10**6))
def test_a_traced_k_differs_by_one_at_most(density, size):
  k = int(selection.traced_count(jnp.float32(density), size))
  assert 1 <= k <= size
  assert abs(k - selection.count(density, size)) <= 1


def test_a_traced_density_of_one_is_all():
  """Though float32 has no such product."""
  for size in (1, 100_000_003, 1_000_000_031):
    assert int(selection.traced_count(jnp.float32(1), size)) == size


@given(
  st.sampled_from(SIZES),
  st.integers(0, 2**32 - 1),
  st.sampled_from(LIMITS),
  st.booleans(),
)
def test_top_k_is_a_stable_sort(size_and_k, seed, limit, order):
  size, k = size_and_k
  x = numbers(size, seed)
  expected = ranked(x)[:k] if order else np.sort(ranked(x)[:k])
  values, indices = top_k(size, k, order, limit)(x)
  np.testing.assert_array_equal(indices, expected)
  np.testing.assert_array_equal(values, x[expected])


@pytest.mark.parametrize('size, k', marks.few(SIZES, (4159, 12)))
def test_top_k_of_equal_numbers_is_the_first_k(size, k):
  for x in (np.zeros(size, np.float32), np.full(size, -2.5, np.float32)):
    _, indices = top_k(size, k)(x)
    np.testing.assert_array_equal(indices, np.arange(k))


def test_ties_across_blocks_keep_the_lower_index():
  """A larger element beside the later of the two must not help it."""
  x = np.zeros(6400, np.float32)
  x[[70, 640, 642, 5000]] = [3, -3, 5, 3]
  _, indices = top_k(6400, 3)(x)
  np.testing.assert_array_equal(indices, [642, 70, 640])


def test_the_tail_takes_part():
  x = np.ones(4159, np.float32)
  x[[4158, 4096, 7]] = [-5, 4, 3]
  _, indices = top_k(4159, 4)(x)
  np.testing.assert_array_equal(indices, [4158, 4096, 7, 0])


# (n, k) of leaves side by side: one and two stages, tails, nothing, all.
TREES = (
  ((4096, 10), (0, 0), (1, 1), (4159, 12), (33, 33)),
  ((100, 7), (4096, 3000), (100, 7)),
  # Many of one size, others in between.
  ((4200, 20), *[(320, 2)] * 8, (4200, 17)),
)


@pytest.mark.slow
@settings(max_examples=12)
@given(
  st.sampled_from(TREES), st.integers(0, 2**32 - 1), st.sampled_from(LIMITS)
)
def test_the_top_k_of_leaves_side_by_side_are_those_of_each(
  leaves, seed, limit
):
  xs = [numbers(size, seed + i) for i, (size, _) in enumerate(leaves)]
  counts = [k for _, k in leaves]
  now = [k // (1 + (seed + i) % 3) for i, k in enumerate(counts)]
  joined, offsets = np.concatenate(xs), np.cumsum([0, *map(len, xs)])

  def largest(counts):
    both = zip(xs, counts, offsets, strict=False)
    return np.concatenate([np.sort(ranked(x)[:k]) + at for x, k, at in both])

  values, indices = side_by_side(leaves, limit)(xs)
  np.testing.assert_array_equal(indices, largest(counts))
  np.testing.assert_array_equal(values, joined[largest(counts)])
  values, indices = side_by_side(leaves, limit)(xs, np.asarray(now, np.int32))
  assert indices.shape == (sum(counts),)
  filled = sum(now)
  np.testing.assert_array_equal(indices[:filled], largest(now))
  np.testing.assert_array_equal(values[:filled], joined[largest(now)])
  np.testing.assert_array_equal(indices[filled:], len(joined))
  assert not np.any(values[filled:])


@functools.cache
def side_by_side(leaves, limit):
  counts = [k for _, k in leaves]

  def fn(xs, now=None):
    with mock.patch.object(exact, '_SMALL', limit):
      return selection.top_k_of_each(xs, counts, now)

  return jax.jit(fn, compiler_options=replay.QUICKLY)


# Of leaves together: one and two stages, tails, an empty one, many blocks.
TOGETHER = (
  ((4096, 0, 33, 4159), 40),
  ((4200, 320, 320, 1, 4200), 6000),
  ((20_000, 33, 20_001), 600),
)


@pytest.mark.slow
@given(
  st.sampled_from(TOGETHER),
  st.integers(0, 2**32 - 1),
  st.sampled_from([(0, 0), (0, 400), (1 << 14, 0)]),
)
def test_the_top_k_of_all_leaves_are_those_of_one_vector(case, seed, limits):
  sizes, k = case
  xs = [numbers(size, seed + i) for i, size in enumerate(sizes)]
  now, joined = k // (1 + seed % 3), np.concatenate(xs)
  expected = np.sort(ranked(joined)[:now])
  values, indices = together(sizes, k, limits)(xs, np.int32(now))
  np.testing.assert_array_equal(indices[:now], expected)
  np.testing.assert_array_equal(values[:now], joined[expected])
  np.testing.assert_array_equal(indices[now:], len(joined))
  assert not np.any(values[now:])


def test_zeros_that_fill_up_a_leaf_are_no_elements():
  """Fewer numbers than slots: the first zeros are sent, of the first leaf."""
  xs = [np.zeros(4097, np.float32), np.zeros(4097, np.float32)]
  xs[1][[0, 4096]] = 2, 3
  _, indices = together((4097, 4097), 100, (0, 0))(xs, np.int32(100))
  np.testing.assert_array_equal(indices, [*range(98), 4097, 8193])


@functools.cache
def together(sizes, k, limits):
  """Below the limits vectors are sorted, and joined."""
  del sizes
  small, joined = limits

  def fn(xs, now):
    with (
      mock.patch.object(exact, '_SMALL', small),
      mock.patch.object(candidates, '_SMALL', joined),
    ):
      return selection.top_k_of_all(xs, k, now)

  return jax.jit(fn, compiler_options=replay.QUICKLY)
