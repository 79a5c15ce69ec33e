"""The laws over all oracles, and worked examples of the small ones."""

import itertools
import math

import numpy as np
import pytest
from tests import marks
from tests.oracles import ada_comp
from tests.oracles import checks
from tests.oracles import dgc
from tests.oracles import dryden
from tests.oracles import gradient_dropping
from tests.oracles import gtopk
from tests.oracles import leaves
from tests.oracles import local_gradient
from tests.oracles import one_bit
from tests.oracles import power_sgd
from tests.oracles import qsgd
from tests.oracles import random_k
from tests.oracles import reduce_scatter
from tests.oracles import sign_majority
from tests.oracles import sparse
from tests.oracles import strom
from tests.oracles import terngrad
from tests.oracles import variance

WORKERS = marks.few(range(1, 9), 1, 3, 8)


def _initial_q(rng):
  return [
    rng.normal(size=(s[-1], 2)) if len(s) > 1 else None for s in checks.SHAPES
  ]


# name -> (dense leaves -> oracle). The second dictionary has no memory.
WITH_MEMORY = {
  'dropping': lambda d: gradient_dropping.GradientDropping(0.1, dense=d),
  'dropping_leaf': lambda d: gradient_dropping.GradientDropping(
    0.1, scope='leaf', dense=d
  ),
  'dropping_chunk': lambda d: gradient_dropping.GradientDropping(
    0.3, scope='chunk', chunk_size=4, dense=d
  ),
  'gtopk_butterfly': lambda d: gtopk.GTopK(0.1, dense=d),
  'gtopk_tree': lambda d: gtopk.GTopK(0.1, topology='tree', dense=d),
  'gtopk_fold': lambda d: gtopk.GTopK(
    0.1, topology='tree', odd='fold', dense=d
  ),
  'gtopk_allgather': lambda d: gtopk.GTopK(0.1, topology='allgather', dense=d),
  'gtopk_leaf': lambda d: gtopk.GTopK(0.2, scope='leaf', dense=d),
  'strom': lambda d: strom.Strom(0.5, dense=d),
  'variance': lambda d: variance.VarianceBased(2.0, dense=d),
  'variance_float32': lambda d: variance.VarianceBased(
    2.0, values='float32', dense=d
  ),
  'variance_strom': lambda d: variance.VarianceStrom(
    2.0, threshold=0.5, dense=d
  ),
  'one_bit': lambda d: one_bit.OneBit(dense=d),
  'one_bit_scatter': lambda d: reduce_scatter.OneBit(bucket_size=4, dense=d),
  'sign_memory': lambda d: sign_majority.SignMajority(memory=True, dense=d),
  'dryden': lambda d: dryden.Dryden(0.1, dense=d),
  'ada_comp': lambda d: ada_comp.AdaComp(bin_size=4, dense=d),
  'random_k_memory': lambda d: random_k.RandomK(memory=True, dense=d),
  'power_sgd': lambda d: power_sgd.PowerSGD(
    2, _initial_q(np.random.default_rng(7)), dense=d
  ),
}
WITHOUT_MEMORY = {
  'qsgd': lambda d: qsgd.QSGD(3, bucket_size=4, dense=d),
  'qsgd_l2': lambda d: qsgd.QSGD(3, bucket_size=4, norm='l2', dense=d),
  'terngrad': lambda d: terngrad.TernGrad(dense=d),
  'sign': lambda d: sign_majority.SignMajority(dense=d),
  'random_k': lambda d: random_k.RandomK(dense=d),
}


def _step(oracle, gradients, rng):
  """A step with whatever else the scheme wants."""
  if isinstance(oracle, qsgd.QSGD | terngrad.TernGrad):
    return oracle.step(
      gradients, checks.draw(rng, len(gradients), lambda s: rng.random(s))
    )
  if isinstance(oracle, variance.VarianceBased | variance.VarianceStrom):
    squares = [[rng.random(x.shape) * x**2 for x in tree] for tree in gradients]
    return oracle.step(gradients, squares)
  if isinstance(oracle, random_k.RandomK):
    return oracle.step(
      gradients,
      [
        rng.choice(math.prod(s), size=min(3, math.prod(s)), replace=False)
        for s in checks.SHAPES
      ],
    )
  return oracle.step(gradients)


