"""What is learned: a data set and a model, joined by a loss and a test.

The name of the data set decides the task.
"""

from typing import NamedTuple, Protocol

from experiments import data
from experiments import models
from experiments.tasks.classification import Classification
from experiments.tasks.task import Outcome
from experiments.tasks.task import Task
from experiments.tasks.task import Variables
import ml_collections

__all__ = [
  'Built',
  'Classification',
  'Outcome',
  'Sampler',
  'Task',
  'Variables',
  'build',
]


class Sampler(Protocol):
  """Which batch a step sees: a pure function of the seed and the step.

  Attributes:
    steps_per_epoch: how many batches the training set has.
  """

  steps_per_epoch: int

  def position(self, step: int) -> data.batches.Position:
    """Returns where in the data `step` (counted from 0) starts."""

  def batch(self, step: int) -> data.Batch:
    """Returns the batch of `step`, of this process' workers."""


class Built(NamedTuple):
  """A task, and the batches of its training."""

  task: Task
  sampler: Sampler


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
  dataset = data.load(
    config.data.name,
    config.data.dir,
    config.data.test_split,
    config.data.image_size,
  )
  models.check_images(config.model.name, dataset.train.image_shape)
  sampler: Sampler = data.Sampler(
    dataset.train,
    num_workers=num_workers,
    batch_size=config.train.batch_size,
    seed=config.train.seed,
    augment=config.data.augment,
    workers=workers,
  )
  if dataset.ahead:
    sampler = data.Ahead(sampler, dataset.ahead, config.train.steps)
  task = Classification(
    models.create(config.model.name, dataset.classes),
    image_shape=dataset.train.image_shape,
    mean=dataset.mean,
    std=dataset.std,
    classes=dataset.classes,
    examples=dataset.test,
  )
  return Built(task, sampler)
