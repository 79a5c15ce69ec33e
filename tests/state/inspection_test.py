"""pending() and metrics(), wherever the scheme's state sits."""

import chex
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests.replay import AXIS
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import mean_of
from tests.simulation import simulated


def test_pending_and_metrics_find_the_scheme_inside_a_chain():
  tx = optax.chain(
    gs.clip_local_norm(100.0, axis_name=AXIS),
    gs.gradient_dropping(0.1, axis_name=AXIS),
    optax.adam(1e-3),
  )
  state, step = simulated(tx)
  grads = gradients()
  updates, state = step(grads, state)
  pending = gs.pending(state)
  chex.assert_trees_all_equal_shapes_and_dtypes(pending, grads)
  chex.assert_trees_all_equal(pending, optax.tree.get(state, 'residual'))
  kept = {name: np.asarray(x != 0) for name, x in pending.items()}
  for name, x in pending.items():
    np.testing.assert_array_equal(x[kept[name]], grads[name][kept[name]])
  assert sum(k.sum() for k in kept.values()) == 2 * (131 - 14)

  metrics = gs.metrics(state)
  flat = np.concatenate([np.reshape(x, (2, -1)) for x in pending.values()], 1)
  norm = np.mean(np.linalg.norm(flat, axis=1))
  assert set(metrics) == {
    'payload_bytes',
    'sent_bytes',
    'sent_elements',
    'overflow_elements',
    'rejected_steps',
    'residual_norm',
  }
  assert metrics['sent_elements'] == 14
  plan = gs.plan(tx, PARAMS, 2)
  assert metrics['payload_bytes'] == plan.payload_bytes
  assert metrics['sent_bytes'] == plan.sent_bytes
  assert metrics['residual_norm'] == pytest.approx(norm, rel=1e-5)
  one = jax.tree.map(lambda x: x[0], state)
  chex.assert_trees_all_equal_shapes_and_dtypes(gs.pending(one), PARAMS)
  alone = np.linalg.norm(flat[0])
  assert gs.metrics(one)['residual_norm'] == pytest.approx(alone, rel=1e-5)


def test_a_scheme_without_memory_owes_zeros():
  tx = optax.chain(gs.qsgd(7, min_size=0, axis_name=None), optax.sgd(0.1))
  state = tx.init(PARAMS)
  chex.assert_trees_all_equal(gs.pending(state), PARAMS)
  _, state = jax.jit(tx.update)(mean_of(gradients()), state)
  chex.assert_trees_all_equal(jax.jit(gs.pending)(state), PARAMS)
  assert gs.metrics(state)['residual_norm'] == 0


@pytest.mark.parametrize('read', [gs.pending, gs.metrics])
def test_more_or_less_than_one_scheme_cannot_be_read(read):
  two = optax.chain(gs.dense(axis_name=None), gs.dgc(0.1, axis_name=None))
  with pytest.raises(ValueError, match='found 2'):
    read(two.init(PARAMS))
  with pytest.raises(ValueError, match='found 0'):
    read(optax.adam(0.1).init(PARAMS))
  read(two.init(PARAMS)[1])
