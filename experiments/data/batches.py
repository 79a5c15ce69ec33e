"""Which examples a step trains on: a pure function of the seed and the step.

There is no iterator to save. The position in the data *is* the step, so a run
that resumes at a step reads what the uninterrupted run would have read.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from experiments.program import errors
import numpy as np


class Position(NamedTuple):
  """Where in the data a step starts; goes into the checkpoint."""

  step: int
  epoch: int
  examples_into_epoch: int


class Batch(NamedTuple):
  """What the workers train on in a step; the first axis is of workers.

  Attributes:
    inputs: arrays by name, as the task has them; the second axis is of the
      examples of a worker. Of images: `images`, uint8[workers, batch_size,
      height, width, channels], and `labels`, int32[workers, batch_size].
    noise: uint32[workers, 2], from which a model's dropout draws.
  """

  inputs: Mapping[str, np.ndarray]
  noise: np.ndarray


class OfWorkers:
  """What all samplers know: how many workers, and whose batches to return."""

  def __init__(
    self, num_workers: int, seed: int, workers: Sequence[int] | None
  ):
    """Keeps the arguments.

    Args:
      num_workers: number of workers that share an epoch.
      seed: decides all that is drawn.
      workers: whose batches `batch` returns; all if None.
    """
    self._workers, self._seed = num_workers, seed
    own = range(num_workers) if workers is None else workers
    self._own = np.array(own, int)

  def _with_noise(self, step: int, inputs: Mapping[str, np.ndarray]) -> Batch:
    # The tag keeps these draws apart from those of permutations and images.
    rng = np.random.default_rng([self._seed, step, 2])
    noise = rng.integers(0, 2**32, (self._workers, 2), np.uint32)
    return Batch(inputs, noise[self._own])


class Sampler(OfWorkers):
  """Shuffled batches, one a worker, of the steps of a run.

  Each epoch is a fresh permutation of the training set, dealt out to the
  workers; what does not fill a last batch of all workers is left out of that
  epoch. No example is seen twice in an epoch, by any worker.

  Attributes:
    steps_per_epoch: how many batches the training set has.
    counts: `examples` of the training set, and how many of them an epoch leaves
      out, `left_out`; each epoch it is others.
  """

  def __init__(
    self,
    train: Any,
    *,
    num_workers: int,
    batch_size: int,
    seed: int,
    augment: bool = False,
    workers: Sequence[int] | None = None,
  ):
    """Plans the batches.

    Args:
      train: the examples, see `dataset.Split`.
      num_workers: number of workers that share an epoch.
      batch_size: examples of one worker in a step.
      seed: decides all that is drawn.
      augment: whether to draw what is seen of an image, as its data set does.
      workers: whose batches `batch` returns; all if None.

    Raises:
      ConfigError: the training set does not fill one step.
    """
    super().__init__(num_workers, seed, workers)
    self._train = train
    self._batch = batch_size
    self._augment = augment
    self._cached: tuple[int, np.ndarray] | None = None
    self.steps_per_epoch = len(train.labels) // (num_workers * batch_size)
    if not self.steps_per_epoch:
      raise errors.ConfigError(
        f'{num_workers} workers with train.batch_size {batch_size} need '
        f'{num_workers * batch_size} examples a step; the training set has '
        f'{len(train.labels)}'
      )
    count = len(train.labels)
    left_out = count % (num_workers * batch_size)
    self.counts = {'examples': count, 'left_out': left_out}

  def position(self, step: int) -> Position:
    """Returns where in the data `step` (counted from 0) starts."""
    epoch, batch = divmod(step, self.steps_per_epoch)
    return Position(step, epoch, batch * self._workers * self._batch)

  def batch(self, step: int) -> Batch:
    """Returns what the workers that the sampler is for see in `step`."""
    at = self.position(step)
    size = self._workers * self._batch
    own = np.arange(size).reshape(self._workers, self._batch)[self._own]
    shape, own = own.shape, own.reshape(-1)
    rows = self._permutation(at.epoch)[at.examples_into_epoch + own]
    drawn = None
    if self._augment:
      # The tag keeps these draws apart from the permutations'.
      rng = np.random.default_rng([self._seed, step, 1])
      drawn = [all_of[own] for all_of in self._train.draw(rng, size)]
    images, labels = self._train.take(rows, drawn)
    inputs = {
      'images': images.reshape(*shape, *images.shape[1:]),
      'labels': labels.reshape(shape),
    }
    return self._with_noise(step, inputs)

  def _permutation(self, epoch: int) -> np.ndarray:
    if self._cached is None or self._cached[0] != epoch:
      rng = np.random.default_rng([self._seed, epoch, 0])
      self._cached = epoch, rng.permutation(len(self._train.labels))
    return self._cached[1]


class Ahead:
  """A sampler whose next batches are read while a step is computed.

  A batch is the same as without, whatever was asked for before.
  """

  def __init__(self, sampler: Sampler, batches: int, steps: int):
    """Reads nothing yet.

    Args:
      sampler: knows the batches.
      batches: how many are read ahead, and held in memory.
      steps: of the run; nothing is read beyond.
    """
    self._sampler = sampler
    self._batches = batches
    self._steps = steps
    self._reader = futures.ThreadPoolExecutor(1, 'batches')
    self._coming: dict[int, futures.Future[Batch]] = {}
    self.steps_per_epoch = sampler.steps_per_epoch
    self.counts = sampler.counts

  def position(self, step: int) -> Position:
    """Returns where in the data `step` (counted from 0) starts."""
    return self._sampler.position(step)

  def batch(self, step: int) -> Batch:
    """Returns the batch of `step`, and begins to read those after it."""
    last = min(step + self._batches, self._steps - 1)
    wanted = range(step, max(step, last) + 1)
    for other in set(self._coming).difference(wanted):
      self._coming.pop(other).cancel()
    for each in wanted:
      if each not in self._coming:
        self._coming[each] = self._reader.submit(self._sampler.batch, each)
    return self._coming.pop(step).result()
