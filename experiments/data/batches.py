"""Which examples a step trains on: a pure function of the seed and the step.

There is no iterator to save. The position in the data *is* the step, so a run
that resumes at a step reads what the uninterrupted run would have read.
"""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.data import dataset
from experiments.program import errors
import numpy as np


class Position(NamedTuple):
  """Where in the data a step starts; goes into the checkpoint."""

  step: int
  epoch: int
  examples_into_epoch: int


class Sampler:
  """Shuffled batches, one a worker, of the steps of a run.

  Each epoch is a fresh permutation of the training set, dealt out to the
  workers; what does not fill a last batch of all workers is left out of that
  epoch. No example is seen twice in an epoch, by any worker.
  """

  def __init__(
    self,
    train: dataset.Split,
    *,
    num_workers: int,
    batch_size: int,
    seed: int,
    augment: bool = False,
    workers: Sequence[int] | None = None,
  ):
    """Plans the batches.

    Args:
      train: the examples.
      num_workers: number of workers that share an epoch.
      batch_size: examples of one worker in a step.
      seed: decides every permutation and every augmentation.
      augment: whether to shift images by up to an eighth of their width and
        to flip them left to right.
      workers: whose batches `batch` returns; all if None.

    Raises:
      ConfigError: the training set does not fill one step.
    """
    self._train = train
    self._workers = num_workers
    self._batch = batch_size
    self._seed = seed
    self._augment = augment
    self._own = np.arange(num_workers) if workers is None else list(workers)
    self._cached: tuple[int, np.ndarray] | None = None
    self.steps_per_epoch = len(train.labels) // (num_workers * batch_size)
    if not self.steps_per_epoch:
      raise errors.ConfigError(
        f'{num_workers} workers with train.batch_size {batch_size} need '
        f'{num_workers * batch_size} examples a step; the training set has '
        f'{len(train.labels)}'
      )

  def position(self, step: int) -> Position:
    """Returns where in the data `step` (counted from 0) starts."""
    epoch, batch = divmod(step, self.steps_per_epoch)
    return Position(step, epoch, batch * self._workers * self._batch)

  def batch(self, step: int) -> dataset.Split:
    """Returns the examples of `step` (counted from 0).

    Returns:
      Images `[workers, batch_size, height, width, channels]` and labels
      `[workers, batch_size]`, of the workers that the sampler is for.
    """
    at = self.position(step)
    size = self._workers * self._batch
    own = np.arange(size).reshape(self._workers, self._batch)[self._own]
    shape, own = own.shape, own.reshape(-1)
    rows = self._permutation(at.epoch)[at.examples_into_epoch + own]
    images, labels = self._train.take(rows)
    if self._augment:
      # The tag keeps these draws apart from the permutations'.
      rng = np.random.default_rng([self._seed, step, 1])
      images = _shift_and_flip(
        images, *_shifts(size, images.shape[1], rng, own)
      )
    return dataset.Split(
      images.reshape(*shape, *images.shape[1:]), labels.reshape(shape)
    )

  def _permutation(self, epoch: int) -> np.ndarray:
    if self._cached is None or self._cached[0] != epoch:
      rng = np.random.default_rng([self._seed, epoch, 0])
      self._cached = epoch, rng.permutation(len(self._train.labels))
    return self._cached[1]


def _shifts(
  count: int, height: int, rng: np.random.Generator, own: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Draws for a whole step; returns (top, left, flipped) of `own` images."""
  top, left = rng.integers(0, 2 * (height // 8) + 1, size=(2, count, 1, 1))
  flipped = rng.integers(0, 2, size=(count, 1, 1), dtype=bool)
  return top[own], left[own], flipped[own]


def _shift_and_flip(
  images: np.ndarray, top: np.ndarray, left: np.ndarray, flipped: np.ndarray
) -> np.ndarray:
  """Pads by an eighth with zeros, crops and flips as drawn."""
  count, height, width, _ = images.shape
  pad = height // 8
  padded = np.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
  rows = top + np.arange(height)[:, None]
  columns = np.arange(width)[None, :]
  columns = left + np.where(flipped, columns[:, ::-1], columns)
  return padded[np.arange(count)[:, None, None], rows, columns]
