"""Runs on speech and on translation: their scores, and where they go on."""

import json
import math

from experiments import models
from experiments import tasks
from experiments.data import translation
from experiments.training import experiment
from experiments.training import train
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.experiments.data import sounds

_STEPS, _SAVED, _KILLED = 6, 3, 4  # all, and after which
_LEARNS = models.TRANSLATION['attention_small']
_NOUNS = (('dog', 'Hund'), ('man', 'Mann'), ('tree', 'Baum'))


class _Killed(Exception):
  pass


@pytest.fixture
def programs(compiled_once, monkeypatch):
  """Compiles once what several runs of a test do.

  Returns a list of the shapes of batches that steps were made for, those of one
  run after those of the other.
  """
  asked, make = [], experiment.Experiment.make_train_step

  def make_noted(self, stage):
    step, own = make(self, stage), set()

    def noted(state, batch):
      shapes = tuple(x.shape for x in jax.tree.leaves(batch))
      if shapes not in own:
        own.add(shapes)
        asked.append(shapes)
      return step(state, batch)

    return noted

  monkeypatch.setattr(experiment.Experiment, 'make_train_step', make_noted)
  return asked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
  """Makes both models smaller."""
  convolutions = (models.Convolution(4, (5, 5), (2, 3)),)
  for kind, name, make in (
    (
      'speech',
      'deepspeech_small',
      lambda classes: models.DeepSpeech(
        classes, layers=1, units=24, convolutions=convolutions
      ),
    ),
    (
      'translation',
      'attention_small',
      lambda classes: models.Translator(classes, embedding=24, units=32),
    ),
  ):
    monkeypatch.setitem(models.KINDS[kind], name, make)


@pytest.fixture
def make_speech(tiny_config, tmp_path):
  """Returns a function that makes a run on strings of one speaker's digits."""
  sounds.write_fsdd(tmp_path, speakers=('ann',), numbers=9)

  def make(scheme='dense', **arguments):
    config = tiny_config(scheme, steps=_STEPS, **arguments)
    config.data.update(
      name='fsdd', dir=str(tmp_path), transcripts='words', buckets=1
    )
    config.model.name = 'deepspeech_small'
    config.train.update(batch_size=2, learning_rate=0.001, log_every=1)
    return config

  return make


@pytest.fixture
def make_translation(tiny_config, tmp_path):
  """Returns a function that makes a run on short and on long sentences."""
  folder = tmp_path / 'multi30k'
  folder.mkdir()
  short = [(f'A {a} sees.', f'Ein {x} sieht.') for a, x in _NOUNS]
  long = [
    (f'The {a} sees the {b}.', f'Der {x} sieht den {y}.')
    for a, x in _NOUNS
    for b, y in _NOUNS
  ]
  for part, pairs in (
    ('train', 3 * short + long),
    ('test_2016_flickr', short),
  ):
    for side, language in enumerate(('en', 'de')):
      text = ''.join(f'{pair[side]}\n' for pair in pairs)
      (folder / f'{part}.{language}').write_text(text)

  def make(scheme='dense', buckets=2, **arguments):
    config = tiny_config(scheme, steps=_STEPS, **arguments)
    config.data.update(
      name='multi30k', dir=str(folder), vocabulary=50, buckets=buckets
    )
    config.model.name = 'attention_small'
    config.train.update(batch_size=2, ema_decay=0.3, log_every=1)
    return config

  return make


def _kill(step, steps, line):
  del steps, line
  if step == _KILLED:
    raise _Killed


def _check_a_killed_run_goes_on(config, folder, caplog):
  """Trains at once, and with a break; returns the summary."""
  config.train.checkpoint_every = _SAVED
  whole, run = folder / 'whole', folder / 'run'
  summary = train.train_and_evaluate(config, whole)
  with pytest.raises(_Killed):
    train.train_and_evaluate(config, run, progress=_kill)
  resumed = train.train_and_evaluate(config, run)
  assert f'resuming after step {_SAVED} of {_STEPS}' in caplog.messages
  expected, found = _params(whole), _params(run)
  assert set(found) == set(expected)
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, strict=True)
  losses = _losses(run)
  assert losses == _losses(whole) and len(losses) == _STEPS
  assert resumed['final'] == summary['final']
  assert resumed['comm'] == summary['comm']
  return summary


def _params(workdir):
  with np.load(workdir / 'params.npz') as archive:
    return dict(archive)


def _losses(workdir):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  losses = [json.loads(line)['train/loss'] for line in lines]
  assert all(map(math.isfinite, losses))
  return losses


