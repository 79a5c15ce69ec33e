"""One step, three runners; and which state has a worker axis."""

import functools

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests.workers.regression import AXIS
from tests.workers.regression import NUM_WORKERS
from tests.workers.regression import OWN
from tests.workers.regression import PARAMS
from tests.workers.regression import batches
from tests.workers.regression import training


@functools.cache
def trained(runner):
  tx = optax.chain(
    gs.gradient_dropping(0.2, axis_name=AXIS), optax.sgd(0.1, momentum=0.9)
  )
  fn = training(tx, runner)
  params, state = PARAMS, gs.workers.init(tx, PARAMS, NUM_WORKERS)
  losses = []
  for batch in batches(3):
    params, state, mean, own = fn(params, state, batch)
    assert own.shape == (NUM_WORKERS,)
    assert mean['loss'].shape == ()
    np.testing.assert_allclose(mean['loss'], np.mean(own), rtol=1e-5)
    losses.append(float(mean['loss']))
  return jax.device_get((params, state, losses))


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['pmap', 'shard_map'])
def test_runners_train_alike(runner):
  expected = trained('simulate')
  chex.assert_trees_all_close(trained(runner), expected, rtol=1e-5, atol=1e-6)
  params, state, losses = expected
  chex.assert_trees_all_equal_shapes(params, PARAMS)
  assert losses[-1] < losses[0]
  residual = gs.pending(state)
  assert residual['w'].shape == (NUM_WORKERS, 6, 4)
  assert not np.array_equal(residual['w'][0], residual['w'][1])


def test_memories_have_a_worker_axis_and_what_all_share_has_none():
  tx = optax.chain(
    gs.clip_local_norm(1.0, axis_name=AXIS),
    gs.dgc(0.1, min_size=0, axis_name=AXIS),
    optax.adam(1e-3),
  )
  specs = gs.workers.specs(tx, PARAMS, NUM_WORKERS)
  _, dgc, adam = specs
  every = lambda tree: set(jax.tree.leaves(tree))
  assert every(dgc.memory) == every(dgc.stats) == {OWN}
  assert dgc.steps == P()
  assert every(adam) == {P()}
  state = gs.workers.init(tx, PARAMS, NUM_WORKERS)
  alone = tx.init(PARAMS)
  assert jax.tree.structure(state) == jax.tree.structure(alone)
  jax.tree.map(
    lambda x, y, spec: chex.assert_shape(
      x, (NUM_WORKERS, *y.shape) if spec == OWN else y.shape
    ),
    state,
    alone,
    specs,
  )


def test_what_is_accumulated_before_the_exchange_is_the_workers_own():
  """Read off the types: state of transformations that we know nothing of."""
  tx = optax.chain(
    optax.trace(0.9),
    gs.power_sgd(2, axis_name=AXIS),
    optax.trace(0.9),
  )
  before, scheme, after = gs.workers.specs(tx, PARAMS, NUM_WORKERS)
  assert before.trace == {'w': OWN, 'b': OWN}
  assert after.trace == {'w': P(), 'b': P()}
  assert set(jax.tree.leaves(scheme.compressor)) == {P()}


def test_specs_know_an_axis_by_another_name():
  tx = gs.dgc(0.1, axis_name='nodes')
  specs = gs.workers.specs(tx, PARAMS, 2, axis_name='nodes')
  assert specs.memory.velocity['w'] == P('nodes')
  with pytest.raises(NameError, match='nodes'):
    gs.workers.specs(tx, PARAMS, 2)


def test_params_are_shared_but_for_local_gradients():
  tx = gs.gradient_dropping(0.1, axis_name=AXIS)
  assert gs.workers.params_spec(tx, PARAMS) == P()
  assert gs.workers.params_spec(gs.local_gradient(tx), PARAMS) == OWN


