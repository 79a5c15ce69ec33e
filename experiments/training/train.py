"""Trains a model with compressed gradients and writes down what happened."""

from collections.abc import Callable, Mapping
import pathlib
import signal
import time
from typing import Any

from absl import logging
from experiments.config import fields
from experiments.config import schemes
from experiments.config import warmup
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.program import files
from experiments.run import byte_counter
from experiments.run import checkpoints
from experiments.run import machine
from experiments.run import records
from experiments.run import run_log
from experiments.run import signals
from experiments.run import workdir as workdirs
from experiments.training import agreement
from experiments.training import rejections
from experiments.training import resizing
from experiments.training import resuming
from experiments.training import training_step
from experiments.training.experiment import Experiment
from experiments.training.experiment import build_experiment
import jax
import ml_collections

# Called with what a user may want to know before the first step.
Announce = Callable[[str], None]
# Called after each step with the step, the number of steps, and the last line
# of metrics.jsonl.
Progress = Callable[[int, int, Mapping[str, float]], None]


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: str | pathlib.Path,
  *,
  progress: Progress | None = None,
  announce: Announce | None = None,
  command: str = '',
) -> dict[str, Any]:
  """Runs an experiment to its last step, resuming what `workdir` holds.

  Args:
    config: see `configs/default.py`.
    workdir: where the records and checkpoints go.
    progress: watches the run.
    announce: is told what memory a step of simulated workers takes.
    command: what the user typed, for the record.

  Returns:
    The content of `summary.json`.

  Raises:
    UserError: a field, a file or a former run is in the way, the loss is not
      a number, steps are rejected, or workers have drifted apart.
    StoppedError: SIGTERM or Ctrl-C; what was done is saved.
  """
  workdir = pathlib.Path(workdir)
  placement = placing.provide(
    config.parallel.runner,
    config.parallel.num_workers,
    config.parallel.inner_workers,
  )
  asked = fields.without_none(config.to_dict())
  placement.check_same(asked)
  # Before there is a folder: a mistake in a field leaves none.
  experiment, state = build_experiment(config, placement)
  lock = workdirs.Lock(workdir)
  placement.on_chief(lock.take)
  try:
    placement.check_shared(workdir / workdirs.LOCK)
    return _train(
      experiment, state, asked, workdir, progress, announce, command
    )
  finally:
    lock.release()


def _train(
  experiment: Experiment,
  state: training_step.TrainState,
  asked: dict[str, Any],
  workdir: pathlib.Path,
  progress: Progress | None,
  announce: Announce | None,
  command: str,
) -> dict[str, Any]:
  """Runs an experiment in a working directory that is locked."""
  config, placement = experiment.config, experiment.placement
  plans = byte_counter.plan_stages(
    experiment.stages,
    experiment.planned,
    experiment.shapes,
    placement.num_workers,
  )
  inner_plan = byte_counter.plan_inside(
    experiment.shapes,
    placement.inner_workers,
    moments=config.compression.name in schemes.NEED_MOMENTS,
  )
  counter = byte_counter.ByteCounter(
    experiment.stages, plans, inner_plan.sent_bytes
  )
  saver = checkpoints.Checkpoints(
    workdir / 'checkpoints', config.train.checkpoint_every, placement
  )
  found = resuming.find(saver, experiment, asked, workdir)
  done = found.step if found else 0

  def begin() -> None:
    saver.prepare(done)
    files.write_json(workdir / records.CONFIG, asked)
    planned = byte_counter.plan_text(experiment.stages, plans, inner_plan)
    files.write_bytes(workdir / records.PLAN, f'{planned}\n'.encode())
    if done < config.train.steps:
      # A shorter run's result is not this one's.
      (workdir / records.SUMMARY).unlink(missing_ok=True)

  placement.on_chief(begin)
  seconds_before = 0.0
  if found:
    logging.warning('resuming after step %d of %d', done, config.train.steps)
    state = resizing.restore(experiment, state, saver, found)
    counter.restore(found.about['traffic'])
    seconds_before = found.about['seconds']
  log = _open_log(experiment, counter, workdir, done, seconds_before)
  with signals.Listener() as listener:
    loop = _Loop(
      experiment, counter, saver, log, progress, announce, listener, asked
    )
    try:
      state = loop.run(state, done)
    except BaseException as error:
      if placement.processes > 1:
        raise  # a process that has failed waits for no other
      try:
        saver.close()
      except errors.FileError as also:
        if not isinstance(error, errors.FileError):
          logging.error('%s', also)
      raise
    finally:
      log.close()
    saver.close()

  training_step.check_finite(state, config.train.steps)
  tested = loop.tested or loop.evaluate(state)
  params = experiment.average(state.params)
  summary = {
    **_result(experiment, counter, tested),
    'seconds': round(log.seconds(), 3),
    'compile_seconds': round(loop.compile_seconds, 3),
    'command': command,
    'environment': machine.describe(),
  }
  if placement.is_chief:
    records.write_params(workdir / records.PARAMS, params)
    files.write_json(workdir / records.SUMMARY, summary)
  return summary


