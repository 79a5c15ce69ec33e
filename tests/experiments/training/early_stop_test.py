"""A run that ends when its tests find nothing better, also if it resumes."""

import dataclasses
import json

from configs import default
from experiments.config import settings
from experiments.program import errors
from experiments.training import evaluation
from experiments.training import train
import numpy as np
import pytest

_NAN = float('nan')


@pytest.mark.parametrize(
  ('patience', 'losses', 'due'),
  [
    (2, [3.0, 2.0, 2.0, 2.5, 1.0], [0, 0, 0, 1, 0]),
    (1, [3.0, 3.0], [0, 1]),
    (1, [_NAN, 1.0, _NAN], [1, 0, 1]),
  ],
)
def test_it_counts_tests_that_find_no_smaller_loss(patience, losses, due):
  lowest = evaluation.Lowest()
  for loss, expected in zip(losses, due, strict=True):
    kept = json.dumps(dataclasses.asdict(lowest), allow_nan=False)
    lowest = evaluation.Lowest(**json.loads(kept))  # as a run resumes
    lowest.observe(loss)
    assert (lowest.in_a_row >= patience) == bool(expected)


class _Killed(Exception):
  pass


def _tests_say(monkeypatch, losses):
  """Makes the tests of a run find these losses; None: the run is killed."""
  coming = iter(losses)

  def test(evaluate, model):
    del evaluate, model
    loss = next(coming)
    if loss is None:
      raise _Killed
    return {'test/loss': loss, 'test/accuracy': 0.5}

  monkeypatch.setattr(evaluation.Evaluation, '__call__', test)


def _config(tiny_config, **changes):
  config = tiny_config('dgc', steps=9, density=0.01)
  config.train.update(
    eval_every=1,
    checkpoint_every=1,
    log_every=1,
    early_stop_patience=2,
    **changes,
  )
  return config


@pytest.mark.slow
def test_a_run_ends_early_and_says_after_which_step(
  tiny_config, tmp_path, monkeypatch
):
  _tests_say(monkeypatch, [3.0, 2.0, 2.0, 2.5])
  summary = train.train_and_evaluate(_config(tiny_config), tmp_path)
  assert summary['steps'] == 4
  assert summary['final'] == {'test_loss': 2.5, 'test_accuracy': 0.5}
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == [1, 2, 3, 4]
  per_step = summary['comm']['run_average_sent_bytes_per_step']
  total = json.loads(lines[-1])['comm/sent_bytes_total']
  assert total == pytest.approx(4 * per_step)
  # The same command finds nothing to do.
  _tests_say(monkeypatch, [2.5])
  again = train.train_and_evaluate(_config(tiny_config), tmp_path)
  assert again['steps'] == 4 and again['comm'] == summary['comm']


@pytest.mark.slow
def test_a_run_that_was_killed_has_not_forgotten_its_tests(
  tiny_config, tmp_path, monkeypatch
):
  _tests_say(monkeypatch, [3.0, 3.0, None])
  with pytest.raises(_Killed):
    train.train_and_evaluate(_config(tiny_config), tmp_path)
  _tests_say(monkeypatch, [3.0] * 9)
  assert train.train_and_evaluate(_config(tiny_config), tmp_path)['steps'] == 3
  _tests_say(monkeypatch, [3.0, 3.0, 3.0])
  whole = train.train_and_evaluate(_config(tiny_config), tmp_path / 'whole')
  assert whole['steps'] == 3
  with (
    np.load(tmp_path / 'params.npz') as found,
    np.load(tmp_path / 'whole' / 'params.npz') as expected,
  ):
    for name in expected:
      np.testing.assert_array_equal(found[name], expected[name])


def test_without_tests_it_is_refused():
  config = default.get_config()
  config.train.update(early_stop_patience=2, eval_every=0)
  with pytest.raises(errors.ConfigError, match='0 with train.early_stop_pat'):
    settings.check(config.to_dict())


def test_it_ends_with_a_whole_exchange():
  config = default.get_config()
  config.train.update(early_stop_patience=2, eval_every=111)
  config.optimizer.accumulate = 2
  with pytest.raises(errors.ConfigError, match='eval_every must be a multiple'):
    settings.check(config.to_dict())
  config.train.eval_every = 110
  settings.check(config.to_dict())


def test_other_tests_are_another_run():
  config = default.get_config()
  config.train.early_stop_patience = 2
  before = config.to_dict()
  config.train.eval_every = 7
  with pytest.raises(errors.ResumeError, match='eval_every: was 110, now 7'):
    settings.check_resumable(before, config.to_dict())
