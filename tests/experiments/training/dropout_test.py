"""Dropout in a training step: each worker draws its own, whatever runs it."""

import functools

from experiments import data
from experiments import tasks
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.training import training_step
from flax import linen as nn
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest

_WORKERS = 2
_FIRST, _SECOND = [5, 6], [7, 8]
_NOISES = ([_FIRST, _SECOND], [_FIRST, _FIRST], [_SECOND, _SECOND])


class _Dropping(nn.Module):
  """A layer that sees half of each image."""

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))
    return nn.Dense(3)(x)


@functools.cache
def _losses(runner, block, moments):
  """The mean loss of the workers, for each of `_NOISES`."""
  placement = make_placement(runner, _WORKERS)
  tx = optax.chain(gs.dense(axis_name=AXIS), optax.sgd(0.1))
  task = tasks.Classification(
    _Dropping(), image_shape=(4, 4, 1), mean=[100.0], std=[50.0]
  )
  state = training_step.init_state(task, tx, placement=placement, seed=0)
  step = training_step.make_train_step(
    task,
    tx,
    state.params,
    placement=placement,
    moments=moments,
    block=block,
  )
  rng = np.random.default_rng(0)
  images = rng.integers(0, 255, (1, 4, 4, 4, 1), np.uint8)

  def batch(noise):
    # The same examples for both: only what is dropped differs.
    return placement.batch(
      data.Batch(
        {
          'images': images.repeat(_WORKERS, 0),
          'labels': np.array([[0, 1, 2, 0]] * _WORKERS, np.int32),
        },
        np.array(noise, np.uint32),
      )
    )

  found = []
  for noise in _NOISES:
    copy = jax.tree.map(lambda x: x + 0, state)  # a step takes its state
    found.append(float(step(copy, batch(noise))[1]['train/loss']))
  return found


@pytest.mark.parametrize(
  'moments', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_worker_drops_by_its_own_noise(moments):
  mixed, first, second = _losses('simulate', None, moments)
  assert abs(first - second) > 1e-3
  np.testing.assert_allclose(mixed, (first + second) / 2, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('runner', 'block', 'moments'),
  [
    ('simulate', 1, False),
    ('shard_map', None, False),
    ('shard_map', None, True),
  ],
)
def test_what_is_dropped_does_not_depend_on_the_runner(runner, block, moments):
  np.testing.assert_allclose(
    _losses(runner, block, moments),
    _losses('simulate', None, moments),
    rtol=1e-5,
  )
