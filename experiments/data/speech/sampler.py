"""Which utterances a step trains on, and which are tested together."""

from collections.abc import Iterator, Sequence

from experiments.data import batches
from experiments.data import buckets
from experiments.data.speech import recordings
import numpy as np

_FRAMES = 16  # padded lengths are multiples of this
_CHARACTERS = 8  # likewise


class Sampler:
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
    num_workers: int,
    batch_size: int,
    seed: int,
    workers: Sequence[int] | None = None,
    num_buckets: int = buckets.MOST,
    stride: int = 1,
  ):
    """Plans the batches; reads nothing yet.

    Args:
      train: the utterances.
      num_workers: number of workers that share an epoch.
      batch_size: utterances of one worker in a step.
      seed: decides all that is drawn.
      workers: whose batches `batch` returns; all if None.
      num_buckets: shapes that there are at most.
      stride: frames that the model takes for one that it gives.

    Raises:
      ConfigError: the utterances do not fill one step.
    """
    self._train = train
    self._workers = num_workers
    self._seed = seed
    self._own = np.arange(num_workers) if workers is None else list(workers)
    self._rows = np.flatnonzero(train.needed <= train.frames // stride)
    frames = train.frames[self._rows]
    self._plan = buckets.Plan(
      frames,
      batch_size=lambda _: batch_size,
      num_buckets=num_buckets,
      multiple=_FRAMES,
      num_workers=num_workers,
      seed=seed,
    )
    self._characters = buckets.largest_so_far(
      train.characters[self._rows], frames, self._plan.lengths
    )
    self.steps_per_epoch = self._plan.steps_per_epoch
    self.counts = {
      'utterances': len(train.frames),
      'left_out': self._plan.left_out,
      'unalignable': len(train.frames) - len(self._rows),
    }

  def position(self, step: int) -> batches.Position:
    """Returns where in the data `step` (counted from 0) starts."""
    return self._plan.position(step)

  def batch(self, step: int) -> batches.Batch:
    """Returns what the workers that the sampler is for hear in `step`.

    Its arrays are those of `Recordings.take`, for each of these workers.
    """
    bucket, rows = self._plan.at(step)
    rows = self._rows[rows[self._own]]
    taken = self._train.take(
      rows.ravel(),
      self._plan.lengths[bucket],
      _padded(self._characters[bucket]),
    )
    noise = batches.draw_noise(self._seed, step, self._workers)
    return batches.Batch(
      {
        name: array.reshape(*rows.shape, *array.shape[1:])
        for name, array in taken.items()
      },
      noise[self._own],
    )


def walk(
  test: recordings.Recordings,
  *,
  batch_size: int,
  num_buckets: int = buckets.MOST,
  process: int = 0,
  processes: int = 1,
) -> Iterator[buckets.Part]:
  """Yields a process' batches of utterances that are tested on.

  Over all processes each utterance is in one of them, from short to long.

  Args:
    test: the utterances.
    batch_size: of them in a batch.
    num_buckets: shapes that there are at most.
    process: number of this process.
    processes: how many share the utterances.

  Yields:
    Their rows, and the arrays of `Recordings.take`.
  """
  characters = _padded(int(test.characters.max(initial=0)))
  for frames, rows, count in buckets.walk(
    test.frames,
    batch_size=lambda _: batch_size,
    num_buckets=num_buckets,
    multiple=_FRAMES,
    process=process,
    processes=processes,
  ):
    yield buckets.Part(rows[:count], test.take(rows, frames, characters))


def _padded(characters: int) -> int:
  return max(-(-characters // _CHARACTERS), 1) * _CHARACTERS
