"""Trains a model with compressed gradients and writes down what happened."""

from collections.abc import Callable, Mapping
import pathlib
import time
from typing import Any

from absl import logging
from experiments import checkpoints
from experiments import communication
from experiments import compression
from experiments import data
from experiments import devices
from experiments import errors
from experiments import fields
from experiments import models
from experiments import placement as placing
from experiments import records
from experiments import run_log
from experiments import settings
from experiments import time_breakdown
from experiments import training_step
import jax
import ml_collections
import optax

# Called after each step with the step, the number of steps, and the last line
# of metrics.jsonl.
Progress = Callable[[int, int, Mapping[str, float]], None]


def train_and_evaluate(
  config: ml_collections.ConfigDict,
  workdir: str | pathlib.Path,
  *,
  progress: Progress | None = None,
  command: str = '',
) -> dict[str, Any]:
  """Runs an experiment to its last step, resuming what `workdir` holds.

  Args:
    config: see `configs/default.py`.
    workdir: where the records and checkpoints go.
    progress: watches the run.
    command: what the user typed, for the record.

  Returns:
    The content of `summary.json`.

  Raises:
    UserError: a field, a file or a former run is in the way, or the loss is
      not a number.
  """
  workdir = pathlib.Path(workdir)
  steps = config.train.steps
  num_workers = config.parallel.num_workers
  placement = placing.provide(config.parallel.runner, num_workers)
  chief = placement.process == 0  # writes what is written once
  asked = fields.without_none(config.to_dict())
  settings.check_resumable(records.read_json(workdir / records.CONFIG), asked)

  # Data.
  dataset = data.load(config.data.name, config.data.dir, config.data.test_split)
  sampler = data.Sampler(
    dataset.train,
    num_workers=num_workers,
    batch_size=config.train.batch_size,
    seed=config.train.seed,
    augment=config.data.augment,
    workers=placement.workers,
  )

  # The model, and one transformation for each stage of the warm-up.
  model = models.create(config.model.name, dataset.classes)
  learning_rate = compression.learning_rate_schedule(
    config.optimizer.schedule,
    config.train.learning_rate,
    steps,
    warmup_steps=config.compression.warmup_steps,
    warmup_factor=config.optimizer.warmup_factor,
  )
  stages = compression.warmup_stages(
    config.compression.name,
    settings.compression_arguments(config.compression),
    config.compression.warmup_steps,
    config.compression.warmup,
  )
  transformations = [
    _transformation(config, stage.density, learning_rate) for stage in stages
  ]

  # The state does not depend on the density: every stage carries on with it.
  try:
    state = training_step.init_state(
      model,
      transformations[-1],
      image_shape=dataset.train.images.shape[1:],
      placement=placement,
      seed=config.train.seed,
    )
  except ValueError as error:  # such as: no leaf is large enough
    raise errors.ConfigError(f'{config.compression.name}: {error}') from error
  differ = bool(config.compression.local_gradient)
  average = training_step.make_average_params(differ, placement)
  shapes = jax.eval_shape(average, state.params)
  plans = communication.plan_stages(
    stages, transformations, shapes, num_workers
  )
  traffic = communication.Communication(stages, plans)

  if chief:
    workdir.mkdir(parents=True, exist_ok=True)
    records.write_json(workdir / records.CONFIG, asked)
    planned = communication.plan_text(stages, plans)
    (workdir / records.PLAN).write_text(f'{planned}\n')
  placement.check_same(asked, workdir, records.CONFIG)
  saver = checkpoints.Checkpoints(
    workdir / 'checkpoints', config.train.checkpoint_every
  )
  done, seconds_before = saver.latest_step(), 0.0
  if done > steps:
    raise errors.ResumeError(
      f'{workdir} holds a checkpoint of step {done}, train.steps is {steps}'
    )
  if done:
    state, progress_made = saver.restore(done, state, sampler.position(done))
    seconds_before = progress_made['seconds']
    traffic.restore(progress_made['traffic'])
    logging.warning('resuming after step %d of %d', done, steps)
  if done < steps and chief:  # a shorter run's result is not this one's
    (workdir / records.SUMMARY).unlink(missing_ok=True)

  # The loop.
  evaluate = training_step.make_evaluate(
    model,
    dataset.test,
    mean=dataset.mean,
    std=dataset.std,
    placement=placement,
    average=average,
  )
  log = run_log.RunLog(
    workdir / records.METRICS if chief else None,
    every=config.train.log_every,
    last_step=steps,
    resume_step=done,
    tensorboard=config.train.tensorboard,
    seconds_before=seconds_before,
    describe=lambda step, metrics: {
      **traffic.count(step, metrics['comm/payload_bytes']),
      'train/learning_rate': float(learning_rate(step - 1)),
      'train/epochs': step / sampler.steps_per_epoch,
    },
  )
  tested: dict[str, float] = {}
  train_step, first_call, compiling = None, True, 0.0
  try:
    for step in range(done + 1, steps + 1):
      stage = compression.stage_at(stages, step - 1)
      if train_step is None or stage.first_step == step - 1:
        train_step = training_step.make_train_step(
          model,
          transformations[stages.index(stage)],
          shapes,
          placement=placement,
          mean=dataset.mean,
          std=dataset.std,
          moments=config.compression.name in compression.NEED_MOMENTS,
          microbatch=config.compression.microbatch or None,
          average_every=config.compression.average_every,
        )
        first_call = True
      batch = placement.batch(sampler.batch(step - 1))
      called = time.perf_counter()
      if first_call and config.train.time_breakdown_every:
        train_step = time_breakdown.Profiled(train_step, (state, batch))
      where_time_goes: dict[str, float] = {}
      if _due(step, config.train.time_breakdown_every):
        (state, metrics), where_time_goes = train_step.timed(state, batch)
      else:
        state, metrics = train_step(state, batch)
      if first_call:  # tracing and compiling happen before the call returns
        compiling += time.perf_counter() - called
        first_call = False
      log.put(step, metrics)
      log.add(where_time_goes)
      if _due(step, config.train.eval_every) or step == steps:
        tested = evaluate(state)
        log.add(tested)
      if _due(step, config.train.checkpoint_every) or (
        config.train.checkpoint_every and step == steps
      ):
        log.flush()  # raises where the loss is no number: never save that
        training_step.check_finite(state, step)
        saver.save(
          state,
          sampler.position(step),
          {'seconds': log.seconds(), 'traffic': traffic.to_dict()},
        )
      if progress is not None and chief and step < steps:
        progress(step, steps, log.latest)
    log.flush()
    if progress is not None and chief:
      progress(steps, steps, log.latest)
  finally:
    log.close()
    saver.close()

  # The result.
  training_step.check_finite(state, steps)
  tested = tested or evaluate(state)
  params = average(state.params)
  summary = {
    'scheme': config.compression.name,
    'steps': steps,
    'seconds': round(log.seconds(), 3),
    'compile_seconds': round(compiling, 3),
    'num_workers': num_workers,
    'parameters': sum(leaf.size for leaf in jax.tree.leaves(shapes)),
    'final': {
      'test_accuracy': tested['test/accuracy'],
      'test_loss': tested['test/loss'],
    },
    'comm': traffic.summary(),
    'command': command,
    'environment': devices.describe(),
  }
  if chief:
    records.write_params(workdir / records.PARAMS, params)
    records.write_json(workdir / records.SUMMARY, summary)
  return summary


def _transformation(
  config: ml_collections.ConfigDict,
  density: float | Callable[[int], Any] | None,
  learning_rate: optax.Schedule,
) -> optax.GradientTransformation:
  """Returns the optimizer chain of one stage."""
  arguments = settings.compression_arguments(config.compression)
  if density is not None:
    arguments['density'] = density
  return compression.make_transformation(
    config.compression.name,
    arguments,
    axis_name=training_step.AXIS,
    optimizer=config.optimizer.name,
    learning_rate=learning_rate,
    momentum=config.optimizer.momentum,
    nesterov=config.optimizer.nesterov,
    weight_decay=config.optimizer.weight_decay,
    clip_norm=config.compression.clip_norm,
    local_gradient=config.compression.local_gradient,
  )


def _due(step: int, every: int) -> bool:
  return bool(every) and step % every == 0
