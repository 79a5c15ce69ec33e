"""EF21-SGDM is EF21 of an average."""

import numpy as np
import pytest
from tests.between_sites.oracles import ef21_sgdm
from tests.between_sites.oracles import walks
from tests.oracles import checks
from tests.oracles import ef21
from tests.oracles import leaves


@pytest.mark.parametrize('num_workers', walks.WORKERS)
@pytest.mark.parametrize('first', ['gradient', 'zero'])
def test_weight_one_is_ef21(first, num_workers):
  rng = np.random.default_rng(0)
  oracle = ef21_sgdm.EF21SGDM(0.3, momentum=1.0, first=first, dense=(1,))
  plain = ef21.EF21(0.3, dense=(1,))
  for _ in range(5):
    gradients = checks.draw(rng, num_workers)
    walks.same([oracle.step(gradients)], [plain.step(gradients)])
    walks.same(oracle.estimate, plain.estimate)


def test_three_steps_by_hand():
  """One worker, one of two elements; a quarter of the new gradient."""
  oracle = ef21_sgdm.EF21SGDM(0.5, momentum=0.25)
  for g, v, message, estimate in (
    ([4, 8], [4, 8], [0, 8], [0, 8]),
    ([8, 8], [5, 8], [5, 0], [5, 8]),
    # v - h = [-1.25, -3].
    ([0, -4], [3.75, 5], [0, -3], [5, 5]),
  ):
    (actual,) = oracle.step([[np.float32(g)]])
    np.testing.assert_array_equal(oracle.v[0][0], v)
    np.testing.assert_array_equal(oracle.message[0][0], message)
    np.testing.assert_array_equal(actual, estimate)


@pytest.mark.parametrize('first', ['gradient', 'zero'])
@pytest.mark.parametrize('density', [0.3, 1.0])
def test_what_is_returned_is_the_mean_of_the_estimates(density, first):
  rng = np.random.default_rng(1)
  oracle = ef21_sgdm.EF21SGDM(density, momentum=0.1, first=first, dense=(3,))
  v = None
  for _ in range(5):
    gradients = checks.draw(rng, 3)
    if v is None:
      v = gradients if first == 'gradient' else leaves.zeros(gradients)
    v = [
      [0.9 * x + 0.1 * g for x, g in zip(*pair, strict=True)]
      for pair in zip(v, gradients, strict=True)
    ]
    returned = oracle.step(gradients)
    walks.near(oracle.v, v)
    walks.near([returned], [leaves.worker_mean(oracle.estimate)])
    checks.close(returned[3], leaves.worker_mean(leaves.copy(v))[3])
    for w in range(3):
      for leaf in range(4):
        checks.close(
          v[w][leaf], oracle.estimate[w][leaf] + oracle.pending[w][leaf]
        )
    if density == 1:
      walks.near([returned], [leaves.worker_mean(leaves.copy(v))])


@pytest.mark.parametrize('options', [{'momentum': 0.0}, {'first': 'half'}])
def test_refuses(options):
  with pytest.raises(ValueError):
    ef21_sgdm.EF21SGDM(0.5, **options)
