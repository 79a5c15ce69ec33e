"""Resuming with another number of workers, where it was asked for.

The batches, the byte counts and the metrics of a run go on by its step. What
workers owe is handed over by `gs.workers.resize`.
"""

import warnings

from absl import logging
from experiments.data import batches
from experiments.run import checkpoints
from experiments.training import training_step
from experiments.training.experiment import Experiment
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def restore(
  experiment: Experiment,
  state: training_step.TrainState,
  saver: checkpoints.Checkpoints,
  found: checkpoints.Checkpoint,
) -> training_step.TrainState:
  """Returns the state of a checkpoint, for the workers that there are now.

  Args:
    experiment: of the run.
    state: before its first step.
    saver: has the checkpoints.
    found: one of them, that fits the run.

  Raises:
    ResumeError: the arrays are those of another run.
  """
  placement = experiment.placement
  now = placement.num_workers
  asked = found.about['config']['parallel']
  before = asked['num_workers']
  # Hidden states and statistics of batch normalisation are of inner workers.
  # Before the field existed there was one.
  sizes = _axes(before, asked.get('inner_workers', 1))
  moved = bool(jax.tree.leaves((state.statistics, state.carry))) and sizes != (
    _axes(now, placement.inner_workers)
  )
  if before == now and not moved:
    state = saver.restore(found, state)
  else:
    old = saver.restore(found, _of(sizes, state, experiment.specs))
    state = _handed_over(experiment, old, len(sizes))
    if before != now:
      _tell(before, now)
    if moved and jax.tree.leaves(state.carry):
      logging.warning('hidden states begin anew: each is of one worker')
  position = experiment.sampler.position(found.step)
  saved = batches.Position(**found.about['position'])
  if saved != position:
    logging.warning(
      'the data go on at epoch %d, example %d (it was epoch %d, example %d)',
      position.epoch,
      position.examples_into_epoch,
      saved.epoch,
      saved.examples_into_epoch,
    )
  return state


def _axes(num_workers: int, inner_workers: int) -> tuple[int, ...]:
  """Sizes of the axes of workers, as a placement has them."""
  return (num_workers, inner_workers)[: 1 + (inner_workers > 1)]


def _of(
  sizes: tuple[int, ...],
  state: training_step.TrainState,
  specs: training_step.TrainState,
) -> training_step.TrainState:
  """A state like this one, of other workers; on the host.

  Args:
    sizes: of the axes of these workers.
    state: of other workers.
    specs: of that state.
  """

  def zeros(spec, tree, sizes=sizes[:1]):
    # The axes of workers that the spec names come first.
    axes = len(spec)
    own = sizes if axes else ()
    return jax.tree.map(
      lambda x: jnp.zeros((*own, *x.shape[axes:]), x.dtype), tree
    )

  made = jax.tree.map(
    zeros, specs, state, is_leaf=lambda x: isinstance(x, PartitionSpec)
  )
  return made._replace(
    statistics=zeros(specs.statistics, state.statistics, sizes),
    carry=zeros(specs.carry, state.carry, sizes),
  )


def _handed_over(
  experiment: Experiment, state: training_step.TrainState, axes: int
) -> training_step.TrainState:
  """The state of the workers that there are now, placed as theirs.

  Args:
    experiment: of the run.
    state: of the workers that there were.
    axes: of these.
  """
  tx = experiment.transformations[-1]
  num_workers = experiment.placement.num_workers
  specs = experiment.specs
  differ = specs.params != PartitionSpec()

  def held(params):
    if differ:
      return gs.workers.stack(experiment.average(params), num_workers)
    return params

  def resized(state):
    mean = training_step.mean_over(axes, state.statistics)
    return state._replace(
      params=held(state.params),
      statistics=training_step.for_each_worker(mean, experiment.placement),
      smoothed=held(state.smoothed),
      opt_state=gs.workers.resize(tx, state.opt_state, num_workers),
      carry=training_step.first_carry(experiment.task, experiment.placement),
    )

  with warnings.catch_warnings(record=True) as lost:
    warnings.simplefilter('always')
    # Every process has read all of it: as NumPy arrays they are of no device.
    state = experiment.placement.make(resized, specs, jax.device_get(state))
  for message in dict.fromkeys(str(warning.message) for warning in lost):
    logging.warning('not carried over: %s', message)
  return state


def _tell(before: int, now: int) -> None:
  logging.warning(
    '%d workers go on where %d were: what is pending stays the update that it '
    'will become, momentum and the state of the optimizer go with it; random '
    "draws and the workers' shares of the data are new",
    now,
    before,
  )
