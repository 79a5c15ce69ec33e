"""Unbiasedness and variance of the random schemes, with stated confidence.

Every mean over DRAWS draws must lie within 5.5 of its standard errors of what
it estimates. By the normal approximation a right scheme fails one such check
with probability 4e-8; no test here makes more than 1,000 checks, so it fails
with probability under 4e-5, and then always: draws are seeded.
"""

from __future__ import annotations

import gradsparse as gs
from gradsparse import codes
from gradsparse.sockets import Context
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.oracles import qsgd
from tests.oracles import terngrad

DRAWS = 3000
SIGMAS = 5.5


def draws_of(tx, grads):
  """float64[DRAWS, P, n]: what each of P workers delivers in each step.

  Workers have the same gradient, so that their draws are comparable.

  Args:
    tx: a scheme over the axis 'workers', without memory.
    grads: float32[P, n].
  """
  state = tx.init(jnp.zeros(grads.shape[1:]))

  def one(step):
    def worker(g):
      return tx.step(g, state._replace(steps=step))[2]

    return jax.vmap(worker, axis_name='workers')(grads)

  steps = jnp.arange(DRAWS, dtype=jnp.int32)
  return np.asarray(jax.jit(jax.vmap(one))(steps), np.float64)


def assert_estimates(samples, expected):
  """The mean over the first axis is what it should be."""
  samples = np.asarray(samples, np.float64)
  error = np.std(samples, axis=0, ddof=1) / np.sqrt(len(samples))
  distance = np.abs(np.mean(samples, axis=0) - expected)
  # float32 rounding of a sample, where there is no chance in it.
  assert np.all(distance <= SIGMAS * error + 1e-6 * np.abs(expected) + 1e-7)


def assert_at_most(samples, bound):
  """The expectation of a scalar is not above the bound."""
  error = np.std(samples, ddof=1) / np.sqrt(len(samples))
  assert np.mean(samples) <= bound + SIGMAS * error


def test_the_checks_themselves_can_fail():
  rng = np.random.default_rng(0)
  samples = rng.normal(size=(DRAWS, 3))
  assert_estimates(samples, 0)
  with pytest.raises(AssertionError):
    assert_estimates(samples, [0, 0.2, 0])
  with pytest.raises(AssertionError):
    assert_at_most(samples[:, 0], -0.2)


# --- QSGD -------------------------------------------------------------------

WORKERS = 3
# One bucket and a half; each element large enough to be drawn often, or the
# normal approximation would not hold.
VECTOR = np.random.default_rng(1).normal(size=96).astype(np.float32)
VECTOR += 0.3 * np.sign(VECTOR)


@pytest.mark.parametrize(
  'levels, norm',
  marks.few([(1, 'max'), (1, 'l2'), (7, 'max'), (7, 'l2')], (7, 'max')),
)
def test_qsgd_is_unbiased_and_has_its_variance(levels, norm):
  """The exact variance, and lemma 3.1's bound on it (d M^2 / 4 s^2 for max).

  And of the mean over workers a third of it: their draws are independent.
  """
  tx = gs.qsgd(
    levels, bucket_size=64, norm=norm, min_size=0, axis_name='workers'
  )
  draws = draws_of(tx, np.tile(VECTOR, (WORKERS, 1)))
  assert_estimates(draws[:, 0], VECTOR)
  variance = qsgd.variance(VECTOR, levels, 64, norm)
  errors = np.sum((draws - VECTOR) ** 2, axis=2)
  assert_estimates(errors, variance)
  of_mean = np.sum((draws.mean(axis=1) - VECTOR) ** 2, axis=1)
  assert_estimates(of_mean, variance / WORKERS)
  assert_at_most(errors[:, 0], qsgd.variance_bound(VECTOR, levels, 64, norm))


@pytest.mark.slow
@pytest.mark.parametrize('levels', [1, 3])
def test_qsgd_sends_few_nonzeros(levels):
  """Lemma 3.1: E|Q|_0 <= s (s + sqrt n), with the 2-norm and one bucket."""
  n = 400
  rng = np.random.default_rng(2)
  # Equal magnitudes are the worst case for the number of nonzeros.
  vector = rng.choice(np.float32([-1, 1]), n)
  tx = gs.qsgd(
    levels, bucket_size=n, norm='l2', min_size=0, axis_name='workers'
  )
  draws = draws_of(tx, vector[None])[:, 0]
  count = np.count_nonzero(draws, axis=1)
  assert_at_most(count, qsgd.nonzeros_bound(n, levels))
  # Each is nonzero with probability s / sqrt(n), as long as that is below 1.
  assert_estimates(count, n * levels / np.sqrt(n))


# --- TernGrad ---------------------------------------------------------------


