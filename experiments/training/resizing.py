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
  now = experiment.placement.num_workers
  before = found.about['config']['parallel']['num_workers']
  if before == now:
    state = saver.restore(found, state)
  else:
    specs = training_step.specs(
      experiment.transformations[-1], experiment.shapes, now
    )
    old = saver.restore(found, _of(before, state, specs))
    state = _handed_over(experiment, old, specs)
    _tell(before, now)
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


def _of(
  num_workers: int,
  state: training_step.TrainState,
  specs: training_step.TrainState,
) -> training_step.TrainState:
  """A state like this one, of other workers; on the host."""

  def zeros(spec, tree):
    own = spec != PartitionSpec()
    return jax.tree.map(
      lambda x: jnp.zeros(
        (num_workers, *x.shape[1:]) if own else x.shape, x.dtype
      ),
      tree,
    )

  return jax.tree.map(
    zeros, specs, state, is_leaf=lambda x: isinstance(x, PartitionSpec)
  )


def _handed_over(
  experiment: Experiment,
  state: training_step.TrainState,
  specs: training_step.TrainState,
) -> training_step.TrainState:
  """The state of the workers that there are now, placed as theirs."""
  tx = experiment.transformations[-1]
  num_workers = experiment.placement.num_workers
  differ = specs.params != PartitionSpec()

  def resized(state):
    params = state.params
    if differ:
      params = gs.workers.stack(experiment.average(params), num_workers)
    return state._replace(
      params=params,
      opt_state=gs.workers.resize(tx, state.opt_state, num_workers),
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