def _sums_to_mean(oracle, mean, num_workers):
  for leaf in range(len(checks.SHAPES)):
    total = sum(oracle.delivered[w][leaf] for w in range(num_workers))
    checks.close(total, num_workers * np.asarray(mean[leaf]))


@pytest.mark.parametrize('num_workers', WORKERS)
@pytest.mark.parametrize('dense', [(), (1, 3)], ids=['all', 'some_dense'])
@pytest.mark.parametrize('name', WITH_MEMORY)
def test_nothing_is_lost(name, dense, num_workers):
  rng = np.random.default_rng(0)
  oracle = WITH_MEMORY[name](dense)
  old = leaves.zeros(checks.draw(rng, num_workers))
  for _ in range(4):
    gradients = checks.draw(rng, num_workers)
    mean = _step(oracle, gradients, rng)
    _sums_to_mean(oracle, mean, num_workers)
    for w in range(num_workers):
      for leaf in range(len(checks.SHAPES)):
        checks.close(
          old[w][leaf] + gradients[w][leaf],
          oracle.delivered[w][leaf] + oracle.pending[w][leaf],
        )
        if leaf in dense:
          np.testing.assert_array_equal(
            oracle.delivered[w][leaf], gradients[w][leaf]
          )
    old = leaves.copy(oracle.pending)


@pytest.mark.parametrize('num_workers', WORKERS)
@pytest.mark.parametrize('name', WITHOUT_MEMORY)
def test_without_memory_owes_nothing(name, num_workers):
  rng = np.random.default_rng(0)
  oracle = WITHOUT_MEMORY[name]((1,))
  for _ in range(2):
    gradients = checks.draw(rng, num_workers)
    mean = _step(oracle, gradients, rng)
    _sums_to_mean(oracle, mean, num_workers)
    assert all(not leaf.any() for tree in oracle.pending for leaf in tree)


@pytest.mark.parametrize('num_workers', WORKERS)
@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('factor_masking', [False, True])
@pytest.mark.parametrize('scope', ['leaf', 'chunk'])
def test_dgc_loses_no_inflow(scope, nesterov, factor_masking, num_workers):
  rng = np.random.default_rng(0)
  oracle = dgc.DeepGradientCompression(
    0.1,
    nesterov=nesterov,
    factor_masking=factor_masking,
    scope=scope,
    chunk_size=4,
    dense=(1, 2),
  )
  old = leaves.zeros(checks.draw(rng, num_workers))
  for _ in range(4):
    mean = oracle.step(checks.draw(rng, num_workers))
    _sums_to_mean(oracle, mean, num_workers)
    for w, leaf in itertools.product(
      range(num_workers), range(len(checks.SHAPES))
    ):
      checks.close(
        old[w][leaf] + oracle.inflow[w][leaf],
        oracle.delivered[w][leaf] + oracle.v[w][leaf],
      )
    old = leaves.copy(oracle.v)


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('factor_masking', [False, True])
def test_dgc_at_density_one(nesterov, factor_masking):
  """Momentum SGD without masking; with it plain SGD, but on dense leaves."""
  rng = np.random.default_rng(1)
  oracle = dgc.DeepGradientCompression(
    1.0, nesterov=nesterov, factor_masking=factor_masking, dense=(1,)
  )
  u = [np.zeros(s) for s in checks.SHAPES]
  for _ in range(4):
    gradients = checks.draw(rng, 3)
    means = leaves.worker_mean(gradients)
    actual = oracle.step(gradients)
    for leaf, g in enumerate(means):
      if factor_masking and leaf != 1:
        # Eq. 10 with u = 0 gives m·g + g.
        expected = 1.9 * g if nesterov else g
      elif nesterov:
        u[leaf] = 0.9 * (u[leaf] + g)
        expected = u[leaf] + g
      else:
        u[leaf] = 0.9 * u[leaf] + g
        expected = u[leaf]
      checks.close(actual[leaf], expected)


