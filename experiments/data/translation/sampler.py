"""Which pairs a step trains on, and which are tested together."""

from collections.abc import Iterator, Sequence

from experiments.data import batches
from experiments.data import buckets
from experiments.data.translation import pairs
from experiments.program import errors
import numpy as np

_MULTIPLE = 4  # of padded lengths


class Sampler:
  """Shuffled batches of pairs of about the same length, see `Plan`.

  A batch has so many pairs, or as many as a budget of positions allows, padding
  counted.

  Attributes:
    steps_per_epoch: the same in all epochs.
    counts: `pairs` of the training set; how many of them an epoch leaves out,
      `left_out`, each epoch others; and how many are never trained on, because
      one side has no words, `empty`, or more pieces than `max_length`,
      `too_long`.
  """

  def __init__(
    self,
    train: pairs.Pairs,
    *,
    num_workers: int,
    batch_size: int = 0,
    batch_tokens: int = 0,
    seed: int,
    workers: Sequence[int] | None = None,
    max_length: int = 100,
    num_buckets: int = buckets.MOST,
  ):
    """Plans the batches.

    Args:
      train: the pairs.
      num_workers: number of workers that share an epoch.
      batch_size: pairs of one worker's batch. 0: see `batch_tokens`.
      batch_tokens: positions of one side of one worker's batch, at most.
      seed: decides all that is drawn.
      workers: whose batches `batch` returns; all if None.
      max_length: pieces of a side, begin and end counted, at most.
      num_buckets: shapes that there are at most.

    Raises:
      ConfigError: the longest pair is beyond the budget, or the pairs do not
        fill one step.
    """
    self._train = train
    self._workers = num_workers
    self._seed = seed
    self._own = np.arange(num_workers) if workers is None else list(workers)
    lengths = train.lengths
    empty = np.minimum(train.source.lengths, train.target.lengths) == 0
    self._rows = np.flatnonzero(~empty & (lengths <= max_length))

    longest = int(lengths[self._rows].max(initial=0))
    padded = -(-longest // _MULTIPLE) * _MULTIPLE
    if not batch_size and padded > batch_tokens:
      raise errors.ConfigError(
        f'data.tokens must be {padded} or more, for pairs of {longest} '
        f'pieces, got {batch_tokens}'
      )
    self._plan = buckets.Plan(
      lengths[self._rows],
      batch_size=lambda length: batch_size or batch_tokens // length,
      num_buckets=num_buckets,
      multiple=_MULTIPLE,
      num_workers=num_workers,
      seed=seed,
    )
    self.steps_per_epoch = self._plan.steps_per_epoch
    without_words = int(np.count_nonzero(empty))
    self.counts = {
      'pairs': len(lengths),
      'left_out': self._plan.left_out,
      'empty': without_words,
      'too_long': len(lengths) - len(self._rows) - without_words,
    }

  def position(self, step: int) -> batches.Position:
    """Returns where in the data `step` (counted from 0) starts."""
    return self._plan.position(step)

  def batch(self, step: int) -> batches.Batch:
    """Returns what the workers that the sampler is for see in `step`.

    Its arrays are those of `Pairs.take`, for each of these workers. The weights
    of a worker add up to its pairs: the mean over them of the weighted loss of
    their pieces is the mean over pieces.
    """
    bucket, rows = self._plan.at(step)
    rows = self._rows[rows[self._own]]
    taken = self._train.take(rows.ravel(), self._plan.lengths[bucket])
    inputs = {
      name: array.reshape(*rows.shape, -1) for name, array in taken.items()
    }
    pieces = inputs['weights'].sum((1, 2), keepdims=True)
    inputs['weights'] *= rows.shape[1] / pieces
    noise = batches.draw_noise(self._seed, step, self._workers)
    return batches.Batch(inputs, noise[self._own])


def walk(
  test: pairs.Pairs,
  *,
  batch_tokens: int,
  num_buckets: int = buckets.MOST,
  process: int = 0,
  processes: int = 1,
) -> Iterator[buckets.Part]:
  """Yields a process' batches of pairs that are tested on, of any length.

  Over all processes each pair is in one of them, from short to long.

  Args:
    test: the pairs.
    batch_tokens: positions of one side of a batch; at least one pair.
    num_buckets: shapes that there are at most.
    process: number of this process.
    processes: how many share the pairs.

  Yields:
    Their rows, and the arrays of `Pairs.take`. Pairs beyond `rows` have weight
    0; the others add up to the pieces of their targets.
  """
  for length, rows, count in buckets.walk(
    test.lengths,
    batch_size=lambda length: max(batch_tokens // length, 1),
    num_buckets=num_buckets,
    multiple=_MULTIPLE,
    process=process,
    processes=processes,
  ):
    inputs = test.take(rows, length)
    inputs['weights'][count:] = 0
    yield buckets.Part(rows[:count], inputs)
