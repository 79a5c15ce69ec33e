"""One training step, where the runners or the workers could come apart."""

import functools
import warnings

from experiments import data
from experiments import tasks
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.training import training_step
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests.experiments.training.normalised import Normalised

_WORKERS = 2


def _made(placement, **arguments):
  """A step, the state before it, and a batch of all workers."""
  task = tasks.Classification(
    Normalised(), image_shape=(2, 2, 1), mean=[0.5], std=[0.5]
  )
  tx = optax.chain(gs.dense(axis_name=AXIS), optax.sgd(0.1))
  state = training_step.init_state(task, tx, placement=placement, seed=0)
  fn = training_step.make_train_step(
    task, tx, state.params, placement=placement, **arguments
  )
  rng = np.random.default_rng(0)
  sizes = tuple(placement.axes.values())
  batch = data.Batch(
    {
      'images': rng.integers(0, 255, (*sizes, 4, 2, 2, 1), np.uint8),
      'labels': rng.integers(0, 3, (*sizes, 4), np.int32),
    },
    np.zeros((*sizes, 2), np.uint32),
  )
  return fn, state, batch


def _stepped(runner):
  """Parameters and statistics after a step that takes second moments."""
  fn, state, batch = _made(make_placement(runner, _WORKERS), moments=True)
  with warnings.catch_warnings():
    warnings.filterwarnings('error', 'the types of this step')
    state, _ = fn(state, batch)
  return jax.device_get((state.params, state.statistics))


@pytest.mark.slow
def test_moments_go_with_batch_normalisation_under_shard_map_too():
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    _stepped('shard_map'),
    _stepped('simulate'),
  )


def _running_averages(dense, images):
  """Of `Normalised` after one step, of what one worker's images become."""
  x = (images.astype(np.float64) - 0.5) / 0.5
  x = x.reshape(len(x), -1) @ dense['kernel'] + dense['bias']
  return 0.01 * x.mean(axis=0), 0.99 + 0.01 * x.var(axis=0)


@pytest.mark.parametrize(
  'runner, inner_workers, block',
  [
    pytest.param('simulate', 2, None, marks=pytest.mark.slow),
    pytest.param('simulate', 1, 1, marks=pytest.mark.slow),
    ('shard_map', 1, None),
    pytest.param('pmap', 1, None, marks=pytest.mark.slow),
  ],
)
def test_running_averages_are_a_workers_own_until_a_test(
  runner, inner_workers, block
):
  placement = make_placement(runner, _WORKERS, inner_workers)
  fn, state, batch = _made(placement, block=block)
  dense = jax.device_get(state.params['Dense_0'])
  state, _ = fn(state, batch)
  found = jax.device_get(state.statistics)['BatchNorm_0']
  sizes = tuple(placement.axes.values())
  images = batch.inputs['images'].reshape(-1, 4, 2, 2, 1)
  wanted = [_running_averages(dense, own) for own in images]
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  for name, own in zip(('mean', 'var'), zip(*wanted, strict=True), strict=True):
    close(found[name], np.reshape(own, (*sizes, -1)))
  tested = placement.compile(
    functools.partial(training_step.mean_over, len(placement.axes))
  )(state.statistics)
  close(tested['BatchNorm_0']['mean'], np.mean([m for m, _ in wanted], axis=0))