def test_clipping_example():
  """P = 4 and threshold 0.25 clip the gradient of the mean loss at 0.5."""
  gradients = [[np.float32([3.0]), np.float32([[4.0]])]] * 4
  (first, second), *_ = dgc.clip_local_norm(gradients, 0.25)
  checks.close([first.item(), second.item()], [0.3, 0.4])
  same = dgc.clip_local_norm([[np.float32([0.2])]] * 4, 0.25)
  checks.close(same[0][0], [0.2])


def test_top_k_ties_and_scope():
  assert sparse.top_k(np.float32([2, -2, 2, 5]), 3) == [0, 1, 3]
  tree = [np.float32([1, 4]), np.float32([3, 2, 5, 0])]
  both = gradient_dropping.GradientDropping(0.5)
  both.step([tree])
  assert both.sent == [[(0, 1), (1, 0), (1, 2)]]
  each = gradient_dropping.GradientDropping(0.5, scope='leaf')
  each.step([tree])
  assert each.sent == [[(0, 1), (1, 0), (1, 2)]]
  both.density = 1.0
  both.step([tree])
  assert not any(leaf.any() for leaf in both.pending[0])


@pytest.mark.parametrize('num_workers', WORKERS)
def test_local_gradient_modes(num_workers):
  rng = np.random.default_rng(12)
  gradients = checks.draw(rng, num_workers)
  out = {}
  for mode in ('sum', 'partial', 'error'):
    inner = gradient_dropping.GradientDropping(0.1)
    oracle = local_gradient.LocalGradient(inner, mode)
    out[mode] = oracle.step(gradients)
  # Paper: ERROR is PARTIAL without error feedback, so the same from zero.
  for w, leaf in itertools.product(
    range(num_workers), range(len(checks.SHAPES))
  ):
    checks.close(out['error'][w][leaf], out['partial'][w][leaf])
    if num_workers == 1:
      checks.close(out['partial'][w][leaf], gradients[w][leaf])
    # The sums of the paper, by its own letters.
    big_g = num_workers * oracle.mean[leaf]
    checks.close(
      num_workers * out['sum'][w][leaf], (big_g + gradients[w][leaf]) / 2
    )
  assert not any(leaf.any() for tree in oracle.pending for leaf in tree)


def test_one_bit_columns():
  oracle = one_bit.OneBit()
  mean = oracle.step(
    [[np.float32([-1, -3, 2, 4]), np.float32([[1, -1], [3, 0], [-2, -3]])]]
  )
  checks.close(mean[0], [-2, -2, 3, 3])
  checks.close(mean[1], [[2, -2], [2, 0], [-2, -2]])
  checks.close(oracle.r[0][0], [1, -1, -1, 1])


def test_one_bit_rounds_the_mean_again_and_keeps_the_loss():
  oracle = reduce_scatter.OneBit(bucket_size=2)
  workers = [[np.float32([1, 3, 5])], [np.float32([1, -2, -1])]]
  # Parts are (0, 1) and (2,). Worker 0 rounds 1, 3 to 2, 2; the sum is 3, 0.
  mean = oracle.step(workers)
  checks.close(mean[0], [0.75, 0.75, 2])
  checks.close(oracle.e, [[1.5, -1.5, 0], [0, 0, 0]])
  checks.close(oracle.pending[0][0], [-1 + 1.5, 1 - 1.5, 0])
  checks.close(oracle.delivered[0][0], [0.5, 3.5, 5])
  checks.close(oracle.delivered[1][0], [1, -2, -1])
  # 1 + 1.5 and 1 - 1.5: the residuals come out.
  mean = oracle.step([[np.zeros(3, np.float32)]] * 2)
  checks.close(mean[0], [0.25, -0.25, 0])


