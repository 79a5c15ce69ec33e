"""DGC's sampled threshold: which entries reach it, and how many are sent."""

import functools
import math

from gradsparse import draws
from gradsparse import selection
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.selection.vectors import numbers
from tests.selection.vectors import ranked

N, K = 40_000, 200
CAPACITY = 260  # 1.3 K
RATE = 0.1


@functools.cache
def sampler(size, k, rate, traced=False):
  """(x, seed, k) -> what `sampled_top_k_of_each` sends of it."""

  def select(x, seed, now):
    key = jax.random.key(seed)
    return selection.sampled_top_k_of_each(
      [x], [k], rate, key, now[None] if traced else None
    )

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
  sizes = np.full(drawn, x.size, np.uint32)
  at = np.asarray(draws.below(jax.random.key(seed), jnp.asarray(sizes)))
  return np.sort(np.abs(x[at]))[-max(1, round(k * drawn / x.size))]


def check_sampled(x, k, rate, seed, got):
  """What is sent is what the paper says; the slots are those of 1.3 k."""
  values, indices = got
  count = np.sum(np.abs(x) >= threshold(x, k, rate, seed))
  if count > math.ceil(1.3 * k):
    count = k
  np.testing.assert_array_equal(indices[:count], np.sort(ranked(x)[:count]))
  np.testing.assert_array_equal(values[:count], x[indices[:count]])
  np.testing.assert_array_equal(indices[count:], x.size)
  np.testing.assert_array_equal(values[count:], 0)
  return count


@pytest.mark.slow
@given(st.integers(0, 2**31 - 1))
def test_a_sampled_threshold_sends_all_that_reach_it(seed):
  x = numbers(N, seed)
  got = sampler(N, K, RATE)(x, seed % 1000)
  assert got[1].shape == (CAPACITY,)
  check_sampled(x, K, RATE, seed % 1000, got)


@pytest.mark.slow
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


@pytest.mark.slow
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
  expected = [*range(K - 50), *range(N - 50, N)]
  np.testing.assert_array_equal(indices[:K], expected)
  np.testing.assert_array_equal(indices[K:], N)


@pytest.mark.slow
def test_a_sample_of_everything_is_the_exact_selection():
  x = numbers(N, 0)
  _, indices = sampler(N, K, 1.0)(x, 0)
  np.testing.assert_array_equal(indices[:K], np.sort(ranked(x)[:K]))
  np.testing.assert_array_equal(indices[K:], N)


@pytest.mark.slow
def test_at_density_one_everything_is_sent():
  x = numbers(300, 0)
  _, indices = sampler(300, 300, RATE)(x, 0)
  np.testing.assert_array_equal(indices, np.arange(300))


@pytest.mark.parametrize('now', marks.few([K, 150, 31], 150))
def test_a_traced_k_is_sampled_for_what_it_is(now):
  """A schedule between two rungs: the slots of one, the k of the step."""
  x = numbers(N, 0)
  for seed in range(5):
    got = sampler(N, K, RATE, traced=True)(x, seed, now)
    assert got[1].shape == (CAPACITY,)
    check_sampled(x, now, RATE, seed, got)


@pytest.mark.slow
@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_the_capacity_is_13_tenths_rounded_up(k, more):
  assert selection.capacity(k, k + more) == min(k + more, -(-13 * k // 10))
