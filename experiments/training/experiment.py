"""Builds what a configuration describes: data, model, optimizer, state."""

from collections.abc import Callable
import functools
from typing import Any

from experiments import tasks
from experiments.config import optimizer
from experiments.config import schemes
from experiments.hosts.placement import AXIS
from experiments.hosts.placement import Placement
from experiments.program import errors
from experiments.run import byte_counter
from experiments.training import evaluation
from experiments.training import training_step
import gradsparse as gs
import jax
from jax.sharding import PartitionSpec
import ml_collections


class Experiment:
  """A run that can begin.

  Attributes:
    config: see `configs/default.py`.
    asked: its fields that are set, for the records.
    placement: of the workers.
    task: what is learned.
    final_task: the same, tested on `data.final_split`; '' where that is empty.
    sampler: which batch a step sees.
    learning_rate: a function of the step.
    stages: of the warm-up; one where there is none.
    chain: returns the optimizer chain of a density.
    tx: the chain of the last stage. Its state does not depend on the density:
      every stage carries on with it.
    moments: whether the scheme takes second moments of per-example gradients.
    shapes: of one set of parameters.
    specs: which parts of the state belong to one worker.
    differ: whether parameters differ between workers.
  """

  def __init__(self, config: ml_collections.ConfigDict, placement: Placement):
    """Reads the data.

    Args:
      config: see `configs/default.py`.
      placement: of the workers.

    Raises:
      UserError: the data are not there, the scheme has nothing to compress, or
        the model's examples cannot be parted into microbatches.
    """
    self.config, self.placement = config, placement
    self.asked = config.to_dict()
    section = config.compression
    self.task, self.sampler = tasks.build(
      config,
      num_workers=placement.num_workers * placement.inner_workers,
      workers=placement.workers,
    )
    split = config.data.final_split
    self.final_task = split and tasks.tested_on(self.task, config, split)
    epoch = self.sampler.steps_per_epoch
    self.learning_rate = rate = optimizer.learning_rate(config, epoch)
    self.stages = schemes.stages(section)
    make = functools.partial(optimizer.make, config, rate, axis_name=AXIS)
    self.chain = functools.cache(make)
    self.moments = schemes.needs_moments(schemes.check(section))
    self.shapes, statistics = jax.eval_shape(self.task.init, jax.random.key(0))
    if self.moments and section.microbatch and jax.tree.leaves(statistics):
      raise errors.ConfigError(
        'compression.microbatch must be 0 for '
        f'model.name={config.model.name!r}, whose examples share the '
        f'statistics of batch normalisation, got {section.microbatch}'
      )
    try:
      self.tx = self.chain(self.stages[-1].given)
      self.specs = training_step.specs(self.tx, self.shapes, placement)
    except ValueError as error:  # such as: no leaf is large enough
      raise errors.ConfigError(
        f'compression of {section.name}: {error}'
      ) from error
    self.differ = self.specs.params != PartitionSpec()

  def init_state(
    self, placement: Placement | None = None
  ) -> training_step.TrainState:
    """Returns the state before the first step.

    Args:
      placement: of other workers; its own if None.
    """
    return training_step.init_state(
      self.task,
      self.tx,
      placement=placement or self.placement,
      seed=self.config.train.seed,
      smoothed=bool(self.config.train.ema_decay),
    )

  def make_train_step(self, stage: schemes.Stage) -> Callable[..., Any]:
    """Returns the step of a stage, see `training_step.make_train_step`."""
    section, parallel = self.config.compression, self.config.parallel
    block = parallel.workers_per_chunk
    return training_step.make_train_step(
      self.task,
      self.chain(stage.given),
      self.shapes,
      placement=self.placement,
      moments=self.moments,
      microbatch=section.microbatch or None,
      param_sync_every=section.param_sync_every,
      ema_decay=self.config.train.ema_decay,
      block=block if 0 < block < parallel.num_workers else None,
    )

  @functools.cached_property
  def plans(self) -> byte_counter.Plans:
    """What its steps will send."""
    shapes, workers = self.shapes, self.placement.num_workers
    every = self.config.compression.param_sync_every
    average = gs.workers.plan_average(self.tx, shapes, workers, every=every)
    return byte_counter.Plans(
      self.stages,
      [
        gs.plan(self.chain(each.density), shapes, workers, step=each.first_step)
        for each in self.stages
      ],
      byte_counter.plan_inside(
        shapes, self.placement.inner_workers, moments=self.moments
      ),
      average if average.rows and not isinstance(self.tx, gs.Outer) else None,
    )

  def check_agreement(self, step: int, state: training_step.TrainState) -> None:
    """Compares all that is declared equal on all workers; all must call.

    A checksum a leaf on each device, and one small collective: 4 bytes a leaf
    to each other worker. A program of its own, beside that of the step, which
    is compiled when it is first needed. Without a mesh what is shared is there
    once: nothing can differ.

    Raises:
      DisagreementError: names step, leaf and worker.
    """
    axes = tuple(self.placement.axes)
    try:
      if self.placement.mesh is not None:
        found = self._fingerprints(state)
        gs.workers.check_agreement(found, state, self.specs, axes)
    except gs.workers.DisagreementError as error:
      raise errors.DisagreementError(
        f'after step {step} {error}. No checkpoint holds this: the same '
        'command resumes from the last checkpoint'
      ) from error

  @functools.cached_property
  def _fingerprints(self) -> Callable[..., Any]:
    axes = tuple(self.placement.axes)
    return self.placement.parallel(
      lambda state: gs.workers.fingerprint(state, self.specs, axes),
      in_specs=(self.specs,),
      out_specs=PartitionSpec(),
    )

  def evaluation(self, task: tasks.Task) -> evaluation.Evaluation:
    """Returns the test of a task, its own or `final_task`."""
    return evaluation.Evaluation(task, self.placement, self.differ)
