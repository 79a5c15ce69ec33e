"""Which pairs a step trains on, and which are tested together."""

from collections.abc import Iterator
from typing import Any

from experiments.data import batches
from experiments.data import buckets
from experiments.data.translation import pairs
from experiments.program import errors
import numpy as np

_MULTIPLE = 4  # of padded lengths


class Sampler(buckets.Sampler):
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
    batch_size: int = 0,
    batch_tokens: int = 0,
    max_length: int = 100,
    num_buckets: int = buckets.MOST,
    **drawn: Any,
  ):
    """Plans the batches.

    Args:
      train: the pairs.
      batch_size: pairs of one worker's batch. 0: see `batch_tokens`.
      batch_tokens: positions of one side of one worker's batch, at most.
      max_length: pieces of a side, begin and end counted, at most.
      num_buckets: shapes that there are at most.
      **drawn: `num_workers`, `seed` and `workers`, see `batches.OfWorkers`.

    Raises:
      ConfigError: the longest pair is beyond the budget, or the pairs do not
        fill one step.
    """
    self._train = train
    lengths = train.lengths
    empty = np.minimum(train.source.lengths, train.target.lengths) == 0
    self.rows = np.flatnonzero(~empty & (lengths <= max_length))
    longest = int(lengths[self.rows].max(initial=0))
    padded = -(-longest // _MULTIPLE) * _MULTIPLE
    if not batch_size and padded > batch_tokens:
      raise errors.ConfigError(
        f'data.tokens must be {padded} or more, for pairs of {longest} '
        f'pieces, got {batch_tokens}'
      )
    super().__init__(
      lengths[self.rows],
      batch_size=lambda length: batch_size or batch_tokens // length,
      num_buckets=num_buckets,
      multiple=_MULTIPLE,
      **drawn,
    )
    without_words = int(np.count_nonzero(empty))
    self.counts = {
      'pairs': len(lengths),
      'left_out': self.left_out,
      'empty': without_words,
      'too_long': len(lengths) - len(self.rows) - without_words,
    }

  def take(self, rows: np.ndarray, bucket: int) -> dict[str, np.ndarray]:
    return self._train.take(rows, self.lengths[bucket])

  def batch(self, step: int) -> batches.Batch:
    """Returns what the workers that the sampler is for see in `step`.

    Its arrays are those of `Pairs.take`, for each of these workers. The weights
    of a worker add up to its pairs: the mean over them of the weighted loss of
    their pieces is the mean over pieces.
    """
    found = super().batch(step)
    weights = found.inputs['weights']
    weights *= weights.shape[1] / weights.sum((1, 2), keepdims=True)
    return found


def walk(
  test: pairs.Pairs,
  *,
  batch_tokens: int,
  num_buckets: int = buckets.MOST,
  **share: int,
) -> Iterator[buckets.Part]:
  """Yields a process' batches of pairs that are tested on, of any length.

  Over all processes each pair is in one of them, from short to long.

  Args:
    test: the pairs.
    batch_tokens: positions of one side of a batch; at least one pair.
    num_buckets: shapes that there are at most.
    **share: `process`, the number of this one, and how many `processes` share
      the pairs.

  Yields:
    Their rows, and the arrays of `Pairs.take`. Pairs beyond `rows` have weight
    0; the others add up to the pieces of their targets.
  """
  for length, rows, count in buckets.walk(
    test.lengths,
    batch_size=lambda length: max(batch_tokens // length, 1),
    num_buckets=num_buckets,
    multiple=_MULTIPLE,
    **share,
  ):
    inputs = test.take(rows, length)
    inputs['weights'][count:] = 0
    yield buckets.Part(rows[:count], inputs)
