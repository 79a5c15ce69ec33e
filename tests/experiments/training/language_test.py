"""A language model's run: hidden states go on, also where it was stopped."""

import json

from experiments import models
from experiments.program import errors
from experiments.training import train
import numpy as np
import pytest

_WORDS = ('a', 'b', 'c', 'd', 'e', '<unk>')


class _Killed(Exception):
  pass


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Writes a text in which each word says what comes next."""
  made = tmp_path_factory.mktemp('data') / 'ptb'
  made.mkdir()
  for part, lines in (('train', 80), ('valid', 9), ('test', 7)):
    text = ''.join(f' {" ".join(_WORDS)} \n' for _ in range(lines))
    (made / f'ptb.{part}.txt').write_text(text)
  return made


@pytest.fixture
def make_config(tiny_config, folder, compiled_once, monkeypatch):
  """Returns a function that makes the run of all these tests."""
  small = models.LanguageLSTM
  monkeypatch.setitem(
    models.KINDS['language'],
    'lstm_200',
    lambda classes: small(classes, units=8, layers=1, dropout=0.0, limit=0.3),
  )

  def make(scheme='dgc', **arguments):
    if scheme == 'dgc':
      arguments |= {'density': 0.1}
    config = tiny_config(scheme, steps=8, **arguments)
    config.data.update(name='ptb', dir=str(folder))
    config.model.name = 'lstm_200'
    config.train.update(
      batch_size=3,
      bptt_length=7,
      learning_rate=2.0,
      log_every=1,
      checkpoint_every=3,
    )
    return config

  return make


def _end(workdir):
  with np.load(workdir / 'params.npz') as archive:
    params = dict(archive)
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return params, [json.loads(line)['train/loss'] for line in lines]


def _same(one, other, **tolerance):
  for name, value in one[0].items():
    np.testing.assert_allclose(other[0][name], value, **tolerance)
  np.testing.assert_allclose(other[1], one[1], **tolerance)


@pytest.mark.slow
def test_it_learns_and_says_its_perplexity(make_config, tmp_path):
  config = make_config('dense')
  config.train.update(
    steps=60, log_every=20, checkpoint_every=0, learning_rate=0.02
  )
  config.optimizer.name = 'adam'
  summary = train.train_and_evaluate(config, tmp_path)
  assert set(summary['final']) == {'test_loss', 'test_perplexity'}
  assert summary['final']['test_perplexity'] < 3
  line = json.loads((tmp_path / 'metrics.jsonl').read_text().splitlines()[0])
  assert line['train/words'] == 2 * 3 * 7


@pytest.mark.slow
def test_what_the_numbers_of_words_mean_is_kept_and_must_stay(
  make_config, folder, tmp_path
):
  config = make_config('dense')
  config.train.update(steps=3)
  # Of a translation that was tried there before.
  (tmp_path / 'vocabulary.model').write_text('')
  (tmp_path / 'best.npz').write_text('')
  summary = train.train_and_evaluate(config, tmp_path)
  # A line ends with its own symbol.
  symbols = json.loads((tmp_path / 'symbols.json').read_text())
  assert not (tmp_path / 'vocabulary.model').exists()
  assert not (tmp_path / 'best.npz').exists()
  assert sorted(symbols) == sorted({*_WORDS, '<eos>'})
  assert summary['data']['symbols'] == 80 * 7
  train.train_and_evaluate(config, tmp_path)
  # Another text with as many words: step 3 is at the same place in it.
  text = (folder / 'ptb.train.txt').read_text().replace('b', 'x')
  other = tmp_path / 'ptb'
  other.mkdir()
  (other / 'ptb.train.txt').write_text(text)
  for part in ('valid', 'test'):
    name = f'ptb.{part}.txt'
    (other / name).write_text((folder / name).read_text().replace('b', 'x'))
  config.data.dir = str(other)
  with pytest.raises(errors.ResumeError, match=r'symbols\.json does not match'):
    train.train_and_evaluate(config, tmp_path)


@pytest.mark.slow
def test_the_last_model_is_tested_on_a_final_split_too(make_config, tmp_path):
  config = make_config('dense')
  config.train.update(steps=2, checkpoint_every=0)
  whole = train.train_and_evaluate(config, tmp_path / 'whole')
  assert 'final_split' not in whole
  config.data.update(test_split='validation', final_split='test')
  both = train.train_and_evaluate(config, tmp_path / 'both')
  assert both['final_split'] == {'split': 'test', **whole['final']}
  assert both['final'] != whole['final']
  written = json.loads((tmp_path / 'both' / 'summary.json').read_text())
  assert written['final_split'] == both['final_split']


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_its_hidden_states(
  make_config, tmp_path
):
  def kill(step, steps, line):
    del steps, line
    if step == 5:
      raise _Killed

  train.train_and_evaluate(make_config(), tmp_path / 'whole')
  with pytest.raises(_Killed):
    train.train_and_evaluate(make_config(), tmp_path / 'run', progress=kill)
  train.train_and_evaluate(make_config(), tmp_path / 'run')
  _same(_end(tmp_path / 'whole'), _end(tmp_path / 'run'), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['shard_map', 'pmap'])
def test_runners_train_alike(runner, make_config, tmp_path):
  for each in ('simulate', runner):
    config = make_config()
    config.parallel.runner = each
    train.train_and_evaluate(config, tmp_path / each)
  ends = [_end(tmp_path / each) for each in ('simulate', runner)]
  _same(*ends, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_other_workers_begin_with_nothing_in_mind(
  make_config, tmp_path, caplog
):
  train.train_and_evaluate(make_config(), tmp_path)
  config = make_config()
  config.train.steps = 10
  config.parallel.update(num_workers=3, resize=True)
  summary = train.train_and_evaluate(config, tmp_path)
  assert summary['steps'] == 10
  assert 'hidden states begin anew' in caplog.text


@pytest.mark.slow
def test_other_windows_are_another_run(make_config, tmp_path):
  train.train_and_evaluate(make_config(), tmp_path)
  config = make_config()
  config.train.update(steps=10, bptt_length=5)
  with pytest.raises(errors.ResumeError, match='bptt_length: was 7, now 5'):
    train.train_and_evaluate(config, tmp_path)


def test_a_model_of_images_is_refused(make_config, tmp_path):
  config = make_config()
  config.model.name = 'resnet8'
  with pytest.raises(errors.ConfigError, match="for language, got 'resnet8'"):
    train.train_and_evaluate(config, tmp_path)
  assert not any(tmp_path.iterdir())
