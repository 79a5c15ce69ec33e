"""Worked examples: what the drawn gradients of oracles do not reach."""

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay


def one_step(tx, *workers, moments=None):
  """The one step of workers that have one leaf each."""
  grads = [[np.float32(g)] for g in workers]
  if moments is None:
    moments = grads
  else:
    moments = [[np.float32(m)] for m in moments]
  (step,) = replay.replay(tx, [(grads, moments)])
  return step


def test_sign_majority_ties_and_zeros_are_positive():
  step = one_step(
    gs.sign_majority(axis_name=replay.AXIS, memory=True),
    [2.0, -2.0, -2.0, 0.0, -1.0],
    [-3.0, -3.0, 0.0, 0.0, 3.0],
  )
  np.testing.assert_array_equal(step.mean[0], [1, -1, 1, 1, 1])
  np.testing.assert_array_equal(step.pending[0][0], [1, -1, -3, -1, -2])
  np.testing.assert_array_equal(step.pending[1][0], [-4, -2, -1, -1, 2])


@pytest.mark.parametrize('alpha', marks.few([0.25, 4.0], 0.25))
def test_variance_based_forgets_what_it_sent_exactly(alpha):
  """The paper's r <- 0, v <- 0, for alpha under 1 too; the rest decays."""
  tx = gs.variance_based(
    alpha, values='float32', decay=0.5, ladder=(1.0,), axis_name=replay.AXIS
  )
  r = [1.0, -2.0, 0.5, 0.0]
  # For the small alpha, v is larger than r^2 where r is sent.
  v = np.float32([0.8, 0.9 * 4, 1.5 * 0.25, 0.0]) / np.float32(alpha)
  step = one_step(tx, r, r, moments=[v, v])
  np.testing.assert_array_equal(step.delivered[0][0], [1, -2, 0, 0])
  np.testing.assert_array_equal(step.pending[0][0], [0, 0, 0.5, 0])
  np.testing.assert_array_equal(
    step.state.memory.variance[0][0], [0, 0, v[2] / 2, 0]
  )


@pytest.mark.parametrize(
  'rounding, owed, variance',
  [
    # 2^-5: d would be 10, an empty slot. 1/4: exact. -6.25 -> -8. 22.25 ->
    # 16. -35.75 is clipped to 2^5.
    (
      'keep',
      [0.04, 0.06, 1.75, 6.25, -3.75],
      [0.0, 0.0036, 3.0625, 39.0625, 14.0625],
    ),
    pytest.param('paper', [0] * 5, [0] * 5, marks=pytest.mark.slow),
  ],
)
def test_variance_based_sends_the_papers_example(rounding, owed, variance):
  """Appendix B. v is zero, so that it becomes the square of the rounding."""
  tx = gs.variance_based(
    1.0, rounding=rounding, decay=1.0, ladder=(1.0,), axis_name=replay.AXIS
  )
  r = [0.04, 0.31, -6.25, 22.25, -35.75]
  squares = np.square(r) * 0.999
  step = one_step(tx, r, r, moments=[squares, squares])
  sent = [0.0, 0.25, -8.0, 16.0, -32.0]
  np.testing.assert_array_equal(step.delivered[0][0], sent)
  np.testing.assert_allclose(step.pending[0][0], owed, rtol=1e-5)
  if rounding == 'paper':
    np.testing.assert_array_equal(step.state.memory.variance[0][0], 0)
  else:
    kept = squares - 2 * np.multiply(r, sent) + np.square(sent)
    np.testing.assert_allclose(
      step.state.memory.variance[0][0], np.maximum(kept, 0), rtol=1e-4
    )


def test_one_bit_sgd_of_a_column_of_one_sign():
  step = one_step(
    gs.one_bit_sgd(axis_name=replay.AXIS),
    [[1.0, -1.0], [3.0, -4.0], [0.0, -1.0]],
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]],
  )
  expected = np.tile(np.float32([4 / 3, -2]), (3, 1))
  np.testing.assert_allclose(step.delivered[0][0], expected, rtol=1e-6)
  np.testing.assert_allclose(step.mean[0], expected / 2, rtol=1e-6)


def test_terngrad_of_equal_numbers_sends_them():
  """They have no deviation to clip at; the published rule sends nothing."""
  tx = gs.terngrad(axis_name=replay.AXIS, min_size=0)
  step = one_step(tx, [0.5, 0.5, 0.5], [-0.25, -0.25, -0.25])
  np.testing.assert_array_equal(step.delivered[0][0], 0.5)
  assert set(np.unique(step.delivered[1][0])) <= {-0.5, 0.0}


@pytest.mark.slow
def test_terngrad_of_numbers_equal_but_for_rounding_sends_them():
  tx = gs.terngrad(axis_name=None, min_size=0)
  grads = jnp.full(5000, 0.3).at[17].set(np.nextafter(np.float32(0.3), 1))
  np.testing.assert_allclose(tx.update(grads, tx.init(grads))[0], 0.3, 1e-6)


@pytest.mark.parametrize('number', marks.few([0.07, 0.3, 1e19], 0.3))
def test_terngrad_of_many_equal_numbers_sends_them(number):
  """Also as optimised code, where a product and a sum are one operation."""
  tx = gs.terngrad(axis_name=None, min_size=0)
  grads = jnp.full(5000, number, jnp.float32)
  step = jax.jit(tx.update).lower(grads, tx.init(grads))
  updates, _ = step.compile({'xla_backend_optimization_level': 3})(
    grads, tx.init(grads)
  )
  np.testing.assert_array_equal(updates, grads)
