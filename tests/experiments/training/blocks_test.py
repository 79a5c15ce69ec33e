"""Simulated workers in blocks train as all at once do."""

import functools

from experiments import data
from experiments import tasks
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import make_placement
from experiments.training import train
from experiments.training import training_step
from flax import linen as nn
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests import marks

_WORKERS, _STEPS = 4, 2
_DROPPING = gs.gradient_dropping(0.3, min_size=0, axis_name=AXIS)
_SCHEMES = {
  'dense': gs.dense(axis_name=AXIS),
  'dgc': gs.dgc(0.3, min_size=0, axis_name=AXIS),
  'local_gradient': gs.local_gradient(_DROPPING, 'partial'),
  'variance_based': gs.variance_based(1.0, min_size=0, axis_name=AXIS),
}


class _Model(nn.Module):
  """Layers with batch normalisation, of which the backward pass holds much."""

  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x, train=False):
    x = nn.Dense(32)(x.reshape(len(x), -1))
    x = nn.relu(nn.BatchNorm(not train, axis_name=self.batch_axis)(x))
    return nn.Dense(3)(x)


def _made(scheme, inner=1):
  """(block -> step, state before the first, step -> batch)."""
  placement = make_placement('simulate', _WORKERS, inner)
  tx = optax.chain(_SCHEMES[scheme], optax.sgd(0.1))
  task = tasks.Classification(
    _Model(), image_shape=(2, 2, 1), mean=[0.5], std=[0.5]
  )
  state = training_step.init_state(task, tx, placement=placement, seed=0)
  make = functools.partial(
    training_step.make_train_step,
    task,
    tx,
    jax.eval_shape(task.init, jax.random.key(0)).params,
    placement=placement,
    moments=scheme == 'variance_based',
    param_sync_every=2,
  )

  def batch(step):
    rng = np.random.default_rng(step)
    count = _WORKERS * inner
    rows = data.Batch(
      {
        'images': rng.integers(0, 255, (count, 64, 2, 2, 1), np.uint8),
        'labels': rng.integers(0, 3, (count, 64), np.int32),
      },
      np.zeros((count, 2), np.uint32),
    )
    return placement.batch(rows)

  return lambda block: make(block=block), state, batch


def _trained(scheme, inner, block):
  """State and metrics after a few steps."""
  make, state, batch = _made(scheme, inner)
  step = make(block)
  for number in range(_STEPS):
    state, metrics = step(state, batch(number))
  return jax.device_get((state, metrics))


@pytest.mark.slow
@pytest.mark.parametrize(
  ('scheme', 'inner', 'block'),
  marks.few(
    [
      ('dense', 2, 2),
      ('dgc', 2, 2),
      ('dgc', 1, 1),
      ('local_gradient', 1, 2),
      ('variance_based', 2, 1),
    ],
    ('dense', 2, 2),
  ),
)
def test_blocks_train_as_all_at_once_do(scheme, inner, block):
  """Up to the order in which a product's terms are added."""
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
    _trained(scheme, inner, block),
    _trained(scheme, inner, None),
  )


@pytest.mark.slow
def test_blocks_that_are_timed_train_the_same(tiny_config, tmp_path):
  params = []
  for block, folder in ((0, 'whole'), (1, 'blocks')):
    config = tiny_config('dense', steps=4)
    config.parallel.workers_per_chunk = block
    config.train.time_breakdown_every = 2 * block
    train.train_and_evaluate(config, tmp_path / folder)
    with np.load(tmp_path / folder / 'params.npz') as archive:
      params.append(dict(archive))
  for name, value in params[0].items():
    np.testing.assert_allclose(value, params[1][name], rtol=1e-4, atol=1e-6)
  text = (tmp_path / 'blocks' / 'metrics.jsonl').read_text()
  assert '"time/compute_ms"' in text