def test_terngrad_is_unbiased_about_the_clipped_gradient():
  """And has the variance |g| (s - |g|), s the largest over all workers."""
  tx = gs.terngrad(clip=1.0, min_size=0, axis_name='workers')
  grads = np.stack([VECTOR, 0.5 * VECTOR, 0.1 * VECTOR])
  draws = draws_of(tx, grads)
  clipped = np.stack([terngrad.clip(g, 1.0) for g in grads])
  assert np.any(clipped != grads)
  scale = np.max(np.abs(clipped))
  ternary = draws / scale
  np.testing.assert_allclose(ternary, np.round(ternary), atol=1e-6)
  assert set(np.unique(np.round(ternary))) == {-1, 0, 1}
  for w in range(WORKERS):
    assert_estimates(draws[:, w], clipped[w])
  variance = np.sum(np.abs(clipped) * (scale - np.abs(clipped)), axis=1)
  assert_estimates(np.sum((draws - clipped) ** 2, axis=2), variance)
  of_mean = np.sum((draws.mean(1) - clipped.mean(0)) ** 2, axis=1)
  assert_estimates(of_mean, np.sum(variance) / WORKERS**2)


# --- random-k ---------------------------------------------------------------


@pytest.mark.slow
def test_random_k_is_unbiased_and_has_its_variance():
  """E|Q - g|^2 = (n/k - 1) |g|^2; every coordinate has the same chance.

  Coordinates are shared, so the mean of equal gradients gains nothing.
  """
  n, k = VECTOR.size, 12
  tx = gs.random_k(k / n, axis_name='workers')
  draws = draws_of(tx, np.tile(VECTOR, (WORKERS, 1)))
  assert np.all(np.count_nonzero(draws, axis=2) == k)
  np.testing.assert_array_equal(draws[:, 0], draws[:, 2])
  assert_estimates(draws[:, 0], VECTOR)
  assert_estimates(draws[:, 0] != 0, k / n)
  variance = (n / k - 1) * np.sum(np.square(VECTOR, dtype=np.float64))
  of_mean = np.sum((draws.mean(axis=1) - VECTOR) ** 2, axis=1)
  assert_estimates(of_mean, variance)


# --- the random value codes of sparse messages ------------------------------


@pytest.mark.parametrize(
  'values, levels', marks.few([('qsgd4', 7), ('ternary', 1)], ('qsgd4', 7))
)
def test_a_random_value_code_is_unbiased_given_the_selection(values, levels):
  """Each leaf has a scale of its own; what falls to zero is not sent."""
  rng = np.random.default_rng(4)
  space = Space(((30,), (20,)), (10, 10))
  indices = np.sort(rng.permutation(30)[:10])
  indices = np.concatenate([indices, 30 + np.arange(6), [50, 50]])
  selected = rng.normal(size=18) * np.repeat([1.0, 100.0], [10, 8])
  selected[16:] = 0
  entries = Sparse(
    jnp.asarray(selected, jnp.float32), jnp.asarray(indices, jnp.int32), space
  )
  code = codes.sparse('elias_fano', values)

  # The entries are an argument: arithmetic on constants folds differently.
  @jax.jit
  def drawn(entries, keys):
    def one(key):
      ctx = Context(MessageLeaves(space.shapes), 1, jnp.int32(0), key, key)
      sent = code.round(entries, ctx)
      back = code.unpack(code.pack(sent, ctx), sent, ctx)
      return sent.add_to(sent.zeros()), back.add_to(back.zeros())

    return jax.vmap(one)(keys)

  sent, back = drawn(entries, jax.random.split(jax.random.key(0), DRAWS))
  np.testing.assert_array_equal(sent, back)
  expected = np.zeros(50)
  expected[indices[:16]] = selected[:16].astype(np.float32)
  assert_estimates(sent, expected)
  tops = [np.max(np.abs(expected[:30])), np.max(np.abs(expected[30:]))]
  level = np.abs(sent) / np.repeat(tops, [30, 20]) * levels
  np.testing.assert_allclose(level, np.round(level), atol=1e-4)
  assert np.max(level) <= levels + 1e-4
  variance = sum(
    qsgd.variance(x, levels, x.size, 'max') for x in np.split(expected, [30])
  )
  assert_estimates(np.sum((sent - expected) ** 2, axis=1), variance)
  # The largest entry of a leaf is always sent, the others sometimes not.
  chance = np.mean(np.asarray(sent) != 0, axis=0)
  assert np.sum(chance == 1) >= 2
  assert np.any((0 < chance) & (chance < 1))


@pytest.mark.parametrize('values', marks.few(['qsgd4', 'ternary'], 'ternary'))
def test_the_variance_criterion_keeps_what_a_random_code_loses(values):
  """Whatever was rounded away, or not sent at all, is still owed."""
  tx = gs.variance_based(
    1.0, values=values, ladder=(1.0,), axis_name=None, seed=3
  )
  grads = {'w': VECTOR}
  state = tx.init(grads)
  passing = np.arange(VECTOR.size) % 2 == 0
  moments = {'w': np.where(passing, 0.5, 2).astype(np.float32) * VECTOR**2}
  step = jax.jit(lambda g, s, m: tx.step(g, s, second_moment=m))
  _, state, delivered = step(grads, state, moments)
  sent, owed = np.asarray(delivered['w']), np.asarray(gs.pending(state)['w'])
  np.testing.assert_allclose(sent + owed, VECTOR, atol=1e-6)
  assert not np.any(sent[~passing])
  assert 0 < np.count_nonzero(sent) <= np.count_nonzero(passing)
  largest = np.argmax(np.abs(np.where(passing, VECTOR, 0)))
  np.testing.assert_allclose(sent[largest], VECTOR[largest], rtol=1e-6)
