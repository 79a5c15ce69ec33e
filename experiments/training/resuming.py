"""Going on from a checkpoint: which one, whether it fits, what it becomes.

Where it was asked for, a run goes on with another number of workers. Its
batches, byte counts and metrics go on by its step. What workers owe is handed
over by `gs.workers.resize`.
"""

from collections.abc import Mapping
import pathlib
from typing import Any
import warnings

from absl import logging
from experiments import tasks
from experiments.config import fields
from experiments.config import settings
from experiments.data import batches
from experiments.program import errors
from experiments.program import files
from experiments.run import checkpoints
from experiments.run import records
from experiments.training import training_step
from experiments.training.experiment import Experiment
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def find(
  saver: checkpoints.Checkpoints,
  experiment: Experiment,
  asked: Mapping[str, Any],
  workdir: pathlib.Path,
) -> checkpoints.Checkpoint | None:
  """Returns the checkpoint from which a run goes on, None to begin.

  A working directory without a checkpoint is free, whatever was tried there,
  unless it has the result of a finished run.

  Args:
    saver: knows the checkpoints.
    experiment: of the run.
    asked: its configuration, nested fields that are set.
    workdir: its working directory.

  Raises:
    ResumeError: all checkpoints are damaged, or the directory belongs to
      another run.
  """
  found = saver.find()
  if found is None:
    if (workdir / records.SUMMARY).exists():
      before = files.read_json(workdir / records.CONFIG)
      settings.check_resumable(before or asked, asked)
    return None
  settings.check_resumable(found.about['config'], asked)
  steps = experiment.config.train.steps
  if found.step > steps:
    raise errors.ResumeError(
      f'{workdir} holds a checkpoint of step {found.step}, train.steps is '
      f'{steps}'
    )
  position = experiment.sampler.position(found.step)._asdict()
  # With other workers `restore` tells where the data go on.
  resizes = experiment.config.parallel.resize
  if found.about['position'] != position and not resizes:
    raise errors.ResumeError(
      f'{found.folder} was taken at {found.about["position"]} in the data, '
      f'this run would be at {position}: the data have changed'
    )
  return found


def prepare(
  workdir: pathlib.Path,
  saver: checkpoints.Checkpoints,
  found: checkpoints.Checkpoint | None,
  experiment: Experiment,
  asked: Mapping[str, Any],
) -> None:
  """Writes what a run begins with, and removes what a former one has left.

  Args:
    workdir: of the run.
    saver: of its checkpoints.
    found: from which it goes on.
    experiment: of the run.
    asked: its configuration.

  Raises:
    ResumeError: the symbols of the training set mean something else now.
    FileError: a file cannot be read, written or removed.
  """
  kept = experiment.task.files()
  done = found.step if found else 0
  if found and tasks.SYMBOLS in kept and (workdir / tasks.SYMBOLS).exists():
    with files.explained('read', workdir / tasks.SYMBOLS):
      before = (workdir / tasks.SYMBOLS).read_bytes()
    if before != kept[tasks.SYMBOLS]:
      raise errors.ResumeError(
        f'{workdir / tasks.SYMBOLS} is not what the training set gives: the '
        'data have changed'
      )
  old = {tasks.SYMBOLS, tasks.VOCABULARY} - {*kept}
  if not found:
    old.add(records.BEST)
  if done < experiment.config.train.steps:
    old.add(records.SUMMARY)  # a shorter run's result is not this one's
  for name in old:
    with files.explained('remove', workdir / name):
      (workdir / name).unlink(missing_ok=True)
  for name, content in kept.items():
    files.write_bytes(workdir / name, content)
  saver.prepare(done)
  files.write_json(workdir / records.CONFIG, asked)
  files.write_bytes(workdir / records.PLAN, f'{experiment.plans}\n'.encode())


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
  asked = fields.of_record(found.about['config'])
  before = asked['parallel.num_workers']
  # Hidden states and statistics of batch normalisation are of inner workers.
  # Before the field existed there was one.
  sizes = _axes(before, asked.get('parallel.devices_per_node', 1))
  moved = bool(jax.tree.leaves((state.statistics, state.carry))) and sizes != (
    _axes(now, placement.inner_workers)
  )
  if before == now and not moved:
    state = saver.restore(found, state)
  else:
    old = saver.restore(found, _of(sizes, state, experiment.specs))
    state = _handed_over(experiment, old, len(sizes))
    if before != now:
      logging.warning(
        '%d workers go on where %d were: what is pending stays the update that '
        'it will become, momentum and the state of the optimizer go with it; '
        "random draws and the workers' shares of the data are new",
        now,
        before,
      )
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