def _saved(workdir, part):
  """Returns a part of the last step's state, by the names of `_params`."""
  folder = workdir / 'checkpoints' / str(_STEPS)
  with ocp.StandardCheckpointer() as saver:
    tree = saver.restore(folder)[part]
  return {
    jax.tree_util.keystr(at, simple=True, separator='/'): np.asarray(leaf)
    for at, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def _differ(one, other):
  return any(np.any(one[name] != other[name]) for name in one)


@pytest.mark.slow
def test_speech_is_learnt_and_ends_with_its_word_error_rate(
  make_speech, tmp_path
):
  config = make_speech()
  config.train.update(steps=15, learning_rate=0.01)
  config.optimizer.name = 'adam'
  final = train.train_and_evaluate(config, tmp_path / 'run')['final']
  assert set(final) == {'test_loss', 'test_wer'}
  assert 0 <= final['test_wer'] < 0.5  # 1 for saying nothing
  assert 0 < final['test_loss'] < math.inf
  losses = _losses(tmp_path / 'run')
  assert len(losses) == 15 and max(losses[-3:]) < losses[0] / 4


@pytest.mark.slow
def test_translation_is_learnt_and_ends_with_its_bleu(
  make_translation, tmp_path, monkeypatch
):
  # A smaller one learns more slowly.
  monkeypatch.setitem(models.KINDS['translation'], 'attention_small', _LEARNS)
  config = make_translation(buckets=1)
  config.train.update(steps=12, batch_size=4, learning_rate=0.005)
  config.optimizer.name = 'adam'
  said = []
  summary = train.train_and_evaluate(
    config, tmp_path / 'run', announce=said.append
  )
  final = summary['final']
  assert set(final) == {'test_bleu', 'test_loss', 'test_sentence_loss'}
  assert summary['data'] == {
    'pairs': 18,
    'left_out': 2,
    'empty': 0,
    'too_long': 0,
  }
  assert 'training set: 18 pairs, 2 left out' in said
  vocabulary = translation.Vocabulary(
    (tmp_path / 'run' / 'vocabulary.model').read_bytes()
  )
  symbols = json.loads((tmp_path / 'run' / 'symbols.json').read_text())
  assert symbols == list(vocabulary.pieces) and len(symbols) == 50
  assert 50 < final['test_bleu'] <= 100 + 1e-6
  assert 0 < final['test_loss'] < math.inf
  losses = _losses(tmp_path / 'run')
  assert len(losses) == 12 and max(losses[-3:]) < losses[0] / 4


def test_what_is_never_trained_on_is_counted(make_translation):
  config = make_translation(buckets=1)
  built, _ = tasks.build(config, num_workers=2, workers=(0, 1))
  lengths = built.corpus.train.lengths
  config.data.max_length = int(lengths.max()) - 1
  counts = tasks.build(config, num_workers=2, workers=(0, 1))[1].counts
  longer = int(np.sum(lengths > config.data.max_length))
  assert 0 < longer == counts['too_long'] < 18


@pytest.mark.slow
def test_speech_that_was_killed_goes_on(
  make_speech, programs, tmp_path, caplog
):
  config = make_speech('dgc', density=0.1)
  summary = _check_a_killed_run_goes_on(config, tmp_path, caplog)
  assert 0 <= summary['final']['test_wer'] < math.inf
  assert len(programs) == 3 and len(set(programs)) == 1
  # Each worker has its own running averages of batch normalisation.
  for leaf in _saved(tmp_path / 'run', 'statistics').values():
    assert np.any(leaf[0] != leaf[1])


@pytest.mark.slow
def test_translation_that_was_killed_goes_on_with_smoothed_parameters(
  make_translation, programs, tmp_path, caplog
):
  summary = _check_a_killed_run_goes_on(make_translation(), tmp_path, caplog)
  assert 0 <= summary['final']['test_bleu'] <= 100
  # All three runs, so also what was left of the last, had both lengths.
  assert len(programs) == 6 and len(set(programs)) == 2
  written = _params(tmp_path / 'run')
  smoothed = _saved(tmp_path / 'run', 'smoothed')
  assert set(smoothed) == set(written)
  for name, value in smoothed.items():
    np.testing.assert_array_equal(written[name], value, strict=True)
  assert _differ(written, _saved(tmp_path / 'run', 'params'))


@pytest.mark.slow
def test_workers_of_a_local_gradient_go_on_with_their_own_parameters(
  make_translation, programs, tmp_path, caplog
):
  config = make_translation(
    'gradient_dropping', buckets=1, runner='shard_map', density=0.1
  )
  # After the break, and not at the end.
  config.compression.update(local_gradient='partial', param_sync_every=4)
  summary = _check_a_killed_run_goes_on(config, tmp_path, caplog)
  assert math.isfinite(summary['final']['test_loss'])
  assert len(programs) == 3 and len(set(programs)) == 1
  smoothed = _saved(tmp_path / 'run', 'smoothed')
  workers = [{name: x[i] for name, x in smoothed.items()} for i in range(2)]
  assert _differ(*workers)
  written = _params(tmp_path / 'run')
  assert set(written) == set(smoothed)
  for name, value in smoothed.items():
    np.testing.assert_array_equal(written[name], value.mean(0), strict=True)
