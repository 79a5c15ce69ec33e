"""Which entries are the k largest: counts, ties, two stages, thresholds."""

import functools
import math

from gradsparse import selection
from gradsparse.selection.exact import block_length
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay
from tests.oracles import sparse

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


@functools.cache
def compiled(fn, size, *static):
  """fn(x, *static) for float32[size], not optimised."""
  x = jax.ShapeDtypeStruct((size,), jnp.float32)
  return jax.jit(lambda x: fn(x, *static)).lower(x).compile(replay.QUICKLY)


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


def numbers(size, seed):
  """In half of the cases few large ones, of few magnitudes: ties."""
  rng = np.random.default_rng([size, seed])
  if seed % 2:
    sign = rng.choice([-1, 1], size)
    large = rng.integers(1, 5, size) * (rng.random(size) < min(1, 20 / size))
    return (sign * large).astype(np.float32)
  return rng.normal(size=size).astype(np.float32)


def ranked(x):
  """Indices from the largest magnitude down; a stable sort keeps ties low."""
  return np.argsort(-np.abs(x), kind='stable')


@given(st.sampled_from(SIZES), st.integers(0, 2**32 - 1))
def test_top_k_is_a_stable_sort(size_and_k, seed):
  size, k = size_and_k
  x = numbers(size, seed)
  values, indices = compiled(selection.top_k, size, k)(x)
  np.testing.assert_array_equal(indices, ranked(x)[:k])
  np.testing.assert_array_equal(values, x[ranked(x)[:k]])


@pytest.mark.parametrize('size, k', SIZES)
def test_top_k_of_equal_numbers_is_the_first_k(size, k):
  for x in (np.zeros(size, np.float32), np.full(size, -2.5, np.float32)):
    _, indices = compiled(selection.top_k, size, k)(x)
    np.testing.assert_array_equal(indices, np.arange(k))


def test_ties_across_blocks_keep_the_lower_index():
  """A larger element beside the later of the two must not help it."""
  x = np.zeros(6400, np.float32)
  x[[70, 640, 642, 5000]] = [3, -3, 5, 3]
  _, indices = compiled(selection.top_k, 6400, 3)(x)
  np.testing.assert_array_equal(indices, [642, 70, 640])


def test_the_tail_takes_part():
  x = np.ones(4159, np.float32)
  x[[4158, 4096, 7]] = [-5, 4, 3]
  _, indices = compiled(selection.top_k, 4159, 4)(x)
  np.testing.assert_array_equal(indices, [4158, 4096, 7, 0])


def test_two_stages_and_one_are_told_apart_by_worth():
  """The cases above do reach the two-stage code."""
  two = {size for size, k in SIZES if block_length(size, k)}
  assert two == {4096, 4159, 4200, 6400}


def test_an_unranked_top_of_all_is_all():
  x = jnp.asarray(numbers(300, 0))
  values, indices = selection.top_k(x, 300, ranked=False)
  np.testing.assert_array_equal(values, x)
  np.testing.assert_array_equal(indices, np.arange(300))


# --- DGC's sampled threshold ------------------------------------------------

N, K = 40_000, 200
CAPACITY = 260  # 1.3 K
RATE = 0.1


@functools.cache
def sampler(size, k, rate, traced=False):
  """(x, seed, k) -> what `sampled_top_k` sends of it."""

  def select(x, seed, now):
    key = jax.random.key(seed)
    if traced:
      return selection.sampled_top_k(x, now, rate, key, most=k)
    return selection.sampled_top_k(x, k, rate, key)

  x = jax.ShapeDtypeStruct((size,), jnp.float32)
  whole = jax.ShapeDtypeStruct((), jnp.int32)
  fn = jax.jit(select).lower(x, whole, whole).compile(replay.QUICKLY)

  def run(x, seed, now=k):
    values, indices = fn(x, np.int32(seed), np.int32(now))
    return np.asarray(values), np.asarray(indices)

  return run


def threshold(x, k, rate, seed):
  """DGC section 5: the quantile of exactly ceil(rate n) draws."""
  drawn = math.ceil(rate * x.size)
  at = jax.random.randint(jax.random.key(seed), (drawn,), 0, x.size)
  return np.sort(np.abs(x[at]))[-max(1, round(k * drawn / x.size))]


def check_sampled(x, k, rate, seed, got):
  """What is sent is what the paper says; the slots are those of 1.3 k."""
  values, indices = got
  count = np.sum(np.abs(x) >= threshold(x, k, rate, seed))
  if count > math.ceil(1.3 * k):
    count = k
  np.testing.assert_array_equal(indices[:count], ranked(x)[:count])
  np.testing.assert_array_equal(values[:count], x[indices[:count]])
  np.testing.assert_array_equal(indices[count:], x.size)
  np.testing.assert_array_equal(values[count:], 0)
  return count