def test_stack_copies():
  stacked = gs.workers.stack({'a': jnp.arange(2), 'b': 3.0}, 4)
  np.testing.assert_array_equal(stacked['a'], [[0, 1]] * 4)
  np.testing.assert_array_equal(stacked['b'], [3.0] * 4)


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_donated_arguments_are_given_up(runner):
  tx = gs.random_k(0.2, memory=True, axis_name=AXIS)
  fn = training(tx, runner, donate_argnums=(1,))
  state = gs.workers.init(tx, PARAMS, NUM_WORKERS)
  (batch,) = batches(1)
  # The second call: what the first returns lies where it can be reused.
  _, state, *_ = fn(PARAMS, state, batch)
  _, new, *_ = fn(PARAMS, state, batch)
  assert state.memory.residual['w'].is_deleted()
  assert np.any(new.memory.residual['w'])


@pytest.mark.parametrize(
  'runner', marks.few(['pmap', 'shard_map'], 'shard_map')
)
def test_devices_can_be_chosen(runner):
  tx = gs.dense(axis_name=AXIS)
  devices = jax.devices()[::-1]
  fn = training(tx, runner, devices=devices)
  state = gs.workers.init(tx, PARAMS, NUM_WORKERS)
  params, *_ = fn(PARAMS, state, *batches(1))
  assert set(params['w'].devices()) <= set(devices[:NUM_WORKERS])


def test_bad_arguments_are_named():
  tx = gs.dense(axis_name=AXIS)
  for count in (0, -1):
    with pytest.raises(ValueError, match=f'num_workers .*{count}'):
      gs.workers.init(tx, PARAMS, count)
  kwargs = dict(num_workers=2, in_specs=(P(),), out_specs=P())
  with pytest.raises(ValueError, match="runner .*simulate.*'vmap'"):
    gs.workers.parallel(lambda x: x, runner='vmap', **kwargs)
  kwargs['num_workers'] = 99
  for runner in ('pmap', 'shard_map'):
    with pytest.raises(ValueError, match='jax_num_cpu_devices'):
      gs.workers.parallel(lambda x: x, runner=runner, **kwargs)


@pytest.mark.slow
def test_beside_a_local_gradient_everything_else_is_averaged_too():
  local = gs.local_gradient(gs.dgc(0.1, min_size=0, axis_name=AXIS))
  params = {'x': jnp.ones(8), 'y': jnp.ones(8)}
  labels = {'x': 'local', 'y': 'other'}
  mixed = optax.partition({'local': local, 'other': optax.sgd(0.1)}, labels)
  with pytest.raises(ValueError, match=r"update of \['y'\] differs"):
    gs.workers.specs(mixed, params, 4)
  dense = optax.chain(gs.dense(axis_name=AXIS), optax.sgd(0.1, momentum=0.9))
  fine = optax.partition({'local': local, 'other': dense}, labels)
  gs.workers.specs(fine, params, 4)
  # Of two axes only one is averaged over.
  over_nodes = gs.local_gradient(
    gs.gradient_dropping(0.1, scope='leaf', min_size=0, axis_name='node')
  )
  with pytest.raises(ValueError, match="over axis 'device'"):
    gs.workers.specs(over_nodes, params, {'node': 2, 'device': 2})


def test_results_that_are_arguments_again_are_not_compiled_anew(caplog):
  def adding(state, batch):
    return jax.tree.map(lambda x: x + batch.sum(), state)

  run = gs.workers.parallel(
    adding,
    runner='shard_map',
    num_workers=2,
    in_specs=(P('workers'), P('workers')),
    out_specs=P('workers'),
  )
  # JAX places an empty result otherwise than its out_spec says.
  state = {'full': jnp.zeros((2, 3)), 'empty': jnp.zeros((2, 0))}
  batch = np.ones((2, 3))
  with jax.log_compiles():
    once = run(state, batch)
    assert 'Compiling' in caplog.text
    caplog.clear()
    twice = run(once, batch)
    assert 'Compiling' not in caplog.text
  np.testing.assert_array_equal(twice['full'], np.full((2, 3), 6))
