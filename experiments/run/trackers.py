"""Writers for TensorBoard, Weights & Biases, MLflow and Trackio.

Each is a factory, see `writers`, and imports its package when it is called.
Where things go is said by the environment variables of the tracker.

  trackers.json   in the working directory: the run's name in each tracker,
                  under which it goes on
"""

from collections.abc import Callable, Mapping
import pathlib
import secrets
from typing import Any, NamedTuple

from experiments.program import files
from flax import traverse_util

IDS = 'trackers.json'


class Writer(NamedTuple):
  """What a factory here returns.

  Attributes:
    write: takes a step and its numbers by name.
    close: is called once, when no more come.
  """

  write: Callable[[int, Mapping[str, float]], Any]
  close: Callable[[], Any]


def tensorboard(
  config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
) -> Writer:
  """Writes event files to `tensorboard/` in the working directory."""
  import tensorboardX

  del config
  board = tensorboardX.SummaryWriter(
    str(workdir / 'tensorboard'),
    purge_step=last_step + 1,  # what earlier ones have after it does not show
  )

  def write(step: int, numbers: Mapping[str, float]) -> None:
    for name, value in numbers.items():
      board.add_scalar(name, value, step)

  return Writer(write, board.close)


def wandb(
  config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
) -> Writer:
  """Writes a run of Weights & Biases.

  Its project is what WANDB_PROJECT says; with WANDB_MODE=offline it stays in
  `wandb/` in the working directory.
  """
  import wandb as package

  del last_step
  known = _ids(workdir).get('wandb')
  run = package.init(
    config=dict(config),
    dir=str(workdir),
    name=workdir.resolve().name,
    id=known,
    resume='allow' if known else None,
  )
  _keep(workdir, 'wandb', run.id)

  def write(step: int, numbers: Mapping[str, float]) -> None:
    # Without `commit` it would wait for the next one.
    run.log(dict(numbers), step=step, commit=True)

  return Writer(write, run.finish)


def mlflow(
  config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
) -> Writer:
  """Writes a run of MLflow.

  MLFLOW_TRACKING_URI says where, MLFLOW_EXPERIMENT_NAME to which experiment.
  """
  import mlflow as package

  del last_step
  if known := _ids(workdir).get('mlflow'):
    package.start_run(run_id=known)
  else:
    run = package.start_run(run_name=workdir.resolve().name)
    _keep(workdir, 'mlflow', run.info.run_id)
    package.log_params(traverse_util.flatten_dict(dict(config), sep='.'))

  def write(step: int, numbers: Mapping[str, float]) -> None:
    package.log_metrics(dict(numbers), step=step)

  return Writer(write, package.end_run)


def trackio(
  config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
) -> Writer:
  """Writes a run of Trackio, in the project `gradsparse`.

  TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says where, if not on this machine.
  """
  import trackio as package

  del last_step
  known = _ids(workdir).get('trackio')
  # It knows runs by their names, and several folders may have the same one.
  name = known or f'{workdir.resolve().name}-{secrets.token_hex(3)}'
  package.init(
    project='gradsparse',
    name=name,
    config=dict(config),
    resume='allow' if known else 'never',
  )
  _keep(workdir, 'trackio', name)

  def write(step: int, numbers: Mapping[str, float]) -> None:
    package.log(dict(numbers), step=step)

  return Writer(write, package.finish)


# The package that each needs, and its factory, by the names of `--writer`.
TRACKERS = {
  'tensorboard': ('tensorboardX', tensorboard),
  'wandb': ('wandb', wandb),
  'mlflow': ('mlflow', mlflow),
  'trackio': ('trackio', trackio),
}


def _ids(workdir: pathlib.Path) -> Mapping[str, str]:
  return files.read_json(workdir / IDS) or {}


def _keep(workdir: pathlib.Path, tracker: str, run_id: str) -> None:
  files.write_json(workdir / IDS, {**_ids(workdir), tracker: run_id})
