"""Schemes inside of optax's partition, MultiSteps and apply_if_finite."""

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay
from tests.replay import AXIS
from tests.replay import OWN
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import simulated

# --- parts of a tree --------------------------------------------------------


def partitioned(bias):
  return optax.partition(
    {'kernel': gs.gradient_dropping(0.1, axis_name=AXIS), 'bias': bias},
    {'kernel': 'kernel', 'bias': 'bias'},
  )


@pytest.mark.slow
def test_partition_gives_each_part_its_own_scheme():
  both = partitioned(gs.dense(axis_name=AXIS))
  gs.workers.specs(both, PARAMS, 2)
  state, step = simulated(both)
  alone = {'kernel': PARAMS['kernel']}
  tx = gs.gradient_dropping(0.1, axis_name=AXIS)
  alone_state, alone_step = simulated(tx, params=alone)
  for t in range(2):
    grads = gradients(seed=t)
    updates, state = step(grads, state)
    expected, alone_state = alone_step({'kernel': grads['kernel']}, alone_state)
    np.testing.assert_array_equal(updates['kernel'], expected['kernel'])
    mean = np.mean(grads['bias'], axis=0)
    np.testing.assert_allclose(updates['bias'][1], mean, rtol=1e-6)


def test_leaves_that_nobody_averages_are_an_error():
  for nobody in (optax.identity(), optax.sgd(0.1)):
    with pytest.raises(ValueError, match=r"\['bias'\].*gs.dense"):
      gs.workers.specs(partitioned(nobody), PARAMS, 2)
  with pytest.raises(ValueError, match='drift apart'):
    gs.workers.specs(optax.sgd(0.1), PARAMS, 2)


# --- steps that go wrong on one worker --------------------------------------


@pytest.mark.slow
def test_apply_if_finite_after_it_skips_a_step_on_all_workers_together():
  scheme = gs.dgc(0.1, min_size=0, axis_name=AXIS)
  tx = optax.chain(scheme, optax.apply_if_finite(optax.adam(0.1), 3))
  specs = gs.workers.specs(tx, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state),
    runner='shard_map',
    num_workers=2,
    in_specs=(specs, OWN),
    out_specs=(P(), specs),
  )
  _, state = fn(state, gradients(seed=0))
  before = jax.tree.map(np.asarray, state)
  poisoned = gradients(seed=1)
  poisoned['kernel'][1, 3, 4] = np.inf
  updates, state = fn(state, poisoned)

  chex.assert_trees_all_equal(updates, jax.tree.map(jnp.zeros_like, PARAMS))
  assert int(state[1].notfinite_count) == 1
  chex.assert_trees_all_equal(state[1].inner_state, before[1].inner_state)
  # The healthy worker keeps its gradient, the other what it had before.
  u, v = before[0].memory.momentum, before[0].memory.velocity
  for name in PARAMS:
    expected = v[name].copy()
    expected[0] += 0.9 * u[name][0] + poisoned[name][0]
    np.testing.assert_allclose(
      gs.pending(state)[name], expected, rtol=1e-5, atol=1e-6
    )
  updates, state = fn(state, gradients(seed=2))
  assert int(state[1].notfinite_count) == 0
  assert any(np.any(u) for u in jax.tree.leaves(updates))
  assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


# --- steps without an exchange ----------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['simulate', 'shard_map'])
@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_multi_steps_delivers_the_mean_of_several_gradients(runner):
  inner = optax.chain(gs.dgc(0.2, min_size=0, axis_name=AXIS), optax.sgd(1.0))
  tx = optax.MultiSteps(inner, every_k_schedule=2)
  specs = gs.workers.specs(tx, PARAMS, 2)
  assert specs.acc_grads == {'kernel': OWN, 'bias': OWN}
  assert specs.mini_step == P()
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state, PARAMS),
    runner=runner,
    num_workers=2,
    in_specs=(specs, OWN),
    out_specs=(P(), specs),
  )
  assert gs.plan(tx, PARAMS, 2) == gs.plan(inner, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  inner_state, inner_step = simulated(inner)
  for t in range(2):
    one, other = gradients(seed=2 * t), gradients(seed=2 * t + 1)
    updates, state = fn(state, one)
    chex.assert_trees_all_equal(updates, jax.tree.map(jnp.zeros_like, PARAMS))
    updates, state = fn(state, other)
    both = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    expected, inner_state = inner_step(both, inner_state)
    chex.assert_trees_all_close(
      updates, jax.tree.map(lambda x: x[0], expected), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_multi_steps_exchanges_on_every_mini_step():
  """What is outside of branches runs in every call, as without MultiSteps."""

  def audited(tx):
    specs = gs.workers.specs(tx, PARAMS, 2)
    fn = gs.workers.parallel(
      lambda state, g: tx.update(g, state, PARAMS),
      runner='shard_map',
      num_workers=2,
      in_specs=(specs, OWN),
      out_specs=(P(), specs),
    )
    state = gs.workers.init(tx, PARAMS, 2)
    lowered = fn.lower(state, gradients())
    return gs.audit(lowered.compile(replay.QUICKLY))

  inner = optax.chain(gs.dgc(0.1, axis_name=AXIS), optax.sgd(1.0))
  alone = audited(inner)
  several = audited(optax.MultiSteps(inner, every_k_schedule=3))
  sizes = lambda audit: sorted((c.kind, c.nbytes) for c in audit.collectives)
  assert [kind for kind, _ in sizes(alone)] == ['all_gather', 'all_reduce']
  assert sizes(several) == sizes(alone)
  assert several.branches == alone.branches == ()
  assert several.fixed_bytes == alone.fixed_bytes > 0
