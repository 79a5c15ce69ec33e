"""EF21 worked by hand, and what the paper proves of it."""

import numpy as np
import pytest
from tests import marks
from tests.oracles import checks
from tests.oracles import ef21
from tests.oracles import leaves
from tests.oracles import sparse

WORKERS = marks.few(range(1, 9), 1, 3, 8)
SCOPES = ('leaf', 'global', 'chunk')


def make(density, scope, dense=()):
  return ef21.EF21(density, scope=scope, chunk_size=4, dense=dense)


def test_three_steps_by_hand():
  """Two workers, one of two elements sent."""
  oracle = ef21.EF21(0.5)
  # (gradients, messages, estimates, mean, pending), of workers 0 and 1.
  for gradients, messages, estimates, mean, pending in (
    (
      ([3, 1], [1, -2]),
      ([3, 0], [0, -2]),
      ([3, 0], [0, -2]),
      [1.5, -1],
      ([0, 1], [1, 0]),
    ),
    (
      ([3, -1], [2, -2]),
      ([0, -1], [2, 0]),
      ([3, -1], [2, -2]),
      [2.5, -1.5],
      ([0, 0], [0, 0]),
    ),
    # What is not sent is not owed: the 1 of worker 0 is the difference of
    # this step, whatever was left out before.
    (
      ([0, 0], [2, 0]),
      ([-3, 0], [0, 2]),
      ([0, -1], [2, 0]),
      [1, -0.5],
      ([0, 1], [0, 0]),
    ),
  ):
    (actual,) = oracle.step([[np.float32(g)] for g in gradients])
    np.testing.assert_array_equal(actual, mean)
    for w in range(2):
      np.testing.assert_array_equal(oracle.message[w][0], messages[w])
      np.testing.assert_array_equal(oracle.estimate[w][0], estimates[w])
      np.testing.assert_array_equal(oracle.pending[w][0], pending[w])


def test_ties_keep_the_lower_index():
  oracle = ef21.EF21(0.5)
  (mean,) = oracle.step([[np.float32([2, -2, 2, 2])]])
  np.testing.assert_array_equal(mean, [2, -2, 0, 0])


@pytest.mark.parametrize('num_workers', WORKERS)
@pytest.mark.parametrize('dense', [(), (1, 3)], ids=['all', 'some_dense'])
@pytest.mark.parametrize('scope', SCOPES)
def test_what_is_returned_is_the_mean_of_the_estimates(
  scope, dense, num_workers
):
  rng = np.random.default_rng(0)
  oracle = make(0.3, scope, dense)
  for _ in range(4):
    gradients = checks.draw(rng, num_workers)
    returned = oracle.step(gradients)
    estimates = leaves.worker_mean(oracle.estimate)
    exact = leaves.worker_mean(gradients)
    for leaf, x in enumerate(returned):
      checks.close(x, estimates[leaf])
      for w in range(num_workers):
        checks.close(
          gradients[w][leaf],
          oracle.estimate[w][leaf] + oracle.pending[w][leaf],
        )
      if leaf in dense:
        np.testing.assert_array_equal(x, exact[leaf])
        for tree in oracle.pending:
          assert not tree[leaf].any()


@pytest.mark.parametrize('scope', SCOPES)
def test_density_one_returns_the_exact_mean(scope):
  rng = np.random.default_rng(0)
  oracle = make(1.0, scope)
  for _ in range(4):
    gradients = checks.draw(rng, 3)
    returned = oracle.step(gradients)
    for leaf, exact in enumerate(leaves.worker_mean(gradients)):
      checks.close(returned[leaf], exact)
      for w in range(3):
        checks.close(oracle.pending[w][leaf], 0)


@pytest.mark.parametrize('scope', SCOPES)
def test_estimates_reach_a_constant_gradient(scope):
  """Each step sends the k largest that are not there yet, exactly."""
  gradients = checks.draw(np.random.default_rng(0), 3)
  oracle = make(0.25, scope)
  before = np.inf
  for _ in range(4):  # 1 / density
    returned = oracle.step(gradients)
    owed = sum(np.sum(x**2) for tree in oracle.pending for x in tree)
    assert owed < before
    before = owed
  assert owed == 0
  for leaf, exact in enumerate(leaves.worker_mean(gradients)):
    checks.close(returned[leaf], exact)
  # And there is nothing to send any more.
  again = oracle.step(gradients)
  assert not any(x.any() for tree in oracle.message for x in tree)
  for a, b in zip(again, returned, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('scope', SCOPES)
def test_a_message_is_a_contraction(scope):
  """|C(x) - x|^2 <= (1 - k / n) |x|^2, leaf by leaf or of all together."""
  rng = np.random.default_rng(0)
  density = 0.3
  oracle = make(density, scope)
  old = leaves.zeros(checks.draw(rng, 2))
  for _ in range(4):
    gradients = checks.draw(rng, 2)
    oracle.step(gradients)
    for w in range(2):
      differences = [g - e for g, e in zip(gradients[w], old[w], strict=True)]
      groups = sparse.groups(4, 'global' if scope == 'global' else 'leaf')
      for group in groups:
        x = sparse.join(differences, group)
        left = sparse.join(oracle.pending[w], group)
        assert np.sum(left**2) <= (1 - density) * np.sum(x**2) + 1e-6
    old = leaves.copy(oracle.estimate)


def test_the_estimate_forgets_what_error_feedback_would_pay_later():
  """A gradient that comes once leaves nothing behind."""
  oracle = ef21.EF21(0.5)
  oracle.step([[np.float32([4, 1])]])
  for _ in range(2):
    (mean,) = oracle.step([[np.float32([0, 0])]])
  np.testing.assert_array_equal(mean, [0, 0])
  np.testing.assert_array_equal(oracle.pending[0][0], [0, 0])
