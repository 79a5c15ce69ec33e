"""Batches of examples that have lengths: few shapes, and little padding.

Examples of about the same length are in one bucket, and are padded to its
length. All workers' batches of a step are of one bucket, so a step has one
shape, and a run has as many shapes as buckets.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import functools
from typing import NamedTuple

from experiments.data import batches
from experiments.program import errors
import numpy as np

MOST = 8  # buckets, where nobody says another number
# Of a padded length: how many examples a worker takes.
BatchSize = Callable[[int], int]


class Step(NamedTuple):
  """What the workers train on in a step."""

  bucket: int
  rows: np.ndarray  # int[num_workers, batch size of the bucket], which examples


class Part(NamedTuple):
  """Some of the examples that are tested on.

  Attributes:
    rows: int[count], which they are.
    inputs: arrays of a batch. There may be more entries than `rows`: those
      after them are there for the shape only, and do not count.
  """

  rows: np.ndarray
  inputs: Mapping[str, np.ndarray]


class Plan(batches.OfWorkers):
  """Which examples a step takes: a pure function of the seed and the step.

  Each epoch deals out every bucket anew, in whole batches of all workers; what
  is left of a bucket goes on to the next longer one. The order of the batches
  is drawn for each epoch, too. So nothing is seen twice in an epoch, and what
  it leaves out is less than one step.

  Attributes:
    lengths: padded lengths of the buckets, ascending.
    batch_sizes: of one worker, for each bucket.
    steps_per_epoch: the same in all epochs.
    left_out: examples that an epoch leaves out; each epoch it is others.
  """

  def __init__(
    self,
    lengths: np.ndarray,
    *,
    batch_size: BatchSize,
    num_buckets: int,
    multiple: int,
    num_workers: int,
    seed: int,
    workers: Sequence[int] | None = None,
  ):
    """Sorts the examples into buckets.

    Args:
      lengths: int[n], one an example.
      batch_size: examples of one worker, for a padded length.
      num_buckets: how many there are at most.
      multiple: padded lengths are multiples of this.
      num_workers: number of workers that share an epoch.
      seed: decides all that is drawn.
      workers: whose batches a `Sampler` returns; all if None.

    Raises:
      ConfigError: the examples do not fill one step.
    """
    super().__init__(num_workers, seed, workers)
    padded = _padded_lengths(lengths, num_buckets, multiple)
    while True:
      sizes = [batch_size(length) for length in padded]
      buckets = np.searchsorted(padded, lengths)
      counts = np.bincount(buckets, minlength=len(padded))
      steps, left = _whole_steps(counts, [num_workers * size for size in sizes])
      if len(padded) == 1 or steps[-1]:
        break
      # The longest would never fill a step: the two last buckets become one.
      del padded[-2]
    if not sum(steps):
      raise errors.ConfigError(
        f'{num_workers} workers with batches of {sizes[-1]} need '
        f'{num_workers * sizes[-1]} examples a step; the training set has '
        f'{len(lengths)} that can be used'
      )
    self.lengths = tuple(padded)
    self.batch_sizes = tuple(sizes)
    self.steps_per_epoch = sum(steps)
    self.left_out = left
    order = np.argsort(lengths, kind='stable')
    self._members = np.split(order, np.cumsum(counts)[:-1])
    self._epoch = functools.lru_cache(2)(self._deal_out)

  def position(self, step: int) -> batches.Position:
    """Returns where in the data `step` (counted from 0) starts."""
    epoch, number = divmod(step, self.steps_per_epoch)
    before = sum(each.rows.size for each in self._epoch(epoch)[:number])
    return batches.Position(step, epoch, before)

  def at(self, step: int) -> Step:
    """Returns which examples the workers see in `step`."""
    epoch, number = divmod(step, self.steps_per_epoch)
    return self._epoch(epoch)[number]

  def _deal_out(self, epoch: int) -> list[Step]:
    rng = np.random.default_rng([self._seed, epoch, 0])
    steps: list[Step] = []
    rest = np.empty(0, int)
    for bucket, size in enumerate(self.batch_sizes):
      rows = rng.permutation(np.concatenate([rest, self._members[bucket]]))
      whole = len(rows) - len(rows) % (self._workers * size)
      dealt = rows[:whole].reshape(-1, self._workers, size)
      steps += [Step(bucket, part) for part in dealt]
      rest = rows[whole:]
    return [steps[number] for number in rng.permutation(len(steps))]


class Sampler(Plan):
  """Shuffled batches of examples of about the same length.

  Attributes:
    rows: which examples of the training set are those that have been planned.
  """

  rows: np.ndarray

  def batch(self, step: int) -> batches.Batch:
    """Returns the batches that the workers train on in `step`, from 0."""
    bucket, rows = self.at(step)
    rows = self.rows[rows[self._own]]
    inputs = {
      name: array.reshape(*rows.shape, *array.shape[1:])
      for name, array in self.take(rows.ravel(), bucket).items()
    }
    return self._with_noise(step, inputs)

  def take(self, rows: np.ndarray, bucket: int) -> dict[str, np.ndarray]:
    """Returns examples of the training set, padded as a bucket's are."""
    raise NotImplementedError


