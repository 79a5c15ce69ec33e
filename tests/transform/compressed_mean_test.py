"""One scheme as an optax transformation: its axis, odd trees, its sockets."""

import chex
import gradsparse as gs
from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests.replay import AXIS
from tests.replay import OWN
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import mean_of
from tests.simulation import quickly
from tests.simulation import simulated

# --- the silent sum ---------------------------------------------------------


def training_step(tx, local):
  def step(params, state, batch):
    own = gs.workers.local(params) if local else params
    loss = lambda p: jnp.mean((batch @ p['kernel'] - 1) ** 2) + sum(p['bias'])
    updates, state = tx.update(jax.grad(loss)(own), state, params)
    return optax.apply_updates(params, updates), state

  return step


def trace(tx, runner, *, local):
  specs = gs.workers.specs(tx, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  step = training_step(tx, local)
  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=2,
    in_specs=(P(), specs, OWN),
    out_specs=(P(), specs),
  )
  return fn.lower(PARAMS, state, jnp.ones((2, 3, 12)))


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
@pytest.mark.parametrize(
  'tx',
  [
    gs.dense(axis_name=AXIS),
    optax.chain(optax.clip(1.0), gs.dgc(0.1, axis_name=AXIS), optax.sgd(0.1)),
  ],
)
def test_gradients_that_jax_has_summed_already_are_refused(tx, runner):
  with pytest.raises(ValueError) as e:
    trace(tx, runner, local=False)
  for said in ("['bias']", 'already summed', "'workers'", 'gs.workers.local'):
    assert said in str(e.value)


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_local_gradients_are_taken_under_every_runner(runner):
  trace(gs.dense(axis_name=AXIS), runner, local=True)


def test_an_axis_that_does_not_exist_is_a_name_error():
  for tx in (gs.dense(axis_name='nodes'), gs.dgc(0.1, axis_name='nodes')):
    with pytest.raises(NameError, match='nodes'):
      tx.update(PARAMS, tx.init(PARAMS))
    with pytest.raises(NameError, match='nodes'):
      jax.vmap(lambda g, tx=tx: tx.update(g, tx.init(PARAMS)), axis_name=AXIS)(
        gradients()
      )


def test_no_axis_is_one_worker_and_forgetting_it_is_a_type_error():
  with pytest.raises(TypeError, match='axis_name'):
    gs.dgc(0.1)
  grads = mean_of(gradients())
  tx = gs.dense(axis_name=None)
  updates, _ = tx.update(grads, tx.init(PARAMS))
  chex.assert_trees_all_equal(updates, grads)


# --- odd trees --------------------------------------------------------------

SCHEMES = {
  'dense': lambda a: gs.dense(axis_name=a),
  'dense_bfloat16': lambda a: gs.dense(wire_dtype='bfloat16', axis_name=a),
  'dgc': lambda a: gs.dgc(0.1, min_size=0, axis_name=a),
  'gtopk': lambda a: gs.gtopk(0.1, axis_name=a),
  'qsgd': lambda a: gs.qsgd(127, min_size=0, axis_name=a),
  'qsgd_scatter': lambda a: gs.qsgd(
    127, min_size=0, exchange='reduce_scatter', axis_name=a
  ),
}


@pytest.mark.parametrize('name', marks.few(SCHEMES, 'dgc'))
def test_scalars_empty_leaves_and_nones_keep_their_places(name):
  params = {
    'scalar': jnp.zeros(()),
    'empty': jnp.zeros((0, 3)),
    'nothing': None,
    'list': [jnp.zeros(3), (), jnp.zeros((1, 2))],
  }
  tx = SCHEMES[name](AXIS)
  state, step = simulated(tx, params=params)
  updates, state = step(gradients(params=params), state)
  assert jax.tree.structure(updates) == jax.tree.structure(params)
  for update, param in zip(
    *map(jax.tree.leaves, (updates, params)), strict=True
  ):
    assert update.shape == (2, *param.shape)
  assert any(np.any(update) for update in jax.tree.leaves(updates))
  alone = SCHEMES[name](None)
  update = quickly(alone.update, jnp.float32(2.0), alone.init(jnp.zeros(())))
  assert update(jnp.float32(2.0), alone.init(jnp.zeros(())))[0] == 2.0


