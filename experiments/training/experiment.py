"""Builds what a configuration describes: data, model, optimizer, state."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from experiments import tasks
from experiments.config import learning_rate
from experiments.config import optimizer
from experiments.config import schemes
from experiments.config import warmup
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.run import byte_counter
from experiments.run import machine
from experiments.run import time_breakdown
from experiments.training import blocks
from experiments.training import evaluation
from experiments.training import training_step
import gradsparse as gs
import jax
import ml_collections
import optax


@dataclasses.dataclass(frozen=True)
class Experiment:
  """A run that can begin.

  Attributes:
    config: see `configs/default.py`.
    placement: of the workers.
    task: what is learned.
    final_task: the same, tested on `data.final_split`; None where that is
      empty.
    sampler: which batch a step sees.
    learning_rate: a function of the step.
    stages: of the warm-up; one where there is none.
    transformations: the optimizer chain of each stage, of which some may be
      the same.
    planned: a chain with each stage's own density, for its plan.
    average: one set of parameters of a state's.
    shapes: of these parameters.
  """

  config: ml_collections.ConfigDict
  placement: placing.Placement
  task: tasks.Task
  final_task: tasks.Task | None
  sampler: tasks.Sampler
  learning_rate: Callable[[Any], Any]
  stages: tuple[warmup.Stage, ...]
  transformations: tuple[optax.GradientTransformation, ...]
  planned: tuple[optax.GradientTransformation, ...]
  average: Callable[[Any], Any]
  shapes: Any

  @property
  def differ(self) -> bool:
    """Whether parameters differ between workers."""
    return bool(self.config.compression.local_gradient)

  @property
  def moments(self) -> bool:
    """Whether the scheme takes second moments of per-example gradients."""
    return schemes.needs_moments(self.config.compression)

  @functools.cached_property
  def specs(self) -> training_step.TrainState:
    """Which parts of the state belong to one worker."""
    return training_step.specs(
      self.transformations[-1], self.shapes, self.placement
    )

  def make_train_step(self, stage: warmup.Stage, block: int | None = None):
    """Returns the step of a stage, see `training_step.make_train_step`."""
    section = self.config.compression
    return training_step.make_train_step(
      self.task,
      self.transformations[self.stages.index(stage)],
      self.shapes,
      placement=self.placement,
      moments=self.moments,
      microbatch=section.microbatch or None,
      param_sync_every=section.param_sync_every,
      ema_decay=self.config.train.ema_decay,
      block=block,
    )

  def prepare_step(
    self, stage: warmup.Stage, state: training_step.TrainState, batch: Any
  ) -> tuple[Callable[..., Any], str]:
    """Returns the step of a stage, and what memory it takes.

    Args:
      stage: of the warm-up.
      state: before a step.
      batch: of all workers.

    Returns:
      The step, which can tell times if the configuration wants any. Of
      simulated workers it is compiled, in blocks if it must be, and its memory
      is said in words; of others not.
    """
    make = functools.partial(self.make_train_step, stage)
    timed, memory = self.config.train.time_breakdown_every, ''
    if self.placement.runner == 'simulate':
      workers, room = self.placement.num_workers, machine.memory_bytes()
      step, block = blocks.fitting(
        make,
        state,
        batch,
        workers=workers,
        memory_bytes=room,
        block=self.config.parallel.workers_per_chunk,
      )
      memory = blocks.text(step, workers, block, room)
    elif timed:
      step = blocks.compiled(make(), state, batch)
    else:
      step = make()
    if timed:
      step = time_breakdown.Profiled(step.run, step.programs)
    return step, memory

  @functools.cached_property
  def plans(self) -> byte_counter.Plans:
    """What its steps will send."""
    section, workers = self.config.compression, self.placement.num_workers
    average = gs.workers.plan_average(
      self.transformations[-1],
      self.shapes,
      workers,
      every=section.param_sync_every,
    )
    return byte_counter.Plans(
      self.stages,
      [
        gs.plan(tx, self.shapes, workers, step=stage.first_step)
        for tx, stage in zip(self.planned, self.stages, strict=True)
      ],
      byte_counter.plan_inside(
        self.shapes, self.placement.inner_workers, moments=self.moments
      ),
      average if average.rows else None,
    )

  def make_evaluate(self) -> evaluation.Evaluation:
    """Returns the test of a state."""
    return self._make_evaluate(self.task)

  def make_final_evaluate(self) -> evaluation.Evaluation | None:
    """Likewise on `data.final_split`; None where that is empty."""
    return self._make_evaluate(self.final_task) if self.final_task else None

  def _make_evaluate(self, task):
    return evaluation.Evaluation(
      task, placement=self.placement, average=self.average
    )

  def follow(
    self, state: training_step.TrainState, tested: Mapping[str, float]
  ) -> training_step.TrainState:
    """Returns a state whose learning rate has heard of a test.

    Args:
      state: that was tested.
      tested: what `make_evaluate` returned.
    """
    section = self.config.optimizer
    if section.schedule != 'plateau':
      return state
    opt_state = learning_rate.observe(
      state.opt_state,
      tested['test/loss'],
      section.lr_decay_factor,
      section.patience,
    )
    return state._replace(opt_state=opt_state)


def build_experiment(
  config: ml_collections.ConfigDict, placement: placing.Placement
) -> tuple[Experiment, training_step.TrainState]:
  """Returns the experiment, and its state before the first step.

  Raises:
    UserError: the data are not there, the scheme has nothing to compress, or
      the model's examples cannot be parted into microbatches.
  """
  task, sampler = tasks.build(
    config,
    num_workers=placement.num_workers * placement.inner_workers,
    workers=placement.workers,
  )
  final_split = config.data.final_split
  final_task = None
  if final_split:
    final_task = tasks.tested_on(task, config, final_split)
  rate = learning_rate.make(
    config.optimizer,
    config.train.learning_rate,
    steps=config.train.steps,
    steps_per_epoch=sampler.steps_per_epoch,
    density_steps=config.compression.warmup_steps,
  )
  stages = warmup.stages_of(
    config.compression.name,
    schemes.arguments_of(config.compression),
    config.compression.warmup_steps,
    config.compression.warmup,
  )

  @functools.cache
  def chain(density):
    return optimizer.make(config, rate, density, axis_name=training_step.AXIS)

  transformations = tuple(chain(stage.given) for stage in stages)
  # The state does not depend on the density: every stage carries on with it.
  try:
    state = training_step.init_state(
      task,
      transformations[-1],
      placement=placement,
      seed=config.train.seed,
      smoothed=bool(config.train.ema_decay),
    )
  except ValueError as error:  # such as: no leaf is large enough
    raise errors.ConfigError(f'{config.compression.name}: {error}') from error
  section = config.compression
  if (
    schemes.needs_moments(section)
    and section.microbatch
    and jax.tree.leaves(state.statistics)
  ):
    raise errors.ConfigError(
      f'compression.microbatch must be 0 for model.name={config.model.name!r}, '
      'whose examples share the statistics of batch normalisation, got '
      f'{section.microbatch}'
    )
  average = training_step.make_average_params(
    bool(config.compression.local_gradient), placement
  )
  experiment = Experiment(
    config,
    placement,
    task,
    final_task,
    sampler,
    rate,
    stages,
    transformations,
    tuple(chain(stage.density) for stage in stages),
    average,
    shapes=jax.eval_shape(average, state.params),
  )
  return experiment, state
