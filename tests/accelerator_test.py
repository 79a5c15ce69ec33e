"""An accelerator does what its host does: where there is one.

  JAX_PLATFORMS=cuda,cpu python -m pytest -m slow tests/accelerator_test.py

Each setting runs four steps on three simulated workers, one of which has a NaN
in the third step; once on the accelerator, once on the CPUs beside it.
"""

import gradsparse as gs
import jax
import numpy as np
import pytest
from tests import runs
from tests import schemes

pytestmark = pytest.mark.slow
STEPS, WORKERS, POISONED = 4, 3, 2


def _run(setting, device):
  tx, params = setting.make(), setting.params
  step = runs.vmapped(tx)
  state = jax.device_put(gs.workers.stack(tx.init(params), WORKERS), device)
  seen = []
  for t in range(STEPS):
    grads = runs.gradients(params, WORKERS, seed=t)
    moments = runs.moments(grads, seed=100 + t)
    if t == POISONED:
      grads = runs.poison(grads)
    updates, state, delivered = step(
      *jax.device_put((grads, state, moments), device)
    )
    seen.append(jax.device_get((updates, delivered, state)))
  return seen


@pytest.mark.parametrize('setting', schemes.SETTINGS, ids=lambda s: s.name)
def test_updates_and_states_are_those_of_the_host(setting):
  """Sums in another order differ in their last bits; a selection does not.

  Matrix units round the factors of PowerSGD's products.
  """
  if jax.default_backend() == 'cpu':
    pytest.skip('no accelerator')
  with jax.default_device(host := jax.devices('cpu')[0]):
    expected = _run(setting, host)
  found = _run(setting, jax.devices()[0])
  most = 2e-3 if setting.name == 'power_sgd' else 2e-6

  def same(own, its):
    own, its = np.asarray(own), np.asarray(its)
    if own.dtype.kind in 'iub':
      np.testing.assert_array_equal(own, its)
      return
    own, its = own.astype(np.float64), its.astype(np.float64)
    scale = np.max(np.abs(own), initial=0, where=np.isfinite(own))
    np.testing.assert_allclose(own, its, rtol=0, atol=most * scale)

  jax.tree.map(same, found, expected)