@pytest.mark.parametrize('name', marks.few(SCHEMES, 'dense'))
def test_updates_have_the_dtype_of_the_gradients_and_memories_are_float32(name):
  tx = SCHEMES[name](AXIS)
  params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
  state, step = simulated(tx, params=params, dtype=jnp.bfloat16)
  grads = gradients(dtype=jnp.bfloat16)
  updates, state = step(grads, state)
  chex.assert_type(jax.tree.leaves(updates), jnp.bfloat16)
  chex.assert_type(jax.tree.leaves(state.memory), jnp.float32)
  chex.assert_type(jax.tree.leaves(gs.pending(state)), jnp.float32)
  if name == 'dense':
    mean = np.mean(np.asarray(grads['bias'], np.float32), axis=0)
    np.testing.assert_allclose(
      np.asarray(updates['bias'][0], np.float32), mean, rtol=2**-8
    )


def test_dense_paths_keep_leaves_out_of_the_message():
  for rule in ('bias$|kern', lambda path: 'kernel' in path):
    tx = gs.gradient_dropping(0.1, dense_paths=rule, axis_name=AXIS)
    params = PARAMS | {'bias2': jnp.zeros(20)}
    plan = gs.plan(tx, params, 2)
    dense = {r.name for r in plan.rows if r.transport == 'dense'}
    assert "['kernel']" in dense
    assert "['bias2']" not in dense


# --- what update is handed, and returns -------------------------------------


def test_an_unknown_extra_argument_is_ignored():
  tx = gs.dgc(0.1, axis_name=None)
  grads = mean_of(gradients())

  def both(grads, state):
    more = dict(value=1.0, second_moment=None)
    return tx.update(grads, state), tx.update(grads, state, PARAMS, **more)

  state = tx.init(PARAMS)
  plain, with_more = quickly(both, grads, state)(grads, state)
  chex.assert_trees_all_equal(plain, with_more)


@pytest.mark.slow
def test_update_and_step_do_the_same():
  tx = gs.gtopk(0.1, axis_name=AXIS)
  state = gs.workers.stack(tx.init(PARAMS), 3)
  grads = gradients(3)
  update = quickly(jax.vmap(tx.update, axis_name=AXIS), grads, state)
  step = quickly(jax.vmap(tx.step, axis_name=AXIS), grads, state)
  chex.assert_trees_all_equal(update(grads, state), step(grads, state)[:2])


# --- sockets that do not fit ------------------------------------------------


def joined(compressor, exchange):
  return gs.compressed_mean(
    memories.no_memory(), compressor, exchange, axis_name=None
  )


def test_an_exchange_refuses_a_compressor_that_it_cannot_carry():
  top_k = compressors.top_k(0.1, codes.sparse())
  for exchange in (exchanges.all_reduce(), exchanges.gtopk()):
    with pytest.raises(ValueError, match='top_k cannot go through'):
      joined(top_k, exchange)
  parts = compressors.identity('mine', codes.plain.bfloat16_of_parts())
  with pytest.raises(ValueError, match='mine cannot go .*reduce-scatter'):
    joined(parts, exchanges.all_gather())


def test_what_is_learnt_needs_a_sum_to_learn_from():
  with pytest.raises(ValueError, match='power_sgd cannot .*sums words'):
    joined(compressors.power_sgd(2), exchanges.all_gather())


def test_a_code_says_what_it_takes():
  tx = joined(
    compressors.identity('mine', codes.sparse()), exchanges.all_gather()
  )
  with pytest.raises(TypeError, match='mine selects Leaves.*takes Sparse'):
    jax.eval_shape(tx.update, PARAMS, tx.init(PARAMS))
