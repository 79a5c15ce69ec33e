"""Windows of a long text, for back-propagation through a part of the time.

A text of symbols x_0 x_1 ... is cut into rows. A step takes the next columns of
all rows; its targets are the symbols that come next.
"""

from collections.abc import Iterator, Sequence

from experiments.data import batches
from experiments.program import errors
import numpy as np


class Windows(batches.OfWorkers):
  """Which part of the text a step trains on: a pure function of the step.

  The text is cut into as many rows of the same length as all workers have. A
  worker keeps its rows, so what it remembers at the end of a step is what comes
  before its next one. An epoch ends when no whole window is left; then all rows
  begin anew. Nothing is shuffled.

  Attributes:
    steps_per_epoch: windows of a row.
    counts: `symbols` of the text, and how many of them are nobody's target in
      an epoch, `left_out`: the first, and what is left at the ends of rows.
  """

  def __init__(
    self,
    text: np.ndarray,
    *,
    num_workers: int,
    batch_size: int,
    length: int,
    seed: int,
    workers: Sequence[int] | None = None,
  ):
    """Cuts the text into rows.

    Args:
      text: int32[n], symbols.
      num_workers: number of workers that share an epoch.
      batch_size: rows of one worker.
      length: columns of a step, in symbols.
      seed: decides the noise.
      workers: whose batches `batch` returns; all if None.

    Raises:
      ConfigError: a row is shorter than one window.
    """
    rows = num_workers * batch_size
    columns = (len(text) - 1) // rows  # the last one's target is beyond
    super().__init__(num_workers, seed, workers)
    self._text = text
    self._batch = batch_size
    self._length = length
    each = columns * np.arange(rows).reshape(num_workers, -1)
    self._starts = each[self._own]
    self.steps_per_epoch = columns // length
    if not self.steps_per_epoch:
      raise errors.ConfigError(
        f'{num_workers} workers with train.batch_size {batch_size} and windows '
        f'of {length} symbols need {rows * length + 1} symbols; the training '
        f'text has {len(text)}'
      )
    left_out = len(text) - rows * self.steps_per_epoch * length
    self.counts = {'symbols': len(text), 'left_out': left_out}

  def position(self, step: int) -> batches.Position:
    """Returns where in the data `step` (counted from 0) starts.

    An example is a window of a row.
    """
    epoch, window = divmod(step, self.steps_per_epoch)
    return batches.Position(step, epoch, window * self._workers * self._batch)

  def batch(self, step: int) -> batches.Batch:
    """Returns what the workers that the sampler is for see in `step`.

    Its arrays: `tokens` and `targets`, int32[workers, batch_size, length], the
    second those that come after the first; and `first`, bool[workers,
    batch_size], whether a row begins anew, so that nothing came before it.
    """
    window = step % self.steps_per_epoch
    columns = window * self._length + np.arange(self._length)
    at = self._starts[:, :, None] + columns
    inputs = {
      'tokens': self._text[at],
      'targets': self._text[at + 1],
      'first': np.full(self._starts.shape, window == 0),
    }
    return self._with_noise(step, inputs)


def walk(
  text: np.ndarray,
  before: int,
  *,
  rows: int,
  length: int,
  process: int = 0,
  processes: int = 1,
) -> Iterator[dict[str, np.ndarray]]:
  """Yields a process' windows of a text that is tested on, from first to last.

  The text is cut into rows of the same length, in the same places for any
  number of processes, which take the rows in turn. Over all processes each
  symbol of the text is a target exactly once. What comes before the first is
  `before`. All windows of all processes have the same shapes; a target of
  weight 0 is padding, and so is a whole row of a process that got one less than
  others, or none. Only with one row is the whole text before a symbol what the
  model has seen: a row begins with nothing but the symbol before it.

  Args:
    text: int32[n], symbols.
    before: the symbol that stands before the text.
    rows: of all processes together.
    length: columns of a window, in symbols.
    process: number of this process.
    processes: how many share the text.

  Yields:
    `tokens`, `targets` and `first` as of `Windows.batch`, of this process'
    rows, which are `rows / processes`, rounded up; and `weights`, float32 of
    the shape of `targets`, 1 or 0.
  """
  columns = -(-len(text) // rows)
  # Rows beyond the last begin behind the text, where nothing counts.
  own = process + processes * np.arange(-(-rows // processes))
  starts = columns * own[:, None]
  shifted = np.concatenate([np.array([before], text.dtype), text])
  for first in range(0, columns, length):
    column = first + np.arange(length)
    at = starts + column
    counts = (column < columns) & (at < len(text))
    at = np.where(counts, at, 0)
    yield {
      'tokens': shifted[at],
      'targets': text[at],
      'first': np.full(len(own), first == 0),
      'weights': counts.astype(np.float32),
    }
