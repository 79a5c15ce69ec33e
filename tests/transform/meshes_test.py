"""Meshes of two axes: two levels of workers, and leaves that are sharded."""

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests.replay import AXIS
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import quickly
from tests.simulation import simulated


def mesh_of(*names):
  return jax.make_mesh(
    (2, 2), names, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
  )


@pytest.mark.slow
def test_two_levels_average_in_a_node_and_compress_between_nodes():
  tx = optax.chain(
    gs.dense(axis_name='device'),
    gs.dgc(0.1, min_size=0, axis_name='node'),
    optax.sgd(1.0),
  )
  mesh = mesh_of('node', 'device')
  everybody, node = P(('node', 'device')), P('node')
  state = tx.init(PARAMS)
  specs = (
    jax.tree.map(lambda x: everybody, state[0])._replace(steps=P()),
    jax.tree.map(lambda x: node, state[1])._replace(steps=P()),
    state[2],
  )
  size = {everybody: 4, node: 2}
  state = jax.tree.map(
    lambda x, s: gs.workers.stack(x, size[s]) if s in size else x, state, specs
  )
  is_own = lambda s: s != P()

  def step(state, grads):
    state = jax.tree.map(lambda x, s: x[0] if is_own(s) else x, state, specs)
    grads = jax.tree.map(lambda g: g[0], grads)
    updates, state = tx.update(grads, state)
    return updates, jax.tree.map(
      lambda x, s: x[None] if is_own(s) else x, state, specs
    )

  fn = jax.jit(
    jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(specs, everybody),
      out_specs=(P(), specs),
    )
  )
  flat = optax.chain(gs.dgc(0.1, min_size=0, axis_name=AXIS), optax.sgd(1.0))
  flat_state, flat_step = simulated(flat)
  for t in range(2):
    grads = gradients(4, seed=t)
    in_node = jax.tree.map(
      lambda g: np.mean(np.reshape(g, (2, 2, *g.shape[1:])), axis=1), grads
    )
    updates, state = fn(state, grads)
    expected, flat_state = flat_step(in_node, flat_state)
    chex.assert_trees_all_close(
      updates, jax.tree.map(lambda x: x[0], expected), rtol=1e-5, atol=1e-6
    )
    for copy in jax.tree.leaves(updates)[1].addressable_shards:
      np.testing.assert_array_equal(copy.data, updates['kernel'])


# A kernel whose columns are sharded over another axis, and another one.
SHARDED = {'kernel': jnp.zeros((12, 10)), 'other': jnp.zeros((6, 8))}


def on_shards(tx):
  """(state, step) of 2 workers by 2 shards; all state is sharded likewise."""
  columns = P(None, 'model')
  own = P(AXIS, None, 'model')
  state = tx.init(SHARDED)
  stacked = state._replace(
    memory=gs.workers.stack(state.memory, 2),
    stats=gs.workers.stack(state.stats, 4),
    exchange=gs.workers.stack(state.exchange, 2),
  )
  specs = state._replace(
    steps=P(),
    memory=jax.tree.map(lambda _: own, state.memory),
    stats=jax.tree.map(lambda _: P((AXIS, 'model')), state.stats),
    exchange=jax.tree.map(lambda _: own, state.exchange),
  )

  def step(state, grads):
    def of_own(state, fn):
      names = ('memory', 'stats', 'exchange')
      return state._replace(
        **{name: jax.tree.map(fn, getattr(state, name)) for name in names}
      )

    grads = jax.tree.map(lambda x: x[0], grads)
    updates, state = tx.update(grads, of_own(state, lambda x: x[0]))
    return updates, of_own(state, lambda x: x[None])

  return stacked, jax.shard_map(
    step,
    mesh=mesh_of(AXIS, 'model'),
    in_specs=(specs, own),
    out_specs=(columns, specs),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.dgc(0.1, axis_name=AXIS),
    lambda: gs.gradient_dropping(0.1, scope='leaf', axis_name=AXIS),
    lambda: gs.one_bit_sgd(exchange='reduce_scatter', axis_name=AXIS),
  ],
)
def test_a_scheme_by_leaf_works_on_shards_over_another_axis(make):
  state, step = on_shards(make())
  grads = [gradients(seed=t, params=SHARDED) for t in range(2)]
  step = quickly(step, state, grads[0])
  cut = lambda tree, n: jax.tree.map(
    lambda x: np.split(np.asarray(x), 2, axis=-1)[n], tree
  )
  halves = [simulated(make(), params=cut(SHARDED, n)) for n in (0, 1)]
  for g in grads:
    updates, state = step(state, g)
    for n, (half_state, half_step) in enumerate(halves):
      expected, half_state = half_step(cut(g, n), half_state)
      halves[n] = half_state, half_step
      first = jax.tree.map(lambda x: x[0], expected)
      chex.assert_trees_all_equal(cut(updates, n), jax.device_get(first))


@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.gradient_dropping(0.1, axis_name=AXIS),
    lambda: gs.gtopk(0.1, axis_name=AXIS),
    lambda: gs.dgc(0.1, scope='global', axis_name=AXIS),
  ],
)
def test_what_needs_the_whole_tree_refuses_shards(make):
  state, step = on_shards(make())
  with pytest.raises(ValueError, match="'model'.*scope="):
    jax.eval_shape(step, state, gradients(params=SHARDED))
