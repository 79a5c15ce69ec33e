"""pending() and metrics(), wherever the scheme's state sits."""

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
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


def test_more_or_less_than_one_scheme_owes_no_tree():
  two = optax.chain(gs.dense(axis_name=None), gs.dgc(0.1, axis_name=None))
  with pytest.raises(ValueError, match='found 2'):
    gs.pending(two.init(PARAMS))
  gs.pending(two.init(PARAMS)[1])
  for read in (gs.pending, gs.metrics):
    with pytest.raises(ValueError, match='found 0'):
      read(optax.adam(0.1).init(PARAMS))


@pytest.mark.slow
def test_metrics_of_a_partition_are_those_of_its_parts_together():
  labels = {
    name: 'large' if p.ndim > 1 else 'small' for name, p in PARAMS.items()
  }
  tx = optax.partition(
    {
      'large': gs.gradient_dropping(0.1, axis_name=AXIS),
      'small': gs.random_k(0.5, memory=True, axis_name=AXIS),
    },
    labels,
  )
  state, step = simulated(tx)
  _, state = step(gradients(), state)
  whole = gs.metrics(state)
  parts = [gs.metrics(part) for part in state.inner_states.values()]
  plan = gs.plan(tx, PARAMS, 2)
  assert whole['sent_bytes'] == plan.sent_bytes
  assert whole['payload_bytes'] == plan.payload_bytes
  for name in ('sent_bytes', 'payload_bytes', 'sent_elements'):
    assert all(part[name] > 0 for part in parts)
    assert whole[name] == sum(part[name] for part in parts)
  norms = [float(part['residual_norm']) for part in parts]
  assert min(norms) > 0
  assert whole['residual_norm'] == pytest.approx(np.hypot(*norms))


@pytest.mark.slow
def test_metrics_of_two_levels_are_summed_as_in_the_plan():
  """Each part may have worker axes of its own."""
  axes = {'node': 2, 'device': 3}
  tx = optax.chain(
    gs.dense(axis_name='device'),
    gs.random_k(0.5, memory=True, axis_name='node'),
  )
  specs = gs.workers.specs(tx, PARAMS, axes)
  run = gs.workers.parallel(
    tx.update,
    runner='simulate',
    num_workers=axes,
    in_specs=(P('node', 'device'), specs),
    out_specs=(P(), specs),
  )
  grads = jax.tree.map(lambda g: g.reshape(2, 3, *g.shape[1:]), gradients(6))
  broken = jax.tree.map(lambda g: jnp.asarray(g).at[1, 2].set(np.nan), grads)
  _, state = run(broken, gs.workers.init(tx, PARAMS, axes))
  _, state = run(grads, state)
  plan, metrics = gs.plan(tx, PARAMS, axes), gs.metrics(state)
  assert metrics['sent_bytes'] == plan.sent_bytes
  assert metrics['payload_bytes'] == plan.payload_bytes
  assert metrics['rejected_steps'] == 1
  for part, axis in zip(state, ('device', 'node'), strict=True):
    assert gs.metrics(part)['sent_bytes'] == plan.over(axis).sent_bytes
  owed = np.concatenate(
    [x.reshape(2, -1) for x in jax.tree.leaves(gs.pending(state[1]))], axis=1
  )
  norm = np.mean(np.linalg.norm(owed, axis=1))
  assert metrics['residual_norm'] == pytest.approx(norm, rel=1e-5)


def test_bytes_are_exact_where_float32_is_not():
  # 2^26 + 4 bytes: float32 has 2^26 and 2^26 + 8.
  n = 2**24 + 1
  tx = gs.dense(axis_name=None)
  _, state = jax.jit(tx.update)(jnp.zeros(n), tx.init(jnp.zeros(n)))
  assert gs.metrics(state)['payload_bytes'] == 4 * n
  most = jnp.full(3, 2**32 - 1, jnp.uint32)
  stats = state.stats._replace(payload_bytes=most, sent_bytes=most - 4)
  stacked = state._replace(stats=stats)
  assert gs.metrics(stacked)['payload_bytes'] == 2**32 - 1
  assert gs.metrics(stacked)['sent_bytes'] == 2**32 - 5
  # Of two schemes, more than that: it does not wrap.
  assert gs.metrics((stacked, stacked))['sent_bytes'] == 2**32 - 1


def test_metrics_are_numbers_of_numpy_but_where_they_are_traced():
  tx = gs.gradient_dropping(0.1, axis_name=None)
  state = tx.init(PARAMS)
  outside, inside = gs.metrics(state), jax.jit(gs.metrics)(state)
  for name, x in outside.items():
    whole = name not in ('sent_elements', 'residual_norm')
    assert type(x) is (np.int64 if whole else np.float64), name
    assert isinstance(inside[name], jax.Array) and inside[name] == x


@pytest.mark.parametrize('read', [gs.metrics, gs.pending])
def test_a_state_that_was_donated_is_refused(read):
  tx = gs.gradient_dropping(0.5, axis_name=None)
  params = {'kernel': jnp.ones((4, 4))}
  old = tx.init(params)
  _, new = jax.jit(tx.update, donate_argnums=1)(params, old)
  read(new)
  with pytest.raises(ValueError, match='arrays, but they were donated'):
    read(old)
