"""Variance-based compression: the 4-bit code, the criterion, its moments."""

import numpy as np
from tests.oracles import checks
from tests.oracles import moments
from tests.oracles import variance


def test_variance_appendix_b():
  top, magnitudes, distances, decoded = variance.exponent4(
    [0.04, 0.31, -6.25, 22.25, -35.75]
  )
  assert top == 5
  assert magnitudes == [2**-5, 0.25, 8, 16, 32]
  assert distances == [10, 7, 2, 1, 0]
  assert decoded == [0, 0.25, -8, 16, -32]


def test_exponent4_rounds_as_the_bit_trick():
  """Add one to the top mantissa bit, mask the mantissa, minimum with 2^e_M."""
  rng = np.random.default_rng(4)
  x = np.float32(np.exp2(rng.uniform(-6, 6, 1000)))
  x[:4] = 1.5, 3.0, np.nextafter(np.float32(3), np.float32(0)), 48.0
  bits = (x.view(np.uint32) + (1 << 22)) & ~np.uint32((1 << 23) - 1)
  trick = np.minimum(bits.view(np.float32), 2.0**5)
  assert variance.exponent4(x)[1] == trick.tolist()


def test_variance_keep_and_paper():
  g, square = np.float32([4, 3.5, 0.01, 1]), np.float32([1, 1, 0, 9])
  keep = variance.VarianceBased(1.0, decay=0.5)
  paper = variance.VarianceBased(1.0, decay=0.5, rounding='paper')
  for oracle in (keep, paper):
    # 3.5 rounds to 4; 0.01 passes with d = 9; 1 is ambiguous.
    checks.close(oracle.step([[g]], [[square]])[0], [4, 4, 0, 0])
    assert oracle.sent == [[(0, 0), (0, 1)]]
  checks.close(keep.r[0][0], [0, -0.5, 0.01, 1])
  checks.close(keep.v[0][0], [0, 0, 0, 4.5])
  checks.close(paper.r[0][0], [0, 0, 0, 1])
  checks.close(paper.v[0][0], [0, 0, 0, 4.5])


def test_hybrid_corrects_the_squares():
  hybrid = variance.VarianceStrom(1.0, threshold=0.5, decay=0.5)
  mean = hybrid.step(
    [[np.float32([2, -2, 2, 0.4])]], [[np.float32([3, 3, 5, 0])]]
  )
  checks.close(mean[0], [0.5, -0.5, 0, 0])
  checks.close(hybrid.r[0][0], [1.5, -1.5, 2, 0.4])
  checks.close(hybrid.v[0][0], [0.625, 0.625, 2.5, 0])  # (3 - 2 + 1/4)/2


def test_moments():
  rng = np.random.default_rng(5)
  per_example = rng.normal(1.0, 2.0, (8, 3))
  checks.close(moments.unbiased(per_example, 8), moments.exact(per_example))
  trials = [rng.normal(1.0, 2.0, (8, 1)) for _ in range(20_000)]
  estimates = [
    [
      moments.unbiased(t.reshape(4, 2, 1).mean(1), 8).item(),
      moments.plain(t.reshape(4, 2, 1).mean(1)).item(),
    ]
    for t in trials
  ]
  unbiased, plain = np.mean(estimates, axis=0)
  assert abs(unbiased - 5 / 8) < 0.01  # (σ² + μ²)/B
  assert abs(plain - (4 / 8 + 1 / 4)) < 0.01  # σ²/B + μ²/M
  a, d = rng.normal(size=(8, 3)), rng.normal(size=(8, 2))
  outer = np.einsum('zi,zj->zij', a, d)
  checks.close(moments.dense_layer(a, d), (outer**2).sum(0))
  # Eq. 1 and eq. 3 are one criterion.
  r2 = per_example.mean(0) ** 2
  eq1 = 1.5 / 8 * per_example.var(0, ddof=1)
  eq3 = moments.alpha_of_eq3(1.5, 8) * moments.exact(per_example)
  np.testing.assert_array_equal(r2 > eq1, r2 > eq3)
  checks.close((r2 - eq1) * (7 / (7 + 1.5)), r2 - eq3)
