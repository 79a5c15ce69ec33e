"""Schemes over several axes: which state has which, and that it trains."""

import chex
import gradsparse as gs
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

AXES = {'node': 2, 'device': 3}
BOTH = P('node', 'device')
PARAMS = {'w': jnp.ones((6, 4)), 'b': jnp.zeros(4)}


def two_levels():
  return optax.chain(
    gs.dense(axis_name='device'),
    gs.dgc(0.1, min_size=0, axis_name='node'),
    optax.sgd(0.1),
  )


def flat():
  return optax.chain(
    gs.dgc(0.1, min_size=0, axis_name=('node', 'device')), optax.sgd(0.1)
  )


def every(tree):
  return set(jax.tree.leaves(tree))


def test_a_leaf_has_the_axes_along_which_it_differs():
  below, above, _ = gs.workers.specs(two_levels(), PARAMS, AXES)
  assert every(below.stats) == {BOTH} and below.steps == P()
  assert every(above.memory) == every(above.stats) == {P('node')}
  assert above.steps == P()
  (tuple_of_axes, _) = gs.workers.specs(flat(), PARAMS, AXES)
  assert every(tuple_of_axes.memory) == every(tuple_of_axes.stats) == {BOTH}


def test_a_worker_axis_for_each_axis():
  tx = gs.accumulate(two_levels(), every=2)
  state = gs.workers.init(tx, PARAMS, AXES)
  alone = tx.init(PARAMS)
  below, above, _ = state.inner
  assert below.stats.sent_bytes.shape == (2, 3)
  assert above.memory.velocity['w'].shape == (2, 6, 4)
  assert state.mean['w'].shape == (2, 3, 6, 4)
  assert state.mini_step.shape == ()
  assert jax.tree.structure(state) == jax.tree.structure(alone)


def test_shardings_have_the_same_axes():
  mesh = jax.make_mesh(
    (2, 3), ('node', 'device'), (AxisType.Auto,) * 2, devices=jax.devices()[:6]
  )
  for tx in (two_levels(), flat()):
    placed = gs.workers.shardings(tx, PARAMS, mesh, ('node', 'device'))
    assert jax.tree.map(lambda s: s.spec, placed) == gs.workers.specs(
      tx, PARAMS, AXES
    )


def programs(tx, runner):
  specs = gs.workers.specs(tx, PARAMS, AXES)
  fn = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state),
    runner=runner,
    num_workers=AXES,
    in_specs=(BOTH, specs),
    out_specs=(P(), specs),
  )
  return fn, gs.workers.init(tx, PARAMS, AXES)


def drawn(seed):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda p: rng.normal(size=(2, 3, *p.shape)).astype(np.float32), PARAMS
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'make, axes, runners',
  [
    (two_levels, 'node', ('simulate', 'shard_map')),
    pytest.param(flat, 'both', ('shard_map',), marks=pytest.mark.slow),
  ],
)
def test_it_trains_as_its_workers_would_on_one_axis(make, axes, runners):
  """Devices averaged by hand, or all of them workers, on the axis AXIS."""
  size = 2 if axes == 'node' else 6
  alone = optax.chain(
    gs.dgc(0.1, min_size=0, axis_name=gs.workers.AXIS), optax.sgd(0.1)
  )
  specs = gs.workers.specs(alone, PARAMS, size)
  expect = gs.workers.parallel(
    lambda grads, state: alone.update(grads, state),
    runner='simulate',
    num_workers=size,
    in_specs=(P(gs.workers.AXIS), specs),
    out_specs=(P(), specs),
  )
  expected_state = gs.workers.init(alone, PARAMS, size)
  both = {r: programs(make(), r) for r in runners}
  states = {runner: state for runner, (_, state) in both.items()}
  for step in range(2):
    grads = drawn(step)
    seen = jax.tree.map(
      lambda g: g.mean(1) if axes == 'node' else g.reshape(6, *g.shape[2:]),
      grads,
    )
    expected, expected_state = expect(seen, expected_state)
    for runner, (fn, _) in both.items():
      got, states[runner] = fn(grads, states[runner])
      chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-6)


def test_nobody_who_averages_over_one_of_the_axes_is_refused():
  tx = gs.dgc(0.1, axis_name='node')
  with pytest.raises(ValueError, match=r"\['b'\].*over axis 'device'"):
    gs.workers.specs(tx, PARAMS, AXES)
  with pytest.raises(ValueError, match="summed over axis 'device'"):
    twice = optax.chain(gs.dense(axis_name='device'), flat())
    gs.workers.specs(twice, PARAMS, AXES)


def test_several_axes_need_several_sizes():
  with pytest.raises(ValueError, match='num_workers must be a mapping.*got 6'):
    gs.workers.init(flat(), PARAMS, 6, axis_name=('node', 'device'))
  with pytest.raises(ValueError, match='num_workers must be in 1.*got 0'):
    gs.workers.specs(flat(), PARAMS, {'node': 2, 'device': 0})
  with pytest.raises(NameError, match='device'):
    gs.workers.specs(flat(), PARAMS, {'node': 2})
  with pytest.raises(ValueError, match='MultiSteps.*gs.accumulate'):
    several = optax.MultiSteps(two_levels(), 2)
    gs.workers.specs(several.gradient_transformation(), PARAMS, AXES)


def test_classes_and_types_agree():
  """What a class calls a worker's own differs by its types too."""
  tx = two_levels()
  specs = gs.workers.specs(tx, PARAMS, AXES)
  own = ownership.is_local(tx.init(PARAMS))
  assert own == jax.tree.map(lambda spec: spec != P(), specs)


@pytest.mark.slow
def test_second_moments_that_nobody_averages_are_refused():
  tx = optax.chain(
    gs.dense(axis_name='device'), gs.variance_based(1.0, axis_name='node')
  )
  with pytest.raises(ValueError, match="'device'.*second_moment"):
    gs.workers.specs(tx, PARAMS, AXES)