def test_terngrad():
  rng = np.random.default_rng(13)
  g = [[rng.normal(0.3, 1, 40).astype(np.float32)] for _ in range(3)]
  g[1][0][7] = 50.0
  oracle = terngrad.TernGrad()
  grid = (np.arange(400) + 0.5) / 400
  means = [oracle.step(g, [[np.full(40, u)]] * 3)[0] for u in grid]
  sigma = g[1][0].astype(np.float64).std()
  checks.close(oracle.clipped[1][0].max(), 2.5 * sigma)
  checks.close(oracle.scales[0], 2.5 * sigma)
  expected = leaves.worker_mean(oracle.clipped)[0]
  np.testing.assert_allclose(np.mean(means, 0), expected, atol=0.1)
  integers = np.asarray(means) * 3 / oracle.scales[0]
  checks.close(integers, np.round(integers))
  # σ = 0: the rule sends nothing.
  assert not terngrad.clip(np.float32([5.0]), 2.5).any()


def test_sign_majority_ties():
  oracle = sign_majority.SignMajority(scale=0.5)
  mean = oracle.step(
    [[np.float32([1, -1, 0, -2])], [np.float32([-1, -1, -3, 1])]]
  )
  checks.close(mean[0], [0.5, -0.5, 0.5, 0.5])


def test_dryden_counts_each_sign():
  oracle = dryden.Dryden(0.4)  # k = 2 of 5, for each sign
  mean = oracle.step([[np.float32([5, 1, 3, -2, 0])]])
  checks.close(mean[0], [4, 0, 4, -2, 0])
  checks.close(oracle.r[0][0], [1, 1, -1, 0, 0])


def test_ada_comp_bins():
  oracle = ada_comp.AdaComp(bin_size=2)
  mean = oracle.step([[np.float32([4, -3, 1, 0.4, 0])]])
  # G = g, H = 2g: -3 rivals 4; maxima 4, 1, 0, mean 5/3; 0 has no sign.
  value = 5 / 3
  checks.close(mean[0], [value, -value, value, 0, 0])
  assert [
    ada_comp.default_bin_size(s) for s in ((3, 3, 1, 8), (4, 4), (5,))
  ] == [50, 500, 500]


def test_random_k_is_unbiased_over_all_draws():
  g = np.float32([1, -2, 3, 4])
  draws = list(itertools.combinations(range(4), 2))
  means = [random_k.RandomK().step([[g]], [c])[0] for c in draws]
  checks.close(np.mean(means, 0), g)


def test_power_sgd():
  rng = np.random.default_rng(14)
  gradients = [
    [rng.normal(size=(2, 3, 4)), rng.normal(size=(5, 4)), rng.normal(size=3)]
    for _ in range(3)
  ]
  means = [np.mean([g[leaf] for g in gradients], 0) for leaf in range(3)]
  q = [rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), None]
  full = power_sgd.PowerSGD(4, q)
  for actual, expected in zip(full.step(gradients), means, strict=True):
    checks.close(actual, expected)
  # Signs and basis of Q are free; equal shapes keep their own Q.
  turn = np.array([[0.6, 0.8], [0.8, -0.6]])
  one = power_sgd.PowerSGD(2, [x if x is None else x[:, :2] for x in q])
  two = power_sgd.PowerSGD(2, [x if x is None else x[:, :2] @ turn for x in q])
  for _ in range(3):
    first, second = one.step(gradients), two.step(gradients)
    for leaf in range(3):
      checks.close(first[leaf], second[leaf])
      if leaf < 2:
        checks.close(first[leaf], one.approximation[leaf])
        checks.close(one.p_hat[leaf].T @ one.p_hat[leaf], np.eye(2))
  # From zero memory one power iteration after another nears the best rank 2.
  best = power_sgd.PowerSGD(2, one.q)
  for _ in range(30):
    best.pending = None
    approximation = best.step(gradients)[1]
  u, s, vt = np.linalg.svd(means[1])
  np.testing.assert_allclose(
    approximation, (u[:, :2] * s[:2]) @ vt[:2], atol=1e-2
  )
