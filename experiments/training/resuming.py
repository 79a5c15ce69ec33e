"""Going on from a checkpoint: which one, whether it fits, what it becomes.

Where it was asked for, a run goes on with another number of workers. Its
batches, byte counts and metrics go on by its step. What workers owe is handed
over by `gs.workers.resize`.
"""

import json
import pathlib
import warnings

from absl import logging
from experiments import tasks
from experiments.config import settings
from experiments.hosts.placement import Placement
from experiments.program import errors
from experiments.program import files
from experiments.run import checkpoints
from experiments.run import records
from experiments.run import trackers
from experiments.training import training_step
from experiments.training.experiment import Experiment
import gradsparse as gs
import jax
import jax.numpy as jnp

# Of what a checkpoint holds beside its arrays; a run goes on from this one.
FORMAT = 2


def find(
  saver: checkpoints.Checkpoints, experiment: Experiment, workdir: pathlib.Path
) -> checkpoints.Checkpoint:
  """Returns the checkpoint from which a run goes on, or its beginning.

  A working directory without a checkpoint is free, whatever was tried there,
  unless it has the result of a finished run.

  Args:
    saver: knows the checkpoints.
    experiment: of the run.
    workdir: its working directory.

  Raises:
    ResumeError: all checkpoints are damaged, or the directory belongs to
      another run or version of the program.
  """
  found, asked = saver.find(), experiment.asked
  if not found.step:
    if (workdir / records.SUMMARY).exists():
      before = files.read_json(workdir / records.CONFIG)
      settings.check_resumable(before or asked, asked)
    return found
  if found.about.get('format') != FORMAT:
    raise errors.ResumeError(
      f'{found.folder} is from another version of this program, with another '
      'format: train anew, with another --workdir'
    )
  settings.check_resumable(found.about['config'], asked)
  steps = experiment.config.train.steps
  if found.step > steps:
    told = f'{found.folder} is of a longer run: train.steps is {steps}'
    raise errors.ResumeError(told)
  position = experiment.sampler.position(found.step)._asdict()
  # Other workers are at another place in the data.
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
  found: checkpoints.Checkpoint,
  experiment: Experiment,
) -> None:
  """Writes what a run begins with, and removes what a former one has left.

  Args:
    workdir: of the run.
    saver: of its checkpoints.
    found: from which it goes on.
    experiment: of the run.

  Raises:
    ResumeError: the symbols of the training set mean something else now.
    FileError: a file cannot be read, written or removed.
  """
  kept = experiment.task.files()
  before = files.read_json(workdir / tasks.SYMBOLS) if found.step else None
  if before and before != json.loads(kept[tasks.SYMBOLS]):
    path = workdir / tasks.SYMBOLS
    raise errors.ResumeError(
      f'{path} does not match the training set: the data have changed'
    )
  old = {tasks.SYMBOLS, tasks.VOCABULARY} - {*kept}
  if not found.step:
    old |= {records.BEST, trackers.IDS}
  if found.step < experiment.config.train.steps:
    old.add(records.SUMMARY)  # a shorter run's result is not this one's
  for name in old:
    with files.explained('remove', workdir / name):
      (workdir / name).unlink(missing_ok=True)
  for name, content in kept.items():
    files.write_bytes(workdir / name, content)
  saver.prepare(found.step)
  files.write_json(workdir / records.CONFIG, experiment.asked)
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
  parallel = found.about['config']['parallel']
  sizes = parallel['num_workers'], parallel['devices_per_node']
  former = Placement('simulate', *sizes)
  before, now = former.num_workers, experiment.placement.num_workers
  # Hidden states and statistics of batch normalisation are of inner workers.
  own = bool(jax.tree.leaves((state.statistics, state.carry)))
  moved = own and former.axes != experiment.placement.axes
  if before == now and not moved:
    state = saver.restore(found, state)
  else:
    shapes = jax.eval_shape(lambda: experiment.init_state(former))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    state = _handed_over(experiment, saver.restore(found, zeros), former)
    if before != now:
      logging.warning(
        f'{now} workers go on where {before} were: what is pending stays the '
        'update that it will become, momentum and the state of the optimizer '
        "go with it; random draws and the workers' shares of the data are new"
      )
    if jax.tree.leaves(state.carry):
      logging.warning('hidden states begin anew: each is of one worker')
  return state


def _handed_over(experiment, state, former) -> training_step.TrainState:
  """The state of the workers that there are now, placed as theirs.

  Args:
    experiment: of the run.
    state: of the workers that there were.
    former: of these.
  """
  placement, count = experiment.placement, experiment.placement.num_workers

  def held(params):
    if not experiment.differ:
      return params
    mean = training_step.mean_over(1, params)
    return gs.workers.stack(mean, count)

  def resized(state):
    mean = training_step.mean_over(len(former.axes), state.statistics)
    return state._replace(
      params=held(state.params),
      statistics=training_step.for_each_worker(mean, placement),
      smoothed=held(state.smoothed),
      opt_state=gs.workers.resize(experiment.tx, state.opt_state, count),
      carry=training_step.for_each_worker(experiment.task.carry(), placement),
    )

  with warnings.catch_warnings(record=True) as lost:
    warnings.simplefilter('always')
    # Every process has read all of it: as NumPy arrays they are of no device.
    resize = placement.compile(resized, experiment.specs)
    state = resize(jax.device_get(state))
  for message in dict.fromkeys(str(warning.message) for warning in lost):
    logging.warning('another number of workers: %s', message)
  return state
