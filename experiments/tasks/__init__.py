"""What is learned: a data set and a model, joined by a loss and a test.

The name of the data set decides the task.
"""

import dataclasses
from typing import Any, NamedTuple

from experiments import data
from experiments import models
from experiments.data import language as texts
from experiments.program import errors
from experiments.tasks.classification import Classification as Classification
from experiments.tasks.language import Language as Language
from experiments.tasks.task import SYMBOLS as SYMBOLS
from experiments.tasks.task import VOCABULARY as VOCABULARY
from experiments.tasks.task import Outcome as Outcome
from experiments.tasks.task import Task as Task
from experiments.tasks.task import Variables as Variables
import ml_collections

_SPEECH = ('an4', 'fsdd', 'librispeech')
_TRANSLATION = ('multi30k', 'wmt')
_TESTED = {'test', 'references'}  # fields of a corpus
TRANSCRIPTS = ('letters', 'words')
# Names of data sets.
DATA = (*data.NAMES, *texts.NAMES, *_SPEECH, *_TRANSLATION)


class Built(NamedTuple):
  """A task, and the batches of its training.

  Attributes:
    task: what is learned.
    sampler: which batch a step sees, see `data.Sampler`; those of other tasks
      have the same methods. `counts` also has how many examples are never
      trained on, by the reason.
  """

  task: Task
  sampler: Any


def build(
  config: ml_collections.ConfigDict,
  *,
  num_workers: int,
  workers: tuple[int, ...],
) -> Built:
  """Returns the task of a configuration, and its batches.

  Args:
    config: see `configs/default.py`.
    num_workers: number of (inner) workers that share an epoch.
    workers: those of this process, whose batches are read.

  Raises:
    UserError: the data are not there, or the model cannot take them.
  """
  found = _load(config, config.data.test_split)
  drawn = {
    'num_workers': num_workers,
    'batch_size': config.train.batch_size,
    'seed': config.train.seed,
    'workers': workers,
  }
  if config.data.name in texts.NAMES:
    return _language(config, found, drawn)
  if config.data.name in _SPEECH:
    return _speech(config, found, drawn)
  if config.data.name in _TRANSLATION:
    return _translation(config, found, drawn)
  return _classification(config, found, drawn)


def tested_on(
  task: Task, config: ml_collections.ConfigDict, split: str
) -> Task:
  """Returns a task that is tested on another split; its training is the same.

  Args:
    task: of the configuration.
    config: see `configs/default.py`.
    split: that `data.final_split` names.

  Raises:
    UserError: there is no such split, or its data are not there.
  """
  try:
    found = _load(config, split, task)
  except errors.ConfigError as error:
    raise errors.ConfigError(f'data.final_split={split!r}: {error}') from error
  if isinstance(task, Classification):
    return dataclasses.replace(task, examples=found.test)
  changed = {name: getattr(found, name) for name in _TESTED & {*found._fields}}
  return dataclasses.replace(task, corpus=task.corpus._replace(**changed))


def _load(
  config: ml_collections.ConfigDict, split: str, task: Task | None = None
) -> Any:
  """Returns what there is to train on, and to test on.

  Args:
    config: see `configs/default.py`.
    split: what to test on.
    task: of another split, whose vocabulary need not be learnt again.
  """
  section = config.data
  where = section.name, section.dir, split
  if section.name in texts.NAMES:
    return texts.load(*where)
  if section.name in _SPEECH:
    from experiments.data import speech as recordings  # needs soundfile

    return recordings.load(*where, section.transcripts)
  if section.name in _TRANSLATION:
    from experiments.data import translation as sentences  # needs sentencepiece

    return sentences.load(
      *where,
      source=section.source,
      target=section.target,
      vocabulary=section.vocabulary,
      trained=task and task.corpus,
      cache=section.cache,
    )
  return data.load(*where, section.image_size)


def _classification(config, dataset, drawn) -> Built:
  sampler: Any = data.Sampler(
    dataset.train, augment=config.data.augment, **drawn
  )
  if dataset.ahead:
    sampler = data.Ahead(sampler, dataset.ahead, config.train.steps)
  model = models.create(config.model.name, dataset.classes, 'images')
  models.check_images(config.model.name, dataset.train.image_shape)
  task = Classification(
    model,
    image_shape=dataset.train.image_shape,
    mean=dataset.mean,
    std=dataset.std,
    classes=dataset.classes,
    examples=dataset.test,
  )
  return Built(task, sampler)


def _language(config, corpus, drawn) -> Built:
  length = config.train.bptt_length
  task = Language(
    models.create(config.model.name, len(corpus.symbols), 'language'),
    corpus,
    batch_size=config.train.batch_size,
    window=length,
    characters=config.data.name == 'ptb_characters',
  )
  return Built(task, texts.Windows(corpus.train, length=length, **drawn))


def _speech(config, corpus, drawn) -> Built:
  from experiments.data import speech as recordings  # needs soundfile
  from experiments.tasks import speech  # needs jiwer

  num_buckets = config.data.buckets
  classes = corpus.train.alphabet.classes
  model = models.create(config.model.name, classes, 'speech')
  task = speech.Speech(model, corpus, num_buckets=num_buckets)
  sampler = recordings.Sampler(
    corpus.train, num_buckets=num_buckets, stride=task.stride, **drawn
  )
  ahead = data.Ahead(sampler, recordings.AHEAD, config.train.steps)
  return Built(task, ahead)


def _translation(config, corpus, drawn) -> Built:
  from experiments.data import translation as sentences  # needs sentencepiece
  from experiments.tasks import translation  # needs sacrebleu

  section, classes = config.data, corpus.vocabulary.size
  if section.tokens:
    drawn = {**drawn, 'batch_size': 0}
  sampler = sentences.Sampler(
    corpus.train,
    batch_tokens=section.tokens,
    max_length=section.max_length,
    num_buckets=section.buckets,
    **drawn,
  )
  task = translation.Translation(
    models.create(config.model.name, classes, 'translation'),
    corpus,
    config.test.beam,
    section.buckets,
  )
  return Built(task, sampler)
