"""Rejected steps change nothing; too many of them stop the run."""

import json

from experiments.data import batches
from experiments.program import errors
from experiments.training import gradients
from experiments.training import train
import jax.numpy as jnp
import numpy as np
import pytest

_WORKER = 1


@pytest.fixture
def spoiled(monkeypatch):
  """Returns a function that spoils a worker's gradients in some steps."""

  def start(steps, loss=None):
    take, plain = batches.Sampler.batch, gradients.plain

    def batch(self, position):
      rows = take(self, position)
      images = np.array(rows.inputs['images'])
      if position + 1 in steps:
        images[_WORKER] = 255  # by which the gradient knows
      return rows._replace(inputs={**rows.inputs, 'images': images})

    def spoil(task, params, statistics, carry, batch):
      got = plain(task, params, statistics, carry, batch)
      images = batch.inputs['images']
      bad = jnp.all(images == images.ravel()[0])
      kernel = got.grads['Dense_0']['kernel']
      got.grads['Dense_0']['kernel'] = jnp.where(
        bad, kernel.at[2, 3].set(jnp.nan), kernel
      )
      if loss is not None:
        got = got._replace(loss=jnp.where(bad, loss, got.loss))
      return got

    monkeypatch.setattr(batches.Sampler, 'batch', batch)
    monkeypatch.setattr(gradients, 'plain', spoil)

  return start


def _lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_few_rejected_steps_change_nothing(tiny_config, spoiled, tmp_path):
  config = tiny_config('gradient_dropping', density=0.01)
  config.train.log_every = 1
  config.train.checkpoint_every = 1
  config.train.max_rejected_steps = 3
  spoiled({2, 3, 5}, loss=np.inf)
  train.train_and_evaluate(config, tmp_path)
  lines = _lines(tmp_path)
  # Without a loss there is no line.
  assert [line['step'] for line in lines] == [1, 4, 6]
  assert [line['comm/rejected_steps'] for line in lines] == [0, 2, 3]
  assert not any(line['comm/rejected_steps_in_a_row'] for line in lines)
  found = [int(p.name) for p in (tmp_path / 'checkpoints').glob('[0-9]')]
  assert sorted(found) == [4, 6]
  with np.load(tmp_path / 'params.npz') as archive:
    assert all(np.isfinite(array).all() for array in archive.values())


def test_too_many_in_a_row_end_the_run(tiny_config, spoiled, tmp_path):
  config = tiny_config('dense', steps=9)
  config.train.checkpoint_every = 1
  config.train.max_rejected_steps = 3
  spoiled(range(3, 10))
  with pytest.raises(
    errors.DivergedError, match='^3 steps in a row .* the last is step 5: '
  ) as caught:
    train.train_and_evaluate(config, tmp_path)
  assert caught.value.exit_status and '\n' not in str(caught.value)
  found = [int(p.name) for p in (tmp_path / 'checkpoints').glob('[0-9]')]
  assert max(found) == 2
