"""A learning rate that follows the test loss, also where a run resumes."""

import json

from configs import default
from experiments.config import optimizer
from experiments.config import settings
from experiments.program import errors
from experiments.training import evaluation
from experiments.training import train
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

_LOSSES = [3.0, 2.0, 2.0, 2.5, 1.0, float('nan'), 1.0]


@pytest.mark.parametrize(
  ('patience', 'accumulate', 'expected'),
  [
    pytest.param(
      1, 1, [1, 1, 0.5, 0.25, 0.25, 0.125, 0.0625], marks=pytest.mark.slow
    ),
    (2, 2, [1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
  ],
)
def test_it_falls_where_the_loss_does_not(patience, accumulate, expected):
  config = default.get_config()
  config.compression.name = 'gradient_dropping'
  config.optimizer.update(
    momentum=0.0, accumulate=accumulate, schedule='plateau'
  )
  rate = optax.constant_schedule(0.5)
  tx = optimizer.make(config, rate, 1.0, axis_name=None)
  params = {'w': jnp.zeros(3)}
  update, state = jax.jit(tx.update), tx.init(params)
  lowest = evaluation.Lowest()
  for loss, scale in zip(_LOSSES, expected, strict=True):
    lowest.observe(loss)
    if lowest.stuck(patience):
      state = optimizer.fall(state, 0.5)
    for _ in range(accumulate):
      updates, state = update({'w': jnp.ones(3)}, state, params)
    np.testing.assert_allclose(updates['w'], -0.5 * scale)


class _Killed(Exception):
  pass


@pytest.mark.slow
def test_a_run_resumes_with_what_it_has_seen(
  tiny_config, tmp_path, monkeypatch
):
  monkeypatch.setattr(
    evaluation.Evaluation,
    '__call__',
    lambda *_: {'test/loss': 2.0, 'test/accuracy': 0.5},
  )

  def config():
    made = tiny_config('dense', runner='shard_map', steps=8)
    made.optimizer.schedule = 'plateau'
    made.optimizer.lr_decay_factor = 0.5
    made.train.update(log_every=1, eval_every=2, checkpoint_every=4)
    settings.check(made.to_dict())
    return made

  def kill(step, steps, line):
    del steps, line
    if step == 5:
      raise _Killed

  whole, broken = tmp_path / 'whole', tmp_path / 'broken'
  train.train_and_evaluate(config(), whole)
  with pytest.raises(_Killed):
    train.train_and_evaluate(config(), broken, progress=kill)
  train.train_and_evaluate(config(), broken)
  for folder in (whole, broken):
    lines = (folder / 'metrics.jsonl').read_text().splitlines()
    rates = [json.loads(line)['train/learning_rate'] for line in lines]
    # Tested after 2 steps (the best so far), 4 and 6.
    assert rates == pytest.approx([0.05] * 4 + [0.025] * 2 + [0.0125] * 2)
  expected, found = (np.load(f / 'params.npz') for f in (whole, broken))
  for name in expected:
    np.testing.assert_array_equal(expected[name], found[name])


def test_other_tests_are_another_run():
  config = default.get_config()
  config.optimizer.schedule = 'plateau'
  before = config.to_dict()
  config.train.eval_every = 7
  with pytest.raises(errors.ResumeError, match='eval_every: was 110, now 7'):
    settings.check_resumable(before, config.to_dict())
