"""Which utterances a step trains on, and which are tested together."""

from collections.abc import Iterator
from typing import Any

from experiments.data import buckets
from experiments.data.speech import recordings
import numpy as np

_FRAMES = 16  # padded lengths are multiples of this
_CHARACTERS = 8  # likewise


class Sampler(buckets.Sampler):
  """Shuffled batches of utterances of about the same length, see `Plan`.

  Attributes:
    steps_per_epoch: the same in all epochs.
    counts: `utterances` of the training set; how many of them an epoch leaves
      out, `left_out`, each epoch others; and how many are never trained on,
      `unalignable`, because a model that gives so few frames cannot say their
      text.
  """

  def __init__(
    self,
    train: recordings.Recordings,
    *,
    batch_size: int,
    num_buckets: int = buckets.MOST,
    stride: int = 1,
    **drawn: Any,
  ):
    """Plans the batches; reads nothing yet.

    Args:
      train: the utterances.
      batch_size: utterances of one worker in a step.
      num_buckets: shapes that there are at most.
      stride: frames that the model takes for one that it gives.
      **drawn: `num_workers`, `seed` and `workers`, see `batches.OfWorkers`.

    Raises:
      ConfigError: the utterances do not fill one step.
    """
    self._train = train
    self.rows = np.flatnonzero(train.needed <= train.frames // stride)
    frames = train.frames[self.rows]
    super().__init__(
      frames,
      batch_size=lambda _: batch_size,
      num_buckets=num_buckets,
      multiple=_FRAMES,
      **drawn,
    )
    self._characters = buckets.largest_so_far(
      train.characters[self.rows], frames, self.lengths
    )
    self.counts = {
      'utterances': len(train.frames),
      'left_out': self.left_out,
      'unalignable': len(train.frames) - len(self.rows),
    }

  def take(self, rows: np.ndarray, bucket: int) -> dict[str, np.ndarray]:
    characters = _padded(self._characters[bucket])
    return self._train.take(rows, self.lengths[bucket], characters)


def walk(
  test: recordings.Recordings,
  *,
  batch_size: int,
  num_buckets: int = buckets.MOST,
  **share: int,
) -> Iterator[buckets.Part]:
  """Yields a process' batches of utterances that are tested on.

  Over all processes each utterance is in one of them, from short to long.

  Args:
    test: the utterances.
    batch_size: of them in a batch.
    num_buckets: shapes that there are at most.
    **share: `process`, the number of this one, and how many `processes` share
      the utterances.

  Yields:
    Their rows, and the arrays of `Recordings.take`.
  """
  characters = _padded(int(test.characters.max(initial=0)))
  for frames, rows, count in buckets.walk(
    test.frames,
    batch_size=lambda _: batch_size,
    num_buckets=num_buckets,
    multiple=_FRAMES,
    **share,
  ):
    yield buckets.Part(rows[:count], test.take(rows, frames, characters))


def _padded(characters: int) -> int:
  return max(-(-characters // _CHARACTERS), 1) * _CHARACTERS
