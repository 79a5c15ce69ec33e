"""Trains a model with compressed gradients and writes down what happened."""

from collections.abc import Mapping
import pathlib
from typing import Any
import zlib

from absl import logging
from experiments.config import fields
from experiments.config import schemes
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
from experiments.training import best as keeping
from experiments.training import early_stop
from experiments.training import evaluation
from experiments.training import loop as looping
from experiments.training import resizing
from experiments.training import resuming
from experiments.training import training_step
from experiments.training.experiment import Experiment
from experiments.training.experiment import build_experiment
import jax
import ml_collections

# Why something is never trained on, by its count in `tasks.Sampler.counts`.
_NEVER = {
  'empty': 'have a side without words',
  'too_long': 'have a side longer than data.max_length',
  'unalignable': 'need more frames than the model gives',
}


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: str | pathlib.Path,
  *,
  progress: looping.Progress | None = None,
  announce: looping.Announce | None = None,
  command: str = '',
) -> dict[str, Any]:
  """Runs an experiment to its last step, resuming what `workdir` holds.

  Args:
    config: see `configs/default.py`.
    workdir: where the records and checkpoints go.
    progress: watches the run.
    announce: is told what is never trained on, and what memory a step of
      simulated workers takes.
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
  placement.check_same(asked, 'the processes were started with different flags')
  # Before there is a folder: a mistake in a field leaves none.
  experiment, state = build_experiment(config, placement)
  lock = workdirs.Lock(workdir, joined=placement.processes > 1)
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
  progress: looping.Progress | None,
  announce: looping.Announce | None,
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
  average = experiment.plan_average()
  counter = byte_counter.ByteCounter(
    experiment.stages, plans, inner_plan.sent_bytes, average
  )
  saver = checkpoints.Checkpoints(
    workdir / 'checkpoints', config.train.checkpoint_every, placement
  )
  found = resuming.find(saver, experiment, asked, workdir)
  done = found.step if found else 0

  placement.check_same(
    {n: zlib.crc32(kept) for n, kept in experiment.task.files().items()},
    'the processes number words differently: their data or versions differ',
  )

  def begin() -> None:
    resuming.keep_files(experiment.task, workdir, goes_on=bool(found))
    if not found:  # of what was tried before
      with files.explained('remove', workdir / records.BEST):
        (workdir / records.BEST).unlink(missing_ok=True)
    saver.prepare(done)
    files.write_json(workdir / records.CONFIG, asked)
    planned = byte_counter.plan_text(
      experiment.stages, plans, inner_plan, average
    )
    files.write_bytes(workdir / records.PLAN, f'{planned}\n'.encode())
    if done < config.train.steps:
      # A shorter run's result is not this one's.
      (workdir / records.SUMMARY).unlink(missing_ok=True)

  placement.on_chief(begin)
  unused = _unused(experiment.sampler.counts)
  if unused and announce and placement.is_chief:
    announce(unused)
  seconds_before = 0.0
  # A checkpoint from before there was such a thing has no count.
  counted = found.about.get('early_stop') if found else None
  if found:
    logging.warning('resuming after step %d of %d', done, config.train.steps)
    state = resizing.restore(experiment, state, saver, found)
    counter.restore(found.about['traffic'])
    seconds_before = found.about['seconds']
  stop = early_stop.EarlyStop(config.train.stop_after, counted)
  best = None
  if config.train.keep_best:
    best = keeping.Best(workdir / records.BEST, placement)
  log = _open_log(experiment, counter, workdir, done, seconds_before)
  with signals.Listener() as listener:
    loop = looping.Loop(
      experiment,
      counter,
      saver,
      log,
      progress,
      announce,
      listener,
      asked,
      stop,
      best,
    )
    try:
      if best and stop.found:  # before the checkpoint
        best.restore(loop.models(state))
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

  training_step.check_finite(state, loop.done)
  seconds = round(log.seconds(), 3)  # of what all runs do
  also: dict[str, Any] = {}
  if best and best.models:
    told, tested = best.models, {}
    also['best_step'] = best.step
  else:
    told, tested = loop.models(state), loop.tested
  tested = tested or loop.evaluate.of_model(told[keeping.MEAN])
  summary = {
    **_result(experiment, loop.done, counter, tested),
    **also,
    **_other_tests(experiment, told, loop.evaluate),
    'seconds': seconds,
    'compile_seconds': round(loop.compile_seconds, 3),
    'command': command,
    'environment': machine.describe(),
  }
  if placement.is_chief:
    records.write_params(workdir / records.PARAMS, told[keeping.MEAN].params)
    files.write_json(workdir / records.SUMMARY, summary)
  return summary


def _result(
  experiment: Experiment,
  done: int,
  counter: byte_counter.ByteCounter,
  tested: Mapping[str, float],
) -> dict[str, Any]:
  """Returns what a run has come to: the part that is the same each time."""
  config = experiment.config
  return {
    'scheme': config.compression.name,
    'steps': done,
    'num_workers': config.parallel.num_workers,
    'inner_workers': config.parallel.inner_workers,
    'data': dict(experiment.sampler.counts),
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(experiment.shapes)),
    # test_loss, and what else the task tells: test_accuracy, ...
    'final': _named(tested),
    'comm': counter.summary(),
  }


def _unused(counts: Mapping[str, int]) -> str:
  """Returns what is never trained on, in words; '' if nothing is told.

  Args:
    counts: of a sampler.
  """
  (what, count), *_ = counts.items()
  found = [
    f'{counts[name]:,} {why}'
    for name, why in _NEVER.items()
    if counts.get(name)
  ]
  if not found:
    return ''
  return f'of {count:,} {what} never trained on: {", ".join(found)}'


def _other_tests(
  experiment: Experiment,
  told: keeping.Models,
  evaluate: evaluation.Evaluation,
) -> dict[str, Any]:
  """Returns how the models that are told of are tested beside `final`.

  On another split, where the configuration names one. And where each worker has
  its own parameters, with those of the first: all other tests take their mean.
  """
  test_finally = experiment.make_final_evaluate()

  def on_the_other_split(model):
    if not test_finally:
      return {}
    tested = _named(test_finally.of_model(model))
    split = experiment.config.data.final_split
    return {'final_split': {'split': split, **tested}}

  found = on_the_other_split(told[keeping.MEAN])
  if keeping.ONE_WORKER in told:
    own = told[keeping.ONE_WORKER]
    found['one_worker'] = {
      'final': _named(evaluate.of_model(own)),
      **on_the_other_split(own),
    }
  return found


def _named(tested: Mapping[str, float]) -> dict[str, float]:
  """Returns scores by names such as `test_loss`."""
  return {
    name.replace('/', '_'): value for name, value in sorted(tested.items())
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
        step,
        metrics['comm/payload_bytes'],
        metrics['comm/sent_bytes'],
        metrics['comm/sent_elements'],
      ),
      'train/learning_rate': learning_rate(step)
      * metrics.get('train/learning_rate_factor', 1),
      'train/epochs': step / experiment.sampler.steps_per_epoch,
    },
  )
