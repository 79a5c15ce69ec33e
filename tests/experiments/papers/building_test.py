"""Epochs of a configuration, where a part of the training set is held out."""

from experiments import data
from experiments.data import dataset
from experiments.data import speech
from experiments.data.speech import recordings
from experiments.papers import building
from experiments.papers import catalogue
import pytest

# Examples that are left to train on, by data and split.
_LEFT = {
  ('an4', 'test'): 948,
  ('an4', 'validation'): 758,
  ('cifar10', 'test'): 50_000,
  ('cifar10', 'test_batch'): 50_000,
  ('cifar10', 'data_batch_5'): 40_000,
  ('cifar10', 'validation'): 32_000,
  ('digits', 'validation'): 1_150,
  ('fashion_mnist', 'validation'): 48_000,
  ('fsdd', 'test'): 3_087,
  ('fsdd', 'validation'): 2_741,
  ('imagenet', 'validation'): 1_024_934,
  ('librispeech', 'validation'): 281_241,
  ('librispeech', 'test-other'): 281_241,
  ('mnist', 'validation'): 48_000,
  ('multi30k', 'validation'): 29_000,
  ('ptb', 'validation'): 929_589,
  ('ptb_characters', 'validation'): 5_017_482,
}


@pytest.mark.parametrize('name, split', _LEFT)
def test_an_epoch_is_of_what_is_not_held_out(name, split):
  config = building.build(
    {
      'data.name': name,
      'data.test_split': split,
      'epochs': 3,
      'warmup_epochs': 1,
      'linear_warmup_epochs': 2,
      'parallel.num_workers': 1,
      'train.batch_size': 1,
      'train.bptt_length': 1,
    }
  )
  left = _LEFT[name, split]
  assert config.train.steps == 3 * left
  assert config.train.eval_every == config.train.checkpoint_every == left
  assert config.compression.warmup_steps == left
  assert config.optimizer.linear_warmup_steps == 2 * left


def test_who_says_how_many_examples_there_are_says_it_of_what_is_left():
  config = building.build(
    {
      'data.name': 'digits',
      'data.test_split': 'validation',
      'epochs': 1,
      'examples': 640,
    }
  )
  assert config.train.steps == 10


@pytest.mark.parametrize(
  'table, row',
  [
    ('ablations_digits', 'dense'),
    ('dgc_figure5', 'dgc'),
    ('qsgd_an4', '32bit'),
    ('schemes_speech', 'dgc'),
  ],
)
def test_a_table_that_holds_out_has_as_many_epochs(table, row):
  table = catalogue.load(table)
  full, held = (table.get_config(f'{row}:{size}') for size in table.sizes[:2])
  share = (
    _LEFT[held.data.name, 'validation'] / building.EXAMPLES[full.data.name]
  )
  assert share < 0.9
  assert held.train.steps == pytest.approx(share * full.train.steps, abs=1)


def test_the_digits_loader_leaves_as_many():
  left = data.load('digits', test_split='validation').train.labels
  assert len(left) == _LEFT['digits', 'validation']


def test_the_an4_loader_leaves_as_many():
  left, _ = dataset.held_out_rows(948, dataset.VALIDATION_FRACTION)
  assert len(left) == _LEFT['an4', 'validation']


@pytest.mark.parametrize('split', ['test', 'validation'])
def test_the_fsdd_loader_makes_as_many_strings(split, tmp_path, monkeypatch):
  """Of the published recordings: 10 digits, 6 speakers, numbers 0 to 49."""
  folder = tmp_path / 'recordings'
  folder.mkdir()
  for digit in range(10):
    for speaker in 'abcdef':
      for number in range(50):
        (folder / f'{digit}_{speaker}_{number}.wav').touch()
  # Nobody listens to them.
  monkeypatch.setattr(recordings, 'Recordings', lambda strings, *_: strings)
  corpus = speech.load('fsdd', str(folder), split)
  assert len(corpus.train) == _LEFT['fsdd', split]
