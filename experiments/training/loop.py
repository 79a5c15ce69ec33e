"""The steps of a run: taken, tested, saved, and stopped on a signal."""

from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import pathlib
import signal
import time
from typing import Any

from absl import logging
from experiments.config import optimizer
from experiments.config import schemes
from experiments.program import errors
from experiments.program import signals
from experiments.run import byte_counter
from experiments.run import checkpoints
from experiments.run import records
from experiments.run import time_breakdown
from experiments.run import writers
from experiments.training import evaluation
from experiments.training import resuming
from experiments.training import training_step
from experiments.training.experiment import Experiment
import jax
import numpy as np

# Called after each step with the step, the number of steps, and the last line
# of metrics.jsonl.
Progress = Callable[[int, int, Mapping[str, float]], None]


class Loop:
  """The steps of a run, and what they leave in its working directory.

  Attributes:
    state: after the steps that were taken.
    done: how many these are, those of former runs among them.
    best_step: after `run` that of the best test, whose models are reported; 0
      where they are those of the last.
    evaluate: tests a model.
    models: that were tested last, after `run` those that are reported; empty
      before the first test.
    tested: what that test gave.
    counter: counts the bytes.
    log: writes what was measured.
    compile_seconds: spent on tracing and compiling steps; where workers are
      computed in blocks, with the first step's gradients.
  """

  def __init__(
    self,
    experiment: Experiment,
    workdir: pathlib.Path,
    progress: Progress,
    factories: Mapping[str, writers.Factory],
  ):
    """Goes to where the last checkpoint is, or begins.

    Args:
      experiment: what is trained.
      workdir: of the run, which has it for itself.
      progress: watches the run.
      factories: of writers, from `find_writers`; process 0 alone has any.

    Raises:
      UserError: a former run is in the way, a file cannot be written, or a
        writer cannot begin.
    """
    config, placement = experiment.config, experiment.placement
    self._experiment, self._placement = experiment, placement
    self._train = config.train
    self._progress = progress if placement.is_chief else lambda *_: None
    self.state = experiment.init_state()
    self.evaluate = experiment.evaluation(experiment.task)
    self.models: dict[str, evaluation.Model] = {}
    self.tested: dict[str, float] = {}
    self.counter = byte_counter.ByteCounter(experiment.plans)
    self.compile_seconds = 0.0
    self._heard: Any = 0  # signal number, of all processes, a step ago
    self._train_steps: dict[Any, Any] = {}  # by density and shapes of batches
    self._saver = checkpoints.Checkpoints(
      workdir / 'checkpoints', config.train.checkpoint_every, placement
    )
    found = resuming.find(self._saver, experiment, workdir)
    begin = workdir, self._saver, found, experiment
    placement.on_chief(resuming.prepare, *begin)
    self.done, about = found.step, found.about
    self._lowest = evaluation.Lowest(**about.get('early_stop', {}))
    if self.done:
      last = self._train.steps
      logging.warning('resuming after step %d of %d', self.done, last)
      self.state = resuming.restore(experiment, self.state, self._saver, found)
      self.counter.restore(about['traffic'])
    self.best_step = 0
    self._best = workdir / records.BEST
    metrics = workdir / records.METRICS
    written = records.last_step(metrics) if self.done else 0
    self.log = records.RunLog(
      metrics if placement.is_chief else None,
      self._train,
      resume_step=self.done,
      seconds_before=about.get('seconds', 0.0),
      describe=self._describe,
      writers=writers.Writers(factories, experiment.asked, workdir, written),
    )

  def run(self) -> None:
    """Takes the steps that are left, and tests the models that are reported.

    Raises:
      StoppedError: a signal ended it before; the state is saved.
    """
    with signals.listening() as listener, contextlib.closing(self.log):
      try:
        is_last = self._stops_early()
        while self.done < self._train.steps and not is_last:
          is_last = self._step(listener)
          if not is_last:
            self._progress(self.done, self._train.steps, self.log.latest)
        self.log.flush()
        self._check_rejections()
        self._progress(self.done, self._train.steps, self.log.latest)
      except BaseException:
        # Of several processes one that has failed waits for no other.
        if jax.process_count() == 1:
          with contextlib.suppress(errors.FileError):  # the first one is told
            self._saver.close()
        raise
    self._saver.close()
    if self._train.keep_best and self._lowest.best is not None:
      like = {'step': np.int64(0), **self.evaluate.models(self.state)}
      kept = records.read_params(self._best, like)
      self.best_step, self.models = int(kept.pop('step')), kept
      self.tested = self.evaluate(self.models[evaluation.MEAN])
    elif not self.models:  # no step was left
      self._test()

  def _step(self, listener: signals.Listener) -> bool:
    """Takes a step, with all that is due after it; whether it is the last."""
    train = self._train
    check_every = self._experiment.config.parallel.check_agreement_every
    self.done = step = self.done + 1
    is_last = step == train.steps
    self._take(step)
    self._check_rejections()
    if is_last or _due(step, train.eval_every):
      self._test()
      self.log.add(self.tested)
    if _due(step, train.eval_every):
      self._judge(step)
      is_last = is_last or self._stops_early()
    stopping = 0 if is_last else self._asked_to_stop(listener)
    ends = is_last or bool(stopping)
    saves = _due(step, train.checkpoint_every, ends)
    if check_every and (saves or _due(step, check_every, is_last)):
      self._experiment.check_agreement(step, self.state)
    if saves:
      self._save(step)
    self._saver.check()
    if stopping:
      raise self._stopped(step, stopping)
    return is_last

  def _test(self) -> None:
    self.models = self.evaluate.models(self.state)
    self.tested = self.evaluate(self.models[evaluation.MEAN])

  def _judge(self, step: int) -> None:
    """Does what depends on whether the last test was the best so far."""
    if self._lowest.observe(self.tested['test/loss']) and self._train.keep_best:
      # A run that goes on from before this test does it again.
      content = {'step': np.int64(step), **self.models}
      self._placement.on_chief(records.write_params, self._best, content)
    section = self._experiment.config.optimizer
    if section.schedule == 'plateau' and self._lowest.stuck(section.patience):
      opt_state = optimizer.fall(self.state.opt_state, section.lr_decay_factor)
      self.state = self.state._replace(opt_state=opt_state)

  def _stops_early(self) -> bool:
    return 0 < self._train.early_stop_patience <= self._lowest.in_a_row

  def _describe(self, step, metrics) -> dict[str, float]:
    """Returns what is logged of a step beside what it measures."""
    # The exchange that the step is for has the rate of its first step.
    every = self._experiment.config.optimizer.accumulate
    rate = float(self._experiment.learning_rate((step - 1) // every * every))
    factor = metrics.get('train/learning_rate_factor', 1)
    return {
      **self.counter.count(step, metrics),
      'train/learning_rate': rate * factor,
      'train/epochs': step / self._experiment.sampler.steps_per_epoch,
    }

  def _check_rejections(self) -> None:
    """Raises if the last steps that the log knows were all rejected."""
    in_a_row = self.log.rejected_in_a_row
    if in_a_row >= self._train.max_rejected_steps:
      raise errors.DivergedError(
        f'{in_a_row} steps in a row were rejected (train.max_rejected_steps), '
        f'the last is step {self.log.step}: the gradient or the update of some '
        f'worker is not finite; {errors.CALMER}'
      )

  def _take(self, step: int) -> None:
    """Takes a step, with the program of its stage, and logs it."""
    experiment = self._experiment
    stage = schemes.stage_at(experiment.stages, step - 1)
    batch = experiment.placement.batch(experiment.sampler.batch(step - 1))
    program = stage.given, *(x.shape for x in jax.tree.leaves(batch))
    is_first = program not in self._train_steps
    called = time.perf_counter()
    if is_first:
      made = experiment.make_train_step(stage)
      if self._train.time_breakdown_every:
        programs = training_step.compiled(made, self.state, batch)
        made = time_breakdown.Profiled(*programs)
      self._train_steps[program] = made
    train_step = self._train_steps[program]
    times: dict[str, float] = {}
    if _due(step, self._train.time_breakdown_every):
      (self.state, metrics), times = train_step.timed(self.state, batch)
    else:
      self.state, metrics = train_step(self.state, batch)
    if is_first:  # tracing and compiling happen before the call returns
      self.compile_seconds += time.perf_counter() - called
    self.log.put(step, metrics)
    self.log.add(times)

  def _save(self, step: int) -> None:
    self.log.flush()
    if not self.log.may_save:
      why = 'it was rejected, or its loss is no number'
      logging.warning('no checkpoint of step %d: %s', step, why)
      return
    evaluation.check_finite(self.state, step)
    about = {
      'format': resuming.FORMAT,
      'config': self._experiment.asked,
      'position': self._experiment.sampler.position(step)._asdict(),
      'seconds': self.log.seconds(),
      'traffic': self.counter.to_dict(),
      'early_stop': dataclasses.asdict(self._lowest),
    }
    self._saver.save(step, self.state, about)

  def _asked_to_stop(self, listener: signals.Listener) -> int:
    """Number of the signal on which all processes stop after this step, or 0.

    One process decides at once. Several say at the end of a step what they
    have heard, and read at the end of the next what was said: the answer is
    there by then, and the same for all.
    """
    if jax.process_count() == 1:
      return listener.asked
    before, self._heard = self._heard, self._placement.largest(listener.asked)
    return int(before)

  def _stopped(self, step: int, number: int) -> errors.StoppedError:
    """Waits until the checkpoint of a step is written, and says where."""
    self.log.flush()
    self._saver.wait()
    saved = 'nothing is saved'
    if steps := self._saver.steps():
      folder = self._saver.directory / str(steps[0])
      saved = f'saved in {folder}, and the same command goes on from there'
    where = f'after step {step} of {self._train.steps}: {saved}'
    name = signal.Signals(number).name
    return errors.StoppedError(f'stopped by {name} {where}', number)


def _due(step: int, every: int, too: bool = False) -> bool:
  return bool(every) and (too or step % every == 0)
