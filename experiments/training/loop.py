"""The steps of a run: taken, tested, saved, and stopped on a signal."""

from collections.abc import Callable, Mapping
import contextlib
import pathlib
import signal
import time
from typing import Any
import zlib

from absl import logging
from experiments.config import warmup
from experiments.program import errors
from experiments.run import byte_counter
from experiments.run import checkpoints
from experiments.run import records
from experiments.run import signals
from experiments.training import best
from experiments.training import checks
from experiments.training import resuming
from experiments.training import training_step
from experiments.training.experiment import Experiment
import jax

# Called with what a user may want to know before the first step.
Announce = Callable[[str], None]
# Called after each step with the step, the number of steps, and the last line
# of metrics.jsonl.
Progress = Callable[[int, int, Mapping[str, float]], None]


class Loop:
  """The steps of a run, and what they leave in its working directory.

  Attributes:
    experiment: what is trained.
    evaluate: tests a state.
    best: keeps the models of the best test; None where that is not asked for.
    counter: counts the bytes.
    tested: what the last test gave; empty before the first.
    done: steps that were taken, those of former runs among them.
    compile_seconds: spent on tracing and compiling steps.
  """

  def __init__(
    self,
    experiment: Experiment,
    asked: Mapping[str, Any],
    workdir: pathlib.Path,
    progress: Progress | None,
    announce: Announce | None,
  ):
    """Prepares the steps of a run.

    Args:
      experiment: what is trained.
      asked: the configuration as the user gave it, for the checkpoints.
      workdir: of the run, which has it for itself.
      progress: watches the run, on the process that writes the records.
      announce: is told what memory a step of simulated workers takes.
    """
    config, placement = experiment.config, experiment.placement
    self.experiment = experiment
    self._train, self._placement = config.train, placement
    self._asked, self._workdir = asked, workdir
    self._progress = progress if placement.is_chief else None
    self._announce = announce or (lambda text: None)
    self._announced = ''
    self.counter = byte_counter.ByteCounter(experiment.plans)
    self._saver = checkpoints.Checkpoints(
      workdir / 'checkpoints', config.train.checkpoint_every, placement
    )
    self._stop = best.EarlyStop(config.train.early_stop_patience)
    self.best = None
    if config.train.keep_best:
      self.best = best.Best(workdir / records.BEST, placement)
    self._check_agreement = checks.make_agreement(experiment.specs, placement)
    self._heard: Any = 0  # signal number, of all processes, a step ago
    self._saved = 0  # steps done in the last checkpoint of this run
    self._train_steps: dict[Any, Any] = {}  # of a stage, by shapes of batches
    self._given: warmup.Density = None  # that the steps were made for
    self.evaluate = experiment.make_evaluate()
    self.tested: dict[str, float] = {}
    self.done = 0
    self.compile_seconds = 0.0

  def begin(self, state: training_step.TrainState) -> training_step.TrainState:
    """Returns the state to go on from, that of the last checkpoint if any.

    Args:
      state: before the first step.

    Raises:
      UserError: a former run is in the way, or a file cannot be written.
    """
    found = resuming.find(
      self._saver, self.experiment, self._asked, self._workdir
    )
    self.done = found.step if found else 0
    files = self.experiment.task.files()
    self._placement.check_same(
      {name: zlib.crc32(content) for name, content in files.items()},
      'the processes number words differently: their data or versions differ',
    )
    self._placement.on_chief(
      lambda: resuming.prepare(
        self._workdir, self._saver, found, self.experiment, self._asked
      )
    )
    about: Mapping[str, Any] = {}
    if found:
      about = found.about
      logging.warning(
        'resuming after step %d of %d', self.done, self._train.steps
      )
      state = resuming.restore(self.experiment, state, self._saver, found)
      self.counter.restore(about['traffic'])
      # A checkpoint from before there was such a thing has no count.
      self._stop = best.EarlyStop(
        self._train.early_stop_patience, about.get('early_stop')
      )
    if self.best and self._stop.found:  # before the checkpoint
      self.best.restore(self.models(state))
    metrics = self._workdir / records.METRICS
    self._log = records.RunLog(
      metrics if self._placement.is_chief else None,
      self._train,
      resume_step=self.done,
      seconds_before=about.get('seconds', 0.0),
      describe=self._describe,
    )
    return state

  def run(self, state: training_step.TrainState) -> training_step.TrainState:
    """Takes the steps that are left, and returns the state after the last.

    Raises:
      StoppedError: a signal ended it before; the state is saved.
    """
    with signals.Listener() as self._listener, contextlib.closing(self._log):
      try:
        state = self._run(state)
      except BaseException as error:
        # Of several processes one that has failed waits for no other.
        if self._placement.processes == 1:
          self._close_after(error)
        raise
    self._saver.close()
    return state

  def seconds(self) -> float:
    """Returns the time spent on the run, former attempts included."""
    return self._log.seconds()

  def models(self, state: training_step.TrainState) -> best.Models:
    """Returns the models of a state that are tested."""
    return best.models(self.evaluate, state, self.experiment.differ)

  def _run(self, state):
    train, check_every = (
      self._train,
      self.experiment.config.parallel.check_agreement_every,
    )
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
        if self._stop.observe(self.tested['test/loss']) and self.best:
          self.best.keep(step, self.models(state))
        state = self.experiment.follow(state, self.tested)
        is_last = is_last or self._stop.due
      if _due(step, check_every) or (is_last and check_every):
        self._check_agreement(step, state)
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

  def _close_after(self, error: BaseException) -> None:
    """Ends the saving after another failure, which is the one to be told."""
    try:
      self._saver.close()
    except errors.FileError as also:
      if not isinstance(error, errors.FileError):
        logging.error('%s', also)

  def _describe(
    self, step: int, metrics: Mapping[str, float]
  ) -> dict[str, float]:
    """Returns what is logged of a step beside what it measures."""
    # The exchange that the step is for has the rate of its first step.
    every = self.experiment.config.optimizer.accumulate
    rate = float(self.experiment.learning_rate((step - 1) // every * every))
    return {
      **self.counter.count(
        step,
        metrics['comm/payload_bytes'],
        metrics['comm/sent_bytes'],
        metrics['comm/sent_elements'],
      ),
      'train/learning_rate': rate
      * metrics.get('train/learning_rate_factor', 1),
      'train/epochs': step / self.experiment.sampler.steps_per_epoch,
    }

  def _check_rejections(self, state: training_step.TrainState) -> None:
    """Raises if the last steps that the log knows were all rejected."""
    in_a_row = self._log.rejected_in_a_row
    if in_a_row >= self._train.max_rejected_steps:
      raise checks.too_many(self.experiment, state, self._log.step, in_a_row)

  def _take(
    self, step: int, state: training_step.TrainState
  ) -> training_step.TrainState:
    """Takes a step, with the program of its stage, and logs it."""
    experiment = self.experiment
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
      if memory not in ('', self._announced):
        self._announce(memory)
        self._announced = memory
    train_step = self._train_steps[shapes]
    where_time_goes: dict[str, float] = {}
    if _due(step, self._train.time_breakdown_every):
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
    if self.experiment.config.parallel.check_agreement_every:
      self._check_agreement(step, state)
    self._saver.save(
      step,
      state,
      {
        'config': self._asked,
        'position': self.experiment.sampler.position(step)._asdict(),
        'seconds': self._log.seconds(),
        'traffic': self.counter.to_dict(),
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
    said = self._placement.largest(self._listener.asked)
    if self._placement.processes == 1:
      return said
    before, self._heard = self._heard, said
    return int(before)

  def _stopped(self, step: int, number: int) -> errors.StoppedError:
    """Waits until the checkpoint of a step is written, and says where."""
    self._log.flush()
    self._saver.wait()
    train = self._train
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
      self._progress(step, self._train.steps, self._log.latest)


def _due(step: int, every: int) -> bool:
  return bool(every) and step % every == 0
