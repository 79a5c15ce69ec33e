"""QSGD and QSVRG: lemma 3.1, theorems 3.2 and 3.6, the codes."""

import math

import numpy as np
import pytest
from tests.oracles import checks
from tests.oracles import qsgd
from tests.oracles import qsvrg


@pytest.mark.parametrize('norm', ['max', 'l2'])
@pytest.mark.parametrize('levels', [1, 3, 7])
def test_qsgd_is_unbiased_within_its_bounds(norm, levels):
  v = np.random.default_rng(6).normal(size=(3, 4)).astype(np.float32)
  grid = (np.arange(400) + 0.5) / 400  # every element sees each draw once
  draws = np.stack(
    [qsgd.quantise(v, levels, 5, norm, np.full(12, u)) for u in grid]
  )
  np.testing.assert_allclose(draws.mean(0), v, atol=0.02)
  exact = qsgd.variance(v, levels, 5, norm)
  assert abs(((draws - v) ** 2).sum(axis=(1, 2)).mean() - exact) < 0.02 * exact
  assert exact <= qsgd.variance_bound(v, levels, 5, norm)


def test_qsgd_edges():
  zero = qsgd.quantise(np.zeros(3), 7, 512, 'max', np.zeros(3))
  assert not zero.any()
  v = np.float32([1, -2, 0.5, 2])  # exact at s = 4: nothing is random
  for u in (0.0, 0.999):
    checks.close(qsgd.quantise(v, 4, 512, 'max', np.full(4, u)), v)
  assert [qsgd.levels_of_bits(b) for b in (2, 3, 4, 8)] == [1, 3, 7, 127]


@pytest.mark.parametrize(
  'n, levels', [(1000, 1), (1000, 15), (10_000, 2), (10_000, 255), (100_000, 7)]
)
def test_theorem_3_2_holds_on_gaussians(n, levels):
  rng = np.random.default_rng(8)
  v = rng.normal(size=n).astype(np.float32)
  _, signed = qsgd.code(v, levels, n, 'l2', rng.random(n))
  bound = qsgd.expected_bits_bound(n, levels)
  assert qsgd.sparse_code_bits(signed) <= 0.9 * bound
  assert np.count_nonzero(signed) <= qsgd.nonzeros_bound(n, levels)


def test_dense_code_takes_2_94_bits_on_gaussians():
  rng = np.random.default_rng(9)
  n = 102_400  # s = √n = 320
  _, signed = qsgd.code(rng.normal(size=n), 320, n, 'l2', rng.random(n))
  assert abs(qsgd.dense_code_bits(signed) / n - 2.94) < 0.01
  unary = (np.abs(signed) + 1 + (signed != 0)).sum() / n
  assert abs(unary - 2.43) < 0.01
  assert abs(qsgd.dense_code_bits(np.ones(1000, int)) / 1000 - 4) < 0.05


@pytest.mark.parametrize('n', [1, 2, 9, 10, 100])
def test_gradient_descent_variant(n):
  rng = np.random.default_rng(10)
  for v in (np.ones(n), rng.normal(size=n), rng.standard_cauchy(n)):
    chosen, sent = qsgd.gradient_descent(v)
    norm = np.linalg.norm(v)
    assert len(chosen) <= math.ceil(math.sqrt(n))
    assert np.abs(v[chosen]).sum() >= norm * (1 - 1e-9)
    checks.close(np.abs(sent[chosen]), norm)
    assert np.count_nonzero(sent) == len(chosen)
  assert len(qsgd.gradient_descent(np.ones(n))[0]) == math.ceil(math.sqrt(n))


@pytest.mark.parametrize('quantised', [False, True])
@pytest.mark.parametrize('num_workers', [1, 3, 8])
def test_qsvrg_theorem_3_6(quantised, num_workers):
  """Strongly convex quadratics: the error falls by 0.9 an epoch, or more."""
  rng = np.random.default_rng(11)
  m, n = 24, 16
  a, b = rng.uniform(1, 2, (m, n)), rng.normal(size=(m, n))
  best = (a * b).sum(0) / a.sum(0)

  def error(y):
    return float((a * ((y - b) ** 2 - (best - b) ** 2)).mean(0).sum() / 2)

  def gradient(j, x):
    return a[j] * (x - b[j])

  def quantise(v, t, w):
    del t, w
    return qsgd.quantise(v, 4, n, 'l2', rng.random(n))

  y = np.full(n, 3.0)
  checks.close(
    qsvrg.full_gradient(y, gradient, m, num_workers), (a * (y - b)).mean(0)
  )
  start = error(y)
  for p in range(1, 6):
    draws = rng.integers(m, size=(60, num_workers))
    y, iterates = qsvrg.epoch(
      y, gradient, m, draws, 0.05, quantise if quantised else None
    )
    assert len(iterates) == 61
    assert error(y) <= 0.9**p * start
