"""The steps of a run: taken, tested, saved, and stopped on a signal."""

from collections.abc import Callable, Mapping
import signal
import time
from typing import Any

from absl import logging
from experiments.config import warmup
from experiments.program import errors
from experiments.run import byte_counter
from experiments.run import checkpoints
from experiments.run import run_log
from experiments.run import signals
from experiments.training import agreement
from experiments.training import best as keeping
from experiments.training import early_stop
from experiments.training import rejections
from experiments.training import training_step
from experiments.training.experiment import Experiment
import jax

# Called with what a user may want to know before the first step.
Announce = Callable[[str], None]
# Called after each step with the step, the number of steps, and the last line
# of metrics.jsonl.
Progress = Callable[[int, int, Mapping[str, float]], None]


class Loop:
  """The steps of a run.

  Attributes:
    evaluate: tests a state.
    tested: what the last test gave; empty before the first.
    done: steps that were taken, those of former runs among them.
    compile_seconds: spent on tracing and compiling steps.
  """

  def __init__(
    self,
    experiment: Experiment,
    counter: byte_counter.ByteCounter,
    saver: checkpoints.Checkpoints,
    log: run_log.RunLog,
    progress: Progress | None,
    announce: Announce | None,
    listener: signals.Listener,
    asked: Mapping[str, Any],
    stop: early_stop.EarlyStop,
    best: keeping.Best | None,
  ):
    """Prepares the steps of a run.

    Args:
      experiment: what is trained.
      counter: counts the bytes.
      saver: writes checkpoints.
      log: gets a line every few steps.
      progress: watches the run, on the process that writes the records.
      announce: is told what memory a step of simulated workers takes.
      listener: hears signals.
      asked: the configuration as the user gave it, for the checkpoints.
      stop: ends the run before its last step, where that was asked for.
      best: keeps the models of the best test, where that was asked for.
    """
    self._experiment = experiment
    self._counter = counter
    self._saver = saver
    self._log = log
    self._progress = progress if experiment.placement.is_chief else None
    self._announce = announce
    self._announced = ''
    self._listener = listener
    self._asked = asked
    self._stop = stop
    self._best = best
    self._heard: Any = 0  # signal number, of all processes, a step ago
    self._saved = 0  # steps done in the last checkpoint of this run
    self._train_steps: dict[Any, Any] = {}  # of a stage, by shapes of batches
    self._given: warmup.Density = None  # that the steps were made for
    self._agreement = agreement.Agreement(
      experiment.specs, experiment.placement
    )
    self.evaluate = experiment.make_evaluate()
    self.tested: dict[str, float] = {}
    self.done = 0
    self.compile_seconds = 0.0

  def run(
    self, state: training_step.TrainState, done: int
  ) -> training_step.TrainState:
    """Takes the steps after `done`, and returns the state after the last.

    Raises:
      StoppedError: a signal ended it before; the state is saved.
    """
    train = self._experiment.config.train
    self.done = done
    is_last = self._stop.due
    while self.done < train.steps and not is_last:
      self.done = step = self.done + 1
      is_last = step == train.steps
      state = self._take(step, state)
      self._check_rejections(state)
      if is_last or _due(step, train.eval_every):
        self.tested = self.evaluate(state)
        self._log.add(self.tested)
      if _due(step, train.eval_every):
        if self._stop.observe(self.tested['test/loss']) and self._best:
          self._best.keep(step, self.models(state))
        state = self._experiment.follow(state, self.tested)
        is_last = is_last or self._stop.due
      agree_every = self._experiment.config.parallel.check_agreement_every
      if _due(step, agree_every) or (is_last and agree_every):
        self._agreement.check(step, state)
      stopping = 0 if is_last else self._asked_to_stop()
      if train.checkpoint_every and (
        is_last or stopping or _due(step, train.checkpoint_every)
      ):
        self._save(step, state)
      self._saver.check()
      if stopping:
        raise self._stopped(step, stopping)
      if not is_last:
        self._tell(step)
    self._log.flush()
    self._check_rejections(state)
    self._tell(self.done)
    return state

  def models(self, state: training_step.TrainState) -> keeping.Models:
    """Returns the models of a state that are tested."""
    return keeping.models(self.evaluate, state, self._experiment.differ)

  def _check_rejections(self, state: training_step.TrainState) -> None:
    """Raises if the last steps that the log knows were all rejected."""
    in_a_row = self._log.rejected_in_a_row
    if in_a_row >= self._experiment.config.train.max_rejected_steps:
      raise rejections.too_many(
        self._experiment, state, self._log.step, in_a_row
      )

  def _take(
    self, step: int, state: training_step.TrainState
  ) -> training_step.TrainState:
    """Takes a step, with the program of its stage, and logs it."""
    experiment = self._experiment
    every = experiment.config.train.time_breakdown_every
    stage = warmup.stage_at(experiment.stages, step - 1)
    batch = experiment.placement.batch(experiment.sampler.batch(step - 1))
    if stage.given != self._given:
      self._train_steps.clear()
      self._given = stage.given
    shapes = tuple(x.shape for x in jax.tree.leaves(batch))
    is_first = shapes not in self._train_steps
    called = time.perf_counter()
    if is_first:
      made, memory = experiment.prepare_step(stage, state, batch)
      self._train_steps[shapes] = made
      if self._announce and memory not in ('', self._announced):
        self._announce(memory)
        self._announced = memory
    train_step = self._train_steps[shapes]
    where_time_goes: dict[str, float] = {}
    if _due(step, every):
      (state, metrics), where_time_goes = train_step.timed(state, batch)
    else:
      state, metrics = train_step(state, batch)
    if is_first:  # tracing and compiling happen before the call returns
      self.compile_seconds += time.perf_counter() - called
    self._log.put(step, metrics)
    self._log.add(where_time_goes)
    return state

  def _save(self, step: int, state: training_step.TrainState) -> None:
    self._log.flush()
    if not self._log.may_save:
      logging.warning(
        'no checkpoint of step %d: it was rejected, or its loss is no number',
        step,
      )
      return
    training_step.check_finite(state, step)
    if self._experiment.config.parallel.check_agreement_every:
      self._agreement.check(step, state)
    self._saver.save(
      step,
      state,
      {
        'config': self._asked,
        'position': self._experiment.sampler.position(step)._asdict(),
        'seconds': self._log.seconds(),
        'traffic': self._counter.to_dict(),
        'early_stop': self._stop.to_dict(),
      },
    )
    self._saved = step

  def _asked_to_stop(self) -> int:
    """Number of the signal on which all processes stop after this step, or 0.

    One process decides at once. Several say at the end of a step what they
    have heard, and read at the end of the next what was said: the answer is
    there by then, and the same for all.
    """
    placement = self._experiment.placement
    said = placement.largest(self._listener.asked)
    if placement.processes == 1:
      return said
    before, self._heard = self._heard, said
    return int(before)

  def _stopped(self, step: int, number: int) -> errors.StoppedError:
    """Waits until the checkpoint of a step is written, and says where."""
    self._log.flush()
    self._saver.wait()
    train = self._experiment.config.train
    saved = 'nothing is saved'
    if not train.checkpoint_every:
      saved += ', because train.checkpoint_every is 0'
    elif self._saved:
      saved = (
        f'saved in {self._saver.directory / str(self._saved)}, and the same '
        'command goes on from there'
      )
    name = signal.Signals(number).name
    return errors.StoppedError(
      f'stopped by {name} after step {step} of {train.steps}: {saved}', number
    )

  def _tell(self, step: int) -> None:
    if self._progress is not None:
      self._progress(
        step, self._experiment.config.train.steps, self._log.latest
      )


def _due(step: int, every: int) -> bool:
  return bool(every) and step % every == 0
