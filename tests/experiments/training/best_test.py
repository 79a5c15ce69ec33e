"""The model of the best test is told of and kept, also if a run resumes."""

from configs import default
from experiments.config import settings
from experiments.program import errors
from experiments.run import records
from experiments.training import evaluation
from experiments.training import train
import jax
import numpy as np
import pytest

_LOSSES = (3.0, 1.0, 2.0, 1.0, 4.0)


class _Killed(Exception):
  pass


class _Tests:
  """Finds a loss for each new model, and is killed at one of them."""

  def __init__(self, killed_at=None):
    self._killed_at = killed_at
    self.models = []

  def __call__(self, model):
    bytes_of = [
      [leaf.tobytes() for leaf in jax.tree.leaves(each.params)]
      for each in (*self.models, model)
    ]
    number = bytes_of.index(bytes_of[-1])
    if number == self._killed_at:
      raise _Killed
    if number == len(self.models):
      self.models.append(model)
    return {'test/loss': (*_LOSSES, 0.5)[number], 'test/accuracy': 0.5}


@pytest.fixture
def run(tiny_config, compiled_once, tmp_path, monkeypatch):
  """Trains five steps, a test after each; returns the tests and the summary."""

  def train_it(tests=None):
    config = tiny_config('gradient_dropping', steps=5, density=0.1)
    config.compression.local_gradient = 'partial'
    config.train.update(
      eval_every=1, checkpoint_every=1, log_every=1, keep_best=True
    )
    tests = tests or _Tests()
    monkeypatch.setattr(
      evaluation.Evaluation, '__call__', lambda _, model: tests(model)
    )
    return tests, train.train_and_evaluate(config, tmp_path)

  return train_it


def _assert_kept(path, model):
  with np.load(path / 'params.npz') as kept:
    for name, array in jax.tree_util.tree_leaves_with_path(model.params):
      flat = jax.tree_util.keystr(name, simple=True, separator='/')
      np.testing.assert_array_equal(kept[flat], array)


@pytest.mark.slow
def test_a_run_that_goes_on_has_not_forgotten_it(run, tmp_path):
  """Of equal losses, those of steps 2 and 5, the first is kept."""
  before = _Tests(killed_at=3)
  with pytest.raises(_Killed):
    run(before)
  tests, summary = run()
  # Steps 4 and 5, then what was kept of step 2.
  _, _, mean, own = tests.models
  assert summary['best_step'] == 2 and summary['steps'] == 5
  assert len(tests.models) == 4
  _assert_kept(tmp_path, before.models[1])
  _assert_kept(tmp_path, mean)
  pairs = zip(*map(jax.tree.leaves, (mean.params, own.params)), strict=True)
  assert not all(np.array_equal(a, b) for a, b in pairs)
  assert 'one_worker' in summary


@pytest.mark.parametrize('damage', ['', 'gone', 'cut', 'other'])
def test_what_is_kept_is_read_again_or_told_to_be_damaged(tmp_path, damage):
  path = tmp_path / 'best.npz'
  made = {'w': np.arange(4.0), 'b': np.ones(2, np.float16)}
  kept = {
    'step': np.int64(7),
    evaluation.MEAN: evaluation.Model(made, {}),
  }
  records.write_params(path, kept)
  like = jax.tree.map(np.zeros_like, kept)
  if damage == 'gone':
    path.unlink()
  elif damage == 'cut':
    path.write_bytes(path.read_bytes()[:-40])
  elif damage == 'other':
    np.savez(path, step=np.int64(7))
  if damage:
    with pytest.raises(errors.FileError, match=r'best\.npz is missing, damag'):
      records.read_params(path, like)
    return
  found = records.read_params(path, like)
  jax.tree.map(np.testing.assert_array_equal, found, kept)


def test_without_tests_it_is_refused():
  config = default.get_config()
  config.train.update(keep_best=True, eval_every=0)
  with pytest.raises(errors.ConfigError, match='> 0 with train.keep_best=True'):
    settings.check(config.to_dict())
