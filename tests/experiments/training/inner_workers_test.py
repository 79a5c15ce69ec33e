"""Workers that are nodes of several inner workers."""

import functools

from experiments import data
from experiments import tasks
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.run import byte_counter
from experiments.training import training_step
from flax import linen as nn
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest

_WORKERS, _INNER, _STEPS = 2, 2, 2
_BATCH = 8  # examples of a worker


class _Linear(nn.Module):
  """One layer, with batch normalisation if asked."""

  normalised: bool = False

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(3)(x.reshape(len(x), -1))
    return nn.BatchNorm(not train)(x) if self.normalised else x


_DROPPING = gs.gradient_dropping(0.3, min_size=0, axis_name=AXIS)
_SCHEMES = {
  'dense': gs.dense(axis_name=AXIS),
  'dgc': gs.dgc(0.3, min_size=0, axis_name=AXIS),
  'local_gradient': gs.local_gradient(_DROPPING, 'partial'),
  'qsgd': gs.qsgd(7, min_size=0, axis_name=AXIS),
  'variance_based': gs.variance_based(1.0, min_size=0, axis_name=AXIS),
}


def _program(scheme, runner, inner, normalised=False):
  """(the compiled step, state before the first)."""
  placement = make_placement(runner, _WORKERS, inner)
  task = tasks.Classification(
    _Linear(normalised), image_shape=(2, 2, 1), mean=[0.5], std=[0.5]
  )
  tx = optax.chain(_SCHEMES[scheme], optax.sgd(0.1))
  state = training_step.init_state(task, tx, placement=placement, seed=0)
  one = jax.eval_shape(task.init, jax.random.key(0)).params
  fn = training_step.make_train_step(
    task,
    tx,
    one,
    placement=placement,
    moments=scheme == 'variance_based',
    param_sync_every=2,
  )
  return fn, state, placement


def _batch(step, placement):
  rng = np.random.default_rng(step)
  count = _WORKERS * placement.inner_workers
  each = _WORKERS * _BATCH // count
  rows = data.Batch(
    {
      'images': rng.integers(0, 255, (count, each, 2, 2, 1), np.uint8),
      'labels': rng.integers(0, 3, (count, each), np.int32),
    },
    np.zeros((count, 2), np.uint32),
  )
  return placement.batch(rows)


@functools.cache
def _trained(scheme, runner, inner, normalised=False):
  """State and metrics after a few steps."""
  fn, state, placement = _program(scheme, runner, inner, normalised)
  for step in range(_STEPS):
    state, metrics = fn(state, _batch(step, placement))
  return jax.device_get((state, metrics))


_alike = functools.partial(
  jax.tree.map,
  functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'scheme',
  ['dense', 'dgc', 'variance_based'],
)
def test_inner_workers_make_one_batch_of_their_workers(scheme):
  """Also the second moments, which do not scale as a mean does."""
  found = _trained(scheme, 'simulate', _INNER)
  _alike(found, _trained(scheme, 'simulate', 1))
  if scheme == 'variance_based':
    assert any(map(np.any, jax.tree.leaves(found[0].opt_state[0].memory)))


@pytest.mark.slow
@pytest.mark.parametrize(
  'scheme, normalised',
  [('dgc', False), ('local_gradient', True), ('qsgd', False)],
)
def test_a_device_each_trains_as_simulated(scheme, normalised):
  found = _trained(scheme, 'shard_map', _INNER, normalised)
  _alike(found, _trained(scheme, 'simulate', _INNER, normalised))
  state, _ = found
  if scheme == 'local_gradient':
    assert state.params['Dense_0']['kernel'].shape == (_WORKERS, 4, 3)


@pytest.mark.slow
def test_the_plans_of_both_levels_are_what_the_program_sends():
  fn, state, placement = _program('dgc', 'shard_map', _INNER)
  lowered = fn.lower(state, _batch(0, placement))
  audit = gs.audit(lowered.compile())
  across = gs.plan(_SCHEMES['dgc'], state.params, _WORKERS)
  inside = byte_counter.plan_inside(state.params, _INNER, moments=False)
  assert inside.sent_bytes == 4 * (15 + 1)  # a ring of two sends the whole
  extra = audit.sent_bytes - across.sent_bytes - inside.sent_bytes
  assert 0 <= extra < 60  # loss, accuracy and what the scheme measures
  both = byte_counter.plan_inside(state.params, _INNER, moments=True)
  assert both.sent_bytes == 4 * (2 * 15 + 1)
  assert not byte_counter.plan_inside(state.params, 1, moments=True).sent_bytes


def test_pmap_says_that_it_has_one_axis():
  with pytest.raises(ValueError, match="'pmap' has one axis.*shard_map"):
    _program('dense', 'pmap', _INNER)
