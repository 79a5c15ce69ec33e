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
    self.step = resume_step  # the last that was read
    self.rejected_in_a_row = 0  # up to it
    self._loss = 0.0

  def seconds(self) -> float:
    """Returns the time spent on the run, former attempts included."""
    return time.perf_counter() - self._started

  @property
  def may_save(self) -> bool:
    """Whether the last step that was read is worth a checkpoint.

    A run whose steps are rejected, or whose loss is no number, may not recover.
    """
    return not self.rejected_in_a_row and math.isfinite(self._loss)

  def put(self, step: int, metrics: Any) -> None:
    """Takes the metrics of `step` and writes the step before."""
    self.flush()
    self._waiting = step, metrics, {}

  def add(self, values: Mapping[str, float]) -> None:
    """Adds test results to the step that was put last."""
    self._waiting[2].update(values)

  def flush(self) -> None:
    """Writes what is left; waits for the device.

    A step whose loss is not a number gets no line. Its gradient is none either
    then, so the scheme rejects it.

    Raises:
      DivergedError: the loss of the last step is not a number.
    """
    if self._waiting is None:
      return
    step, on_device, added = self._waiting
    self._waiting = None
    metrics = {k: v.item() for k, v in jax.device_get(on_device).items()}
    described = self._describe(step, metrics)
    self.step, self._loss = step, metrics['train/loss']
    # What a scheme measures comes as a mean over workers, a float.
    self.rejected_in_a_row = round(
      metrics.get('comm/rejected_steps_in_a_row', 0)
    )
    if not math.isfinite(self._loss):
      if step < self._last_step:
        return
      raise errors.DivergedError(
        f'train/loss is {self._loss} at step {step}; {errors.CALMER}'
      )
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
