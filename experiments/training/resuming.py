"""Going on from a checkpoint: which one, and whether it fits the run."""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments import tasks
from experiments.config import settings
from experiments.program import errors
from experiments.program import files
from experiments.run import checkpoints
from experiments.run import records
from experiments.training.experiment import Experiment


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
  if found is not None:
    check_fits(found, experiment, asked)
  elif (workdir / records.SUMMARY).exists():
    before = files.read_json(workdir / records.CONFIG)
    settings.check_resumable(before or asked, asked)
  return found


def check_fits(
  found: checkpoints.Checkpoint,
  experiment: Experiment,
  asked: Mapping[str, Any],
) -> None:
  """Raises unless a run may go on from a checkpoint.

  All that decides it is here: the configuration, and the place in the data.

  Raises:
    ResumeError: says what differs.
  """
  settings.check_resumable(found.about['config'], asked)
  steps = experiment.config.train.steps
  if found.step > steps:
    raise errors.ResumeError(
      f'{found.folder.parent.parent} holds a checkpoint of step {found.step}, '
      f'train.steps is {steps}'
    )
  if experiment.config.parallel.resize:
    return  # `resizing` tells where the data go on
  position = experiment.sampler.position(found.step)._asdict()
  if found.about['position'] != position:
    raise errors.ResumeError(
      f'{found.folder} was taken at {found.about["position"]} in the data, '
      f'this run would be at {position}: the data have changed'
    )


def keep_files(task: tasks.Task, workdir: pathlib.Path, goes_on: bool) -> None:
  """Writes what must be kept with the parameters to use them, and no more.

  Args:
    task: what is learned.
    workdir: gets the files.
    goes_on: there is a checkpoint, whose numbers must mean the same.

  Raises:
    ResumeError: they mean something else now.
    FileError: a file cannot be read or written.
  """
  kept = task.files()
  for name in {tasks.SYMBOLS, tasks.VOCABULARY} - {*kept}:
    with files.explained('remove', workdir / name):  # of what was tried before
      (workdir / name).unlink(missing_ok=True)
  for name, content in kept.items():
    path = workdir / name
    if goes_on and name == tasks.SYMBOLS and path.exists():
      with files.explained('read', path):
        before = path.read_bytes()
      if before != content:
        raise errors.ResumeError(
          f'{path} is not what the training set gives: the data have changed'
        )
    files.write_bytes(path, content)
