"""Shows how far a run is: moves the bar, or prints lines of its metrics."""

from collections.abc import Mapping

from experiments.program import progress
from experiments.run import scores


class Display:
  """Moves the bar; without one, or into a file, prints lines of metrics."""

  def __init__(self, bar: progress.Bar, name: str = '', *, tests: bool = False):
    """Prepares it.

    Args:
      bar: to move.
      name: of the run, before each line.
      tests: whether lines without a test are left out.
    """
    self._bar, self._name, self._tests = bar, name, tests
    self._told = 0
    self._tested = ''

  def __call__(self, step: int, steps: int, line: Mapping[str, float]) -> None:
    """Takes a step that is done, see `loop.Progress`."""
    self._bar.update(step)
    if not line or line['step'] <= self._told:  # it lags one behind
      return
    self._told = line['step']
    tested = scores.worded(scores.tested(line))
    loss = f'loss {line["train/loss"]:.4f}'
    self._tested = tested or self._tested
    self._bar.update(step, f'{loss}  {self._tested}')
    if self._bar.lines and (tested or not self._tests):
      done = f'{self._name}step {self._told}/{steps}  {loss}  {tested}'
      print(done.rstrip(), flush=True)
