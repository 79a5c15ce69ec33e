"""What is learned: a data set and a model, joined by a loss and a test.

The name of the data set decides the task.
"""

import dataclasses
import importlib
from typing import Any

from experiments import data
from experiments.data import language as texts
from experiments.program import errors
from experiments.tasks.classification import Classification as Classification
from experiments.tasks.task import SYMBOLS as SYMBOLS
from experiments.tasks.task import VOCABULARY as VOCABULARY
from experiments.tasks.task import Task as Task
import ml_collections

# The module that knows the task of a data set, by the set's name. Some need
# packages of their own: it is imported when the set is asked for.
_MODULES = {
  **dict.fromkeys(data.NAMES, 'classification'),
  **dict.fromkeys(texts.NAMES, 'language'),
  **dict.fromkeys(('an4', 'fsdd', 'librispeech'), 'speech'),
  **dict.fromkeys(('multi30k', 'wmt'), 'translation'),
}
DATA = tuple(_MODULES)
TRANSCRIPTS = ('letters', 'words')
_TESTED = {'test', 'references'}  # fields of a corpus


def build(
  config: ml_collections.ConfigDict,
  *,
  num_workers: int,
  workers: tuple[int, ...],
) -> tuple[Task, Any]:
  """Returns the task of a configuration, and the sampler of its batches.

  Which batch a step sees is said by a `data.Sampler`; those of other tasks have
  the same methods. `counts` also has how many examples are never trained on, by
  the reason.

  Args:
    config: see `configs/default.py`.
    num_workers: number of (inner) workers that share an epoch.
    workers: those of this process, whose batches are read.

  Raises:
    UserError: the data are not there, or the model cannot take them.
  """
  section, train = config.data, config.train
  module = _module(section.name)
  return module.build(
    config,
    module.load(section, section.test_split, None),
    num_workers=num_workers,
    batch_size=train.batch_size,
    seed=train.seed,
    workers=workers,
  )


def tested_on(task: Task, config: Any, split: str) -> Task:
  """Returns a task that is tested on another split; its training is the same.

  Args:
    task: of the configuration.
    config: see `configs/default.py`.
    split: that `data.final_split` names.

  Raises:
    UserError: there is no such split, or its data are not there.
  """
  try:
    found = _module(config.data.name).load(config.data, split, task)
  except errors.ConfigError as error:
    raise errors.ConfigError(f'data.final_split={split!r}: {error}') from error
  if isinstance(task, Classification):
    return dataclasses.replace(task, examples=found.test)
  changed = {name: getattr(found, name) for name in _TESTED & {*found._fields}}
  return dataclasses.replace(task, corpus=task.corpus._replace(**changed))


def _module(name: str) -> Any:
  """Returns the module that knows the task of a data set.

  It has `load(config.data, split, task)`, what there is to train on and to test
  on; a task of another split has a vocabulary that need not be learnt again.
  And `build(config, found, **drawn)`, the task and the batches of its training.
  """
  return importlib.import_module(f'experiments.tasks.{_MODULES[name]}')
