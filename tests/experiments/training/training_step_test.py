"""One training step, where the runners could come apart."""

import functools
import warnings

from experiments import data
from experiments import tasks
from experiments.hosts import placement as placing
from experiments.training import training_step
import gradsparse as gs
import jax
import numpy as np
import optax
from tests.experiments.training.normalised import Normalised

_WORKERS = 2


def _stepped(runner):
  """Parameters and statistics after a step that takes second moments."""
  placement = placing.provide(runner, _WORKERS)
  task = tasks.Classification(
    Normalised(), image_shape=(2, 2, 1), mean=[0.5], std=[0.5]
  )
  tx = optax.chain(gs.dense(axis_name=placing.AXIS), optax.sgd(0.1))
  state = training_step.init_state(task, tx, placement=placement, seed=0)
  fn = training_step.make_train_step(
    task,
    tx,
    state.params,
    placement=placement,
    moments=True,
  )
  rng = np.random.default_rng(0)
  batch = data.Batch(
    {
      'images': rng.integers(0, 255, (_WORKERS, 4, 2, 2, 1), np.uint8),
      'labels': rng.integers(0, 3, (_WORKERS, 4), np.int32),
    },
    np.zeros((_WORKERS, 2), np.uint32),
  )
  with warnings.catch_warnings():
    warnings.filterwarnings('error', 'the types of this step')
    state, _ = fn(state, batch)
  return jax.device_get((state.params, state.statistics))


def test_moments_go_with_batch_normalisation_under_shard_map_too():
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    _stepped('shard_map'),
    _stepped('simulate'),
  )
