"""Going on from a checkpoint: which one, and whether it fits the run."""

from collections.abc import Mapping
import pathlib
from typing import Any
import zlib

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


def check_numbering(experiment: Experiment) -> None:
  """Raises unless all processes number words alike; all must call.

  Raises:
    ConfigError: they do not.
  """
  experiment.placement.check_same(
    {name: zlib.crc32(kept) for name, kept in experiment.task.files().items()},
    'the processes number words differently: their data or versions differ',
  )


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