@given(st.integers(0, 2**31 - 1))
def test_a_sampled_threshold_sends_all_that_reach_it(seed):
  x = numbers(N, seed)
  got = sampler(N, K, RATE)(x, seed % 1000)
  assert got[1].shape == (CAPACITY,)
  check_sampled(x, K, RATE, seed % 1000, got)


@pytest.mark.parametrize('size, k', [(300, 20), (4159, 12), (5000, 4900)])
def test_so_do_small_leaves_tails_and_large_shares(size, k):
  """Fewer than two stages are worth, a tail that is no block, nearly all."""
  counts = set()
  for seed in range(12):
    x = numbers(size, 2 * seed)
    got = sampler(size, k, 0.03)(x, seed)
    assert got[1].shape == (min(size, math.ceil(1.3 * k)),)
    counts.add(check_sampled(x, k, 0.03, seed, got))
  assert len(counts) > 3


def test_on_average_k_are_sent_and_never_more_than_13_tenths():
  """A sample that holds 100 of the 1,000 largest: a quantile good to 10 %."""
  k = 1000
  x = np.random.default_rng(0).normal(size=N).astype(np.float32)
  sent = [np.sum(sampler(N, k, RATE)(x, s)[1] < N) for s in range(200)]
  assert np.mean(sent) == pytest.approx(k, rel=0.02)
  assert np.std(sent) == pytest.approx(0.1 * k, rel=0.3)
  assert k < max(sent) <= 1.3 * k


def test_a_threshold_that_is_far_too_low_sends_exactly_the_k_largest():
  """The sample's 20th is 1, like nearly all; the largest come last."""
  x = np.ones(N, np.float32)
  x[-50:] = 2
  _, indices = sampler(N, K, RATE)(x, 0)
  expected = [*range(N - 50, N), *range(K - 50)]
  np.testing.assert_array_equal(indices[:K], expected)
  np.testing.assert_array_equal(indices[K:], N)


def test_a_sample_of_everything_is_the_exact_selection():
  x = numbers(N, 0)
  _, indices = sampler(N, K, 1.0)(x, 0)
  np.testing.assert_array_equal(indices[:K], ranked(x)[:K])
  np.testing.assert_array_equal(indices[K:], N)


def test_at_density_one_everything_is_sent():
  x = numbers(300, 0)
  _, indices = sampler(300, 300, RATE)(x, 0)
  np.testing.assert_array_equal(np.sort(indices), np.arange(300))


@pytest.mark.parametrize('now', [K, 150, 31])
def test_a_traced_k_is_sampled_for_what_it_is(now):
  """A schedule between two rungs: the slots of one, the k of the step."""
  x = numbers(N, 0)
  for seed in range(5):
    got = sampler(N, K, RATE, traced=True)(x, seed, now)
    assert got[1].shape == (CAPACITY,)
    check_sampled(x, now, RATE, seed, got)


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_the_capacity_is_13_tenths_rounded_up(k, more):
  assert selection.capacity(k, k + more) == min(k + more, -(-13 * k // 10))


# --- helpers of the rules ---------------------------------------------------


@given(
  st.lists(st.booleans(), min_size=0, max_size=70),
  st.integers(0, 12),
  st.integers(0, 200),
)
def test_where_lists_the_true_entries_in_a_circle(mask, slots, first):
  mask = np.asarray(mask, bool)
  padded = np.zeros(70, bool)
  padded[: len(mask)] = mask
  true = np.flatnonzero(padded)
  indices = np.asarray(_where(slots)(padded, np.int32(first)))
  start = first % len(true) if len(true) > slots else 0
  expected = np.roll(true, -start)[:slots]
  np.testing.assert_array_equal(indices[: len(expected)], expected)
  np.testing.assert_array_equal(indices[len(expected) :], 70)


@functools.cache
def _where(slots):
  return jax.jit(lambda mask, first: selection.where(mask, slots, first))


@given(st.integers(1, 40), st.integers(1, 12))
def test_rows_are_consecutive_and_padded_with_zeros(size, length):
  x = np.arange(1, size + 1, dtype=np.float32)
  rows = np.asarray(selection.rows(jnp.asarray(x), length))
  assert rows.shape == (math.ceil(size / length), length)
  np.testing.assert_array_equal(rows.ravel()[:size], x)
  assert not np.any(rows.ravel()[size:])
