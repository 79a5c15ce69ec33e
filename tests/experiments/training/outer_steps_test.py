"""A run with outer steps: what it sends, tests, saves, and hands over."""

import functools
import json

from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import settings
from experiments.program import errors
from experiments.program import manifest
from experiments.training import train
import gradsparse as gs
import jax
import numpy as np
import optax
import pytest
from tests import marks
from tests.experiments.training import resizing_test

EVERY = 3


@pytest.fixture(scope='module')
def make_config(tiny_config):
  def make(steps=9, num_workers=2, **fields):
    config = tiny_config(
      'gradient_dropping', density=0.25, values='exponent4', steps=steps
    )
    config.parallel.num_workers = num_workers
    config.parallel.resize = True
    config.train.checkpoint_every = 2
    config.optimizer.name = 'adamw'
    config.optimizer.sync_every = EVERY
    config.compression.clip_norm = 1.0
    config.update_from_flattened_dict(fields)
    return config

  return make


def lines(workdir):
  text = (workdir / 'metrics.jsonl').read_text()
  return [json.loads(line) for line in text.splitlines()]


def params(workdir):
  with np.load(workdir / 'params.npz') as found:
    return dict(found)


@pytest.mark.slow
def test_it_sends_once_in_so_many_steps(make_config, tmp_path):
  config = make_config(**{'train.log_every': 1})
  summary = train.train_and_evaluate(config, tmp_path)
  sent = [line['comm/payload_bytes'] for line in lines(tmp_path)]
  assert [n > 0 for n in sent] == [False, False, True] * 3
  assert len(set(sent[2::3])) == 1
  assert summary['comm']['payload_bytes_per_step'] == pytest.approx(sent[2] / 3)
  # The anchor: the parameters of all workers after an exchange.
  assert summary['final'] == summary['one_worker']['final']
  assert f'in one of {EVERY} updates' in (tmp_path / 'plan.txt').read_text()


def test_momentum_is_that_of_the_workers_optimizers(tiny_config, monkeypatch):
  config = tiny_config('dgc', density=0.25)
  config.optimizer.sync_every = EVERY
  given, factory = {}, schemes.factory

  def spied(name):
    @functools.wraps(factory(name))
    def make(**arguments):
      given.update(arguments)
      return factory(name)(**arguments)

    return make

  monkeypatch.setattr(schemes, 'factory', spied)
  tx = optimizer.make(config, lambda step: 0.1, None, axis_name=None)
  alone, _ = tx.init({'w': np.ones((4, 3), np.float32)})
  assert optax.tree.get(alone, 'trace') is not None
  assert given['momentum'] == 0 and not given['nesterov']


@pytest.mark.slow
@pytest.mark.parametrize('name', ['sgd', 'muon'])
def test_other_optimizers_train_inside(name, make_config, tmp_path):
  config = make_config(**{'optimizer.name': name, 'compression.clip_norm': 0.0})
  summary = train.train_and_evaluate(config, tmp_path)
  assert np.isfinite(summary['final']['test_loss'])


@pytest.mark.slow
def test_stopped_between_two_exchanges_it_ends_as_if_it_had_not_been(
  make_config, tmp_path
):
  whole, run = tmp_path / 'whole', tmp_path / 'run'
  train.train_and_evaluate(make_config(), whole)

  def stop(step, steps, line):
    del steps, line
    if step == 5:
      raise errors.DivergedError('for the test')

  with pytest.raises(errors.DivergedError):
    train.train_and_evaluate(make_config(), run, progress=stop)
  assert manifest.verify(run / 'checkpoints' / '4')['step'] == 4
  train.train_and_evaluate(make_config(), run)
  expected, found = params(whole), params(run)
  for name, x in expected.items():
    np.testing.assert_array_equal(x, found[name])


@pytest.mark.parametrize('old, new', marks.few([(4, 2), (2, 6)]))
def test_other_workers_go_on_and_nothing_pending_is_lost(
  old, new, make_config, tmp_path
):
  before = resizing_test.saved(make_config(num_workers=old), tmp_path)
  after, _ = resizing_test.restored(make_config(num_workers=new), tmp_path)
  alone, outer = before.opt_state
  new_alone, new_outer = after.opt_state

  def keeps_mean(new, old):
    resizing_test.close(np.mean(new, 0), np.mean(np.float64(old), 0))

  jax.tree.map(keeps_mean, gs.pending(new_outer), gs.pending(outer))
  # Moments are of each worker, too.
  for field in ('mu', 'nu'):
    jax.tree.map(
      keeps_mean,
      optax.tree.get(new_alone, field),
      optax.tree.get(alone, field),
    )
  for field in ('anchor', 'outer', 'step'):
    jax.tree.map(
      np.testing.assert_array_equal,
      getattr(new_outer, field),
      getattr(outer, field),
    )
  mean = jax.tree.map(lambda x: np.mean(np.float64(x), 0), before.params)
  jax.tree.map(
    lambda new, old: resizing_test.close(new, np.stack([old] * len(new))),
    after.params,
    mean,
  )


@pytest.mark.parametrize(
  'field, value, words',
  [
    ('train.steps', 10, 'multiple of optimizer.sync_every=3'),
    ('train.eval_every', 4, 'multiple of optimizer.sync_every=3'),
    ('compression.local_gradient', 'sum', 'local_gradient'),
    (
      'optimizer.schedule',
      'plateau',
      'schedule must be another one with .*plateau',
    ),
    ('optimizer.weight_decay', 0.1, 'weight_decay must be 0.0'),
    ('train.ema_decay', 0.9, 'ema_decay'),
    ('optimizer.outer_momentum', 1.0, 'outer_momentum'),
  ],
)
def test_it_refuses(field, value, words, make_config):
  config = make_config(**{'optimizer.name': 'sgd', field: value})
  with pytest.raises(errors.ConfigError, match=words):
    settings.check(config.to_dict())
