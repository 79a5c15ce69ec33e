"""A task that is tested on another split than its training's tests."""

from configs import default
from experiments import tasks
from experiments.data.translation import bpe
from experiments.program import errors
import numpy as np
import pytest
from tests.experiments.data import sounds


def _config(**data):
  config = default.get_config()
  config.data.update(data)
  return config


def _build(config, split):
  config.data.test_split = split
  return tasks.build(config, num_workers=1, workers=(0,))[0]


def test_images():
  config = _config(name='digits')
  held_out, whole = (_build(config, split) for split in ('validation', 'test'))
  found = tasks.tested_on(held_out, config, 'test').examples
  np.testing.assert_array_equal(found.labels, whole.examples.labels)
  assert len(held_out.examples.labels) != len(found.labels)


def test_a_text(tmp_path):
  for part, text in (('train', 'a b c d'), ('valid', 'c'), ('test', 'd a')):
    (tmp_path / f'ptb.{part}.txt').write_text(f' {text} <unk> \n')
  config = _config(name='ptb', dir=str(tmp_path))
  config.model.name = 'lstm_200'
  config.train.update(batch_size=1, bptt_length=2)
  one = _build(config, 'validation')
  found = tasks.tested_on(one, config, 'test').corpus
  words = [found.symbols[number] for number in found.test]
  assert words == ['d', 'a', '<unk>', '<eos>']
  assert found.train is one.corpus.train
  assert found.symbols is one.corpus.symbols


def test_translations_have_their_own_references(tmp_path, monkeypatch):
  for part, text in (
    ('train', 'a dog sees a cat\nthe cat sees the dog\n'),
    ('valid', 'a cat\n'),
    ('test', 'the dog\na dog\n'),
  ):
    for language in ('en', 'de'):
      (tmp_path / f'{part}.{language}').write_text(text)
  config = _config(name='wmt', dir=str(tmp_path), vocabulary=20)
  config.model.name = 'attention_small'
  config.train.batch_size = 1
  one = _build(config, 'validation')
  assert one.corpus.references == ('a cat',)
  monkeypatch.setattr(bpe, 'train', None)  # is not learnt again
  found = tasks.tested_on(one, config, 'test').corpus
  assert found.references == ('the dog', 'a dog')
  assert len(found.test.target.lengths) == 2
  assert found.train is one.corpus.train
  assert found.vocabulary is one.corpus.vocabulary


def test_utterances(tmp_path):
  sounds.write_fsdd(tmp_path, speakers=('ann',), numbers=12)
  config = _config(name='fsdd', dir=str(tmp_path), transcripts='words')
  config.model.name = 'deepspeech_small'
  config.train.batch_size = 1
  one = _build(config, 'validation')
  expected = _build(config, 'test').corpus
  found = tasks.tested_on(one, config, 'test').corpus
  assert found.train is one.corpus.train
  texts, wanted = (
    [u.text for u in corpus.test.utterances] for corpus in (found, expected)
  )
  assert texts == wanted


def test_a_split_that_is_not_there_is_named_by_its_field():
  config = _config(name='digits')
  one = _build(config, 'validation')
  with pytest.raises(
    errors.ConfigError, match=r"^data\.final_split='dev': .* got 'dev'$"
  ):
    tasks.tested_on(one, config, 'dev')