def largest_so_far(
  values: np.ndarray, lengths: np.ndarray, padded: tuple[int, ...]
) -> list[int]:
  """Returns, for each bucket, what another axis must hold.

  Args:
    values: int[n], what an example needs of that axis.
    lengths: int[n], by which examples were sorted into buckets.
    padded: lengths of the buckets.

  Returns:
    The largest value of the examples that are no longer than the bucket, which
    are those that a batch of it can have.
  """
  return [int(values[lengths <= length].max(initial=0)) for length in padded]


def walk(
  lengths: np.ndarray,
  *,
  batch_size: BatchSize,
  num_buckets: int,
  multiple: int,
  process: int = 0,
  processes: int = 1,
) -> Iterator[tuple[int, np.ndarray, int]]:
  """Yields a process' batches of examples that are tested on.

  Over all processes each example is in one of them, from short to long.

  Args:
    lengths: int[n], one an example.
    batch_size: examples of a batch, for a padded length.
    num_buckets: how many there are at most.
    multiple: padded lengths are multiples of this.
    process: number of this process.
    processes: how many share the examples.

  Yields:
    (padded length, rows int[batch size], how many of these count). Rows after
    those repeat the first.
  """
  order = np.argsort(lengths, kind='stable')
  first = number = 0
  for length in _padded_lengths(lengths, num_buckets, multiple):
    last = int(np.count_nonzero(lengths <= length))
    size = batch_size(length)
    for start in range(first, last, size):
      rows = order[start : min(start + size, last)]
      if number % processes == process:
        repeated = np.full(size - len(rows), rows[0])
        yield length, np.concatenate([rows, repeated]), len(rows)
      number += 1
    first = last


def _padded_lengths(
  lengths: np.ndarray, num_buckets: int, multiple: int
) -> list[int]:
  """Returns the padded lengths for which the fewest positions are padding."""
  units = -(-np.maximum(lengths, 1) // multiple)
  found = np.unique(units)
  if not len(found):
    return [multiple]
  # How many examples are no longer than each of the lengths found; before: 0.
  counts = np.searchsorted(np.sort(units), [0, *found], side='right')
  # positions[i, j]: of one bucket for what is longer than i, and at most j.
  positions = (counts[None, :] - counts[:, None]) * np.array([0, *found])
  positions = np.where(counts[None, :] > counts[:, None], positions, np.inf)
  fewest = np.where(np.arange(len(found) + 1) == 0, 0.0, np.inf)
  before = []  # for each number of buckets: where the last one begins
  for _ in range(min(num_buckets, len(found))):
    choices = fewest[:, None] + positions
    before.append(choices.argmin(0))
    fewest = choices.min(0)
  padded, last = [], len(found)
  for begins in reversed(before):
    padded.append(int(found[last - 1]) * multiple)
    last = int(begins[last])
  return padded[::-1]


def _whole_steps(counts: np.ndarray, sizes: list[int]) -> tuple[list[int], int]:
  """Returns how many steps each bucket has, and how many examples are left.

  Args:
    counts: examples, for each bucket.
    sizes: of a step of all workers, likewise.
  """
  steps, left = [], 0
  for count, size in zip(counts, sizes, strict=True):
    whole, left = divmod(int(count) + left, size)
    steps.append(whole)
  return steps, left