def _result(
  experiment: Experiment,
  counter: byte_counter.ByteCounter,
  tested: Mapping[str, float],
) -> dict[str, Any]:
  """Returns what a run has come to: the part that is the same each time."""
  config = experiment.config
  return {
    'scheme': config.compression.name,
    'steps': config.train.steps,
    'num_workers': config.parallel.num_workers,
    'inner_workers': config.parallel.inner_workers,
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(experiment.shapes)),
    # test_accuracy, test_loss, and test_top5_accuracy where it is measured
    'final': {
      name.replace('/', '_'): value for name, value in sorted(tested.items())
    },
    'comm': counter.summary(),
  }


def _open_log(
  experiment: Experiment,
  counter: byte_counter.ByteCounter,
  workdir: pathlib.Path,
  done: int,
  seconds_before: float,
) -> run_log.RunLog:
  train = experiment.config.train
  accumulate = experiment.config.optimizer.accumulate

  def learning_rate(step):
    # Of the exchange that the step is for, whose first step says it.
    return float(
      experiment.learning_rate((step - 1) // accumulate * accumulate)
    )

  return run_log.RunLog(
    workdir / records.METRICS if experiment.placement.is_chief else None,
    every=train.log_every,
    last_step=train.steps,
    resume_step=done,
    tensorboard=train.tensorboard,
    seconds_before=seconds_before,
    describe=lambda step, metrics: {
      **counter.count(
        step, metrics['comm/payload_bytes'], metrics['comm/sent_elements']
      ),
      'train/learning_rate': learning_rate(step)
      * metrics.get('train/learning_rate_factor', 1),
      'train/epochs': step / experiment.sampler.steps_per_epoch,
    },
  )


class _Loop:
  """The steps of a run.

  Attributes:
    evaluate: tests a state.
    tested: what the last test gave; empty before the first.
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
  ):
    self._experiment = experiment
    self._counter = counter
    self._saver = saver
    self._log = log
    self._progress = progress if experiment.placement.is_chief else None
    self._announce = announce
    self._announced = ''
    self._listener = listener
    self._asked = asked  # goes into the checkpoints
    self._heard: Any = 0  # signal number, of all processes, a step ago
    self._saved = 0  # steps done in the last checkpoint of this run
    self._train_step: Any = None
    self._given: warmup.Density = None  # that the step was made for
    self._agreement = agreement.Agreement(
      experiment.specs, experiment.placement
    )
    self.evaluate = experiment.make_evaluate()
    self.tested: dict[str, float] = {}
    self.compile_seconds = 0.0

  def run(
    self, state: training_step.TrainState, done: int
  ) -> training_step.TrainState:
    """Takes the steps after `done`, and returns the state after the last.

    Raises:
      StoppedError: a signal ended it before; the state is saved.
    """
    train = self._experiment.config.train
    for step in range(done + 1, train.steps + 1):
      is_last = step == train.steps
      state = self._take(step, state)
      self._check_rejections(state)
      agree_every = self._experiment.config.parallel.check_agreement_every
      if _due(step, agree_every) or (is_last and agree_every):
        self._agreement.check(step, state)
      if is_last or _due(step, train.eval_every):
        self.tested = self.evaluate(state)
        self._log.add(self.tested)
      if _due(step, train.eval_every):
        state = self._experiment.follow(state, self.tested)
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
    self._tell(train.steps)
    return state

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
    is_first = self._train_step is None or stage.given != self._given
    batch = experiment.placement.batch(experiment.sampler.batch(step - 1))
    called = time.perf_counter()
    if is_first:
      self._train_step, memory = experiment.prepare_step(stage, state, batch)
      self._given = stage.given
      if self._announce and memory not in ('', self._announced):
        self._announce(memory)
        self._announced = memory
    where_time_goes: dict[str, float] = {}
    if _due(step, every):
      (state, metrics), where_time_goes = self._train_step.timed(state, batch)
    else:
      state, metrics = self._train_step(state, batch)
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
