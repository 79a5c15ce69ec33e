"""What is kept with parameters says what their numbers stand for."""

import json

from configs import default
from experiments import tasks
from experiments.data import translation
import numpy as np
from tests.experiments.data import sounds


def _built(**fields):
  config = default.get_config()
  config.data.update(fields)
  config.train.batch_size = 1
  return config


def _task(config):
  return tasks.build(config, num_workers=1, workers=(0,))[0]


def test_images_have_classes_that_their_set_numbers():
  config = _built(name='digits')
  config.model.name = 'logistic'
  assert _task(config).files() == {}


def test_letters_come_after_the_blank(tmp_path):
  sounds.write_fsdd(tmp_path, speakers=('ann',), numbers=9)
  config = _built(name='fsdd', dir=str(tmp_path), transcripts='words')
  config.model.name = 'deepspeech_small'
  task = _task(config)
  (content,) = task.files().values()
  symbols = json.loads(content)
  assert len(symbols) == task.model.classes
  said = task.corpus.train.alphabet.encode('two nine')
  assert [symbols[number] for number in said] == ['two', 'nine']
  assert symbols[0] == ''


def test_pieces_and_what_cuts_a_text_into_them(tmp_path):
  for language, text in (('en', 'a dog sees a cat'), ('de', 'ein Hund')):
    for part in ('train', 'test_2016_flickr'):
      (tmp_path / f'{part}.{language}').write_text(f'{text}\n')
  config = _built(name='multi30k', dir=str(tmp_path), vocabulary=25)
  config.model.name = 'attention_small'
  files = _task(config).files()
  symbols = json.loads(files[tasks.SYMBOLS])
  vocabulary = translation.Vocabulary(files['vocabulary.model'])
  (row,) = vocabulary.encode(['a dog'])
  joined = ''.join(symbols[number] for number in row)
  assert joined.replace('\u2581', ' ').strip() == 'a dog'
  assert vocabulary.decode(np.array([row])) == ['a dog']
