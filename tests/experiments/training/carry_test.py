"""What a worker's batch leaves for its next, and smoothed parameters."""

import dataclasses

from experiments import data
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.tasks.task import Outcome
from experiments.tasks.task import Variables
from experiments.training import training_step
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks

_WORKERS, _BATCH, _STEPS = 2, 3, 4


@dataclasses.dataclass(frozen=True)
class _Sums:
  """Each example adds what it sees to what it has carried."""

  has_batch_axis = False

  def init(self, key):
    del key
    return Variables({'weight': jnp.ones(2)}, {})

  def carry(self):
    return {'sum': jnp.zeros((_BATCH, 2))}

  def outcome(self, params, statistics, carry, inputs, key):
    del key
    total = carry['sum'] + inputs['x']
    loss = jnp.mean(jnp.sum(jnp.square(total * params['weight']), axis=-1))
    measured = {'largest': jnp.max(total, initial=0)}
    rows = {'rows': jnp.float32(len(total))}
    return Outcome(loss, measured, statistics, {'sum': total}, rows)


def _rows(step, placement, bad_step=None):
  rng = np.random.default_rng(step)
  count = _WORKERS * placement.inner_workers
  x = rng.normal(size=(count, _BATCH, 2)).astype(np.float32)
  if step == bad_step:
    x[-1, 0, 0] = np.nan
  return data.Batch({'x': x}, np.zeros((count, 2), np.uint32))


def _trained(
  runner='simulate',
  inner=1,
  block=None,
  moments=False,
  ema_decay=0.0,
  bad_step=None,
):
  """The states after each step, and the last metrics."""
  placement = make_placement(runner, _WORKERS, inner)
  scheme = gs.dense(axis_name=AXIS)
  if moments:
    scheme = gs.variance_based(1.0, min_size=0, axis_name=AXIS)
  tx = optax.chain(scheme, optax.sgd(0.01))
  task = _Sums()
  state = training_step.init_state(
    task, tx, placement=placement, seed=0, smoothed=bool(ema_decay)
  )
  step = training_step.make_train_step(
    task,
    tx,
    jax.eval_shape(lambda: task.init(None).params),
    placement=placement,
    moments=moments,
    ema_decay=ema_decay,
    block=block,
  )
  states = []
  for number in range(_STEPS):
    batch = placement.batch(_rows(number, placement, bad_step))
    state, metrics = step(state, batch)
    states.append(jax.device_get(state))
  return states, jax.device_get(metrics)


def _inputs(inner=1):
  """float32[steps, workers..., batch, 2]."""
  placement = make_placement('simulate', _WORKERS, inner)
  sizes = tuple(placement.axes.values())
  rows = [_rows(step, placement).inputs['x'] for step in range(_STEPS)]
  return np.stack(rows).reshape(_STEPS, *sizes, _BATCH, 2)


@pytest.mark.parametrize(
  'how',
  marks.few(
    [
      {},
      {'block': 1},
      {'moments': True},
      {'inner': 2},
      {'inner': 2, 'block': 1},
      {'runner': 'shard_map'},
      {'runner': 'shard_map', 'inner': 2, 'moments': True},
    ],
    {},
    {'runner': 'shard_map', 'inner': 2, 'moments': True},
  ),
  ids=str,
)
def test_what_is_carried_is_an_examples_own_however_it_is_run(how):
  states, metrics = _trained(**how)
  expected = _inputs(how.get('inner', 1)).cumsum(0)
  for state, sums in zip(states, expected, strict=True):
    np.testing.assert_allclose(state.carry['sum'], sums, rtol=1e-5)
  assert set(metrics) > {'train/loss', 'train/largest'}
  assert metrics['train/rows'] == _WORKERS * how.get('inner', 1) * _BATCH


def test_the_loss_is_of_what_was_carried():
  inputs = _inputs().cumsum(0)
  weight = np.ones(2)
  states, _ = _trained()
  for state, sums in zip(states, inputs, strict=True):
    # The mean over workers and examples of sum_i (s_i w_i)^2.
    weight = weight - 0.01 * 2 * weight * np.square(sums).mean(axis=(0, 1))
    np.testing.assert_allclose(state.params['weight'], weight, rtol=1e-5)


def test_what_is_no_number_is_not_carried():
  states, _ = _trained(bad_step=1)
  clean = _inputs()
  kept = states[1].carry['sum']
  np.testing.assert_allclose(kept[0], clean[:2, 0].sum(0), rtol=1e-5)
  np.testing.assert_allclose(kept[1], clean[0, 1], rtol=1e-5)  # as before
  assert np.isfinite(states[-1].carry['sum']).all()


@pytest.mark.slow
def test_smoothed_parameters_are_a_moving_average():
  states, _ = _trained(ema_decay=0.3)
  smoothed = np.ones(2)
  for step, state in enumerate(states):
    kept = min(0.3, (1 + step) / (10 + step))
    smoothed = kept * smoothed + (1 - kept) * state.params['weight']
    np.testing.assert_allclose(state.smoothed['weight'], smoothed, rtol=1e-5)
    assert training_step.tested_params(state) is state.smoothed
  plain, _ = _trained()
  assert plain[-1].smoothed == ()
  assert training_step.tested_params(plain[-1]) is plain[-1].params
