"""Parameters that are frozen cost no bytes and no state."""

import functools

import gradsparse as gs
import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks

PARAMS = {
  'adapter': np.zeros((4, 5), np.float32),
  'frozen': np.ones((4, 5), np.float32),
}
LABELS = {'adapter': 'train', 'frozen': 'freeze'}
DGC = gs.dgc(0.3, momentum=0.0, axis_name='workers', min_size=0)


def freeze(tx):
  return optax.partition({'train': tx, 'freeze': optax.set_to_zero()}, LABELS)


FROZEN = {
  'alone': freeze(DGC),
  'adam inside': freeze(optax.chain(DGC, optax.adam(0.1))),
  'adam around': optax.chain(freeze(DGC), optax.adam(0.1)),
  # They look at all updates together: at means, and at zeros.
  'norm around': optax.chain(
    freeze(DGC),
    optax.clip_by_global_norm(1.0),
    gs.skip_rejected(optax.adam(0.1)),
  ),
  'accumulate': gs.accumulate(freeze(DGC), every=2),
  'multi steps': optax.MultiSteps(freeze(DGC), 2),
}


@functools.cache
def trained(name, runner):
  tx, workers = FROZEN[name], 2
  state = gs.workers.init(tx, PARAMS, workers)
  specs = gs.workers.specs(tx, PARAMS, workers)

  def loss_fn(params, batch):
    return ((batch @ sum(params.values()) - 1) ** 2).sum()

  def step(params, state, batch):
    grads = jax.grad(loss_fn)(gs.workers.local(params), batch)
    updates, state = tx.update(grads, state, params)
    norm = optax.global_norm(updates)
    return optax.apply_updates(params, updates), state, norm

  batch = np.random.default_rng(0).normal(size=(workers, 3, 4))
  batch = batch.astype(np.float32)
  how = {
    'in_specs': (P(), specs, P('workers')),
    'out_specs': (P(), specs, P()),
  }
  if runner == 'wrap':
    mesh = jax.make_mesh(
      (workers,),
      ('workers',),
      axis_types=(AxisType.Auto,),
      devices=jax.devices()[:workers],
    )
    run = jax.jit(gs.workers.wrap(step, mesh=mesh, **how))
    batch = batch.reshape(-1, 4)
  else:
    run = gs.workers.parallel(step, runner=runner, num_workers=workers, **how)
  params = PARAMS
  for _ in range(4):
    params, state, norm = run(params, state, batch)
    assert np.isfinite(norm)
  return params, state


@pytest.mark.filterwarnings('ignore:optax.MultiSteps')
@pytest.mark.parametrize(
  'name, runner',
  marks.few(
    [
      *((name, 'simulate') for name in FROZEN),
      *(('norm around', runner) for runner in ('pmap', 'wrap')),
    ],
    ('accumulate', 'simulate'),
  ),
)
def test_what_is_frozen_stays_and_the_rest_is_trained(name, runner):
  params, state = trained(name, runner)
  np.testing.assert_array_equal(params['frozen'], PARAMS['frozen'])
  assert np.all(np.any(params['adapter'] != 0, axis=0))
  assert gs.metrics(state)['sent_elements'] == 6


def test_what_is_frozen_is_not_sent_and_has_no_memory():
  plan = gs.plan(FROZEN['alone'], PARAMS, 2)
  assert [row.name for row in plan.rows] == ["['adapter']"]
  state = gs.workers.init(FROZEN['alone'], PARAMS, 2)
  arrays = [x.shape for x in jax.tree.leaves(state) if x.ndim > 1]
  assert arrays == [(2, 4, 5)] * 2  # velocity and momentum


def test_moments_of_what_is_frozen_are_the_same_on_all_workers():
  specs = gs.workers.specs(FROZEN['adam around'], PARAMS, 2)
  assert set(jax.tree.leaves(specs[1])) == {P()}


def test_a_parameter_that_only_seems_frozen_is_refused():
  tx = optax.partition({'train': DGC, 'freeze': optax.sgd(0.0)}, LABELS)
  with pytest.raises(ValueError, match="'frozen'.*set_to_zero"):
    gs.workers.init(tx, PARAMS, 2)


def test_whole_numbers_can_be_frozen():
  params = PARAMS | {'frozen': np.arange(3)}
  state = gs.workers.init(FROZEN['alone'], params, 2)
  assert gs.plan(FROZEN['alone'], params, 2).payload_bytes > 0
  assert gs.pending(state)['adapter'].shape == (2, 4, 5)


def test_other_numbers_of_workers_need_the_shapes_of_what_is_frozen():
  tx = FROZEN['adam around']
  _, state = trained('adam around', 'simulate')
  with pytest.raises(ValueError, match='resize.*params'):
    gs.workers.resize(tx, state, 3)
  more = gs.workers.resize(tx, state, 3, PARAMS)
  owed = [np.mean(gs.pending(s)['adapter'], axis=0) for s in (state, more)]
  np.testing.assert_allclose(*owed, rtol=1e-6)


def test_a_switch_needs_the_shapes_of_what_is_frozen():
  tx, (_, state) = FROZEN['adam around'], trained('adam around', 'simulate')
  other = optax.chain(
    freeze(gs.gradient_dropping(0.5, axis_name='workers')), optax.adam(0.1)
  )
  with pytest.raises(ValueError, match='params'):
    gs.switch(tx, other, state)
  switched = gs.switch(tx, other, state, PARAMS)
  np.testing.assert_array_equal(
    gs.pending(switched)['adapter'], gs.pending(state)['adapter']
  )
