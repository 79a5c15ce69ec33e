"""What a run says while it goes: lines of metrics, one step late."""

from collections.abc import Callable, Mapping
import math
import pathlib
import time
from typing import Any

from experiments.program import errors
from experiments.run import records
import jax


class RunLog:
  """Turns values on the device into lines of `metrics.jsonl`.

  Reading a value waits for the device. One step late the value is there and
  the device has its next step to work on, so watching a run costs nothing.
  """

  def __init__(
    self,
    path: pathlib.Path | None,
    *,
    every: int,
    last_step: int,
    resume_step: int,
    seconds_before: float,
    describe: Callable[[int, Mapping[str, float]], Mapping[str, float]],
    tensorboard: bool = False,
  ):
    """Opens the log.

    Args:
      path: of the metrics file; None: this process writes none.
      every: steps between two lines; a step with a test result and the last
        one get a line too.
      last_step: of the run.
      resume_step: steps already done.
      seconds_before: what they took.
      describe: `(step, metrics)` to further values; called for each step.
      tensorboard: whether to write TensorBoard's event files too.
    """
    self._file, self._board = None, None
    if path is not None:
      self._file = records.MetricsFile(path, resume_step=resume_step)
    if path is not None and tensorboard:
      import tensorboardX  # only for those who ask

      self._board = tensorboardX.SummaryWriter(
        str(path.parent / 'tensorboard'), purge_step=resume_step + 1
      )
    self._every = every
    self._last_step = last_step
    self._describe = describe
    self._started = time.perf_counter() - seconds_before
    self._waiting: tuple[int, Any, dict[str, float]] | None = None
    self.latest: dict[str, float] = {}  # the last line

  def seconds(self) -> float:
    """Returns the time spent on the run, former attempts included."""
    return time.perf_counter() - self._started

  def put(self, step: int, metrics: Any) -> None:
    """Takes the metrics of `step` and writes the step before."""
    self.flush()
    self._waiting = step, metrics, {}

  def add(self, values: Mapping[str, float]) -> None:
    """Adds test results to the step that was put last."""
    self._waiting[2].update(values)

  def flush(self) -> None:
    """Writes what is left; waits for the device.

    Raises:
      DivergedError: the loss is not a number.
    """
    if self._waiting is None:
      return
    step, on_device, added = self._waiting
    self._waiting = None
    metrics = {k: v.item() for k, v in jax.device_get(on_device).items()}
    loss = metrics['train/loss']
    if not math.isfinite(loss):
      raise errors.DivergedError(
        f'train/loss is {loss} at step {step}; {errors.CALMER}'
      )
    described = self._describe(step, metrics)
    if added or step % self._every == 0 or step == self._last_step:
      self.latest = {
        'step': step,
        **metrics,
        **described,
        **added,
        'time/seconds': round(self.seconds(), 3),
      }
      if self._file is not None:
        self._file.write(self.latest)
      if self._board is not None:
        for name, value in self.latest.items():
          self._board.add_scalar(name, value, step)

  def close(self) -> None:
    """Closes the files; what waits is dropped."""
    if self._file is not None:
      self._file.close()
    if self._board is not None:
      self._board.close()
