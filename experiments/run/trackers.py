"""Writers for TensorBoard, Weights & Biases and MLflow.

Each is a factory, see `writers`, and imports its package when it is called.
Where things go is said by the environment variables of the tracker.

  trackers.json   in the working directory: the run's name in each tracker,
                  under which it goes on
"""

from collections.abc import Callable, Mapping
import functools
import pathlib
from typing import Any, NamedTuple

from experiments.program import files
from flax import traverse_util

IDS = 'trackers.json'


class Writer(NamedTuple):
  """What a factory here returns.

  Attributes:
    log: takes numbers by name, and `step=`.
    close: is called once, when no more come.
  """

  log: Callable[..., Any]
  close: Callable[[], Any]

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Hands on the numbers of a step."""
    self.log(dict(numbers), step=step)


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

  def log(numbers, step):
    for name, value in numbers.items():
      board.add_scalar(name, value, step)

  return Writer(log, board.close)


def _goes_on(begin: Callable[..., tuple[Writer, str]]) -> Callable[..., Writer]:
  """Makes a factory of what begins a run of a tracker, or goes on with it.

  Args:
    begin: gets the fields, the working directory, and the run's name in the
      tracker if it has one; returns a writer and that name.
  """
  tracker = begin.__name__

  @functools.wraps(begin)
  def factory(config, workdir, last_step):
    del last_step
    names = files.read_json(workdir / IDS) or {}
    writer, name = begin(dict(config), workdir, names.get(tracker))
    files.write_json(workdir / IDS, {**names, tracker: name})
    return writer

  return factory


@_goes_on
def wandb(config, workdir, known):
  """Writes a run of Weights & Biases.

  Its project is what WANDB_PROJECT says; with WANDB_MODE=offline it stays in
  `wandb/` in the working directory.
  """
  import wandb as package

  run = package.init(
    config=config,
    dir=str(workdir),
    name=workdir.resolve().name,
    id=known,
    resume='allow' if known else None,
  )
  # Without `commit` a step would wait for the next one.
  return Writer(functools.partial(run.log, commit=True), run.finish), run.id


@_goes_on
def mlflow(config, workdir, known):
  """Writes a run of MLflow.

  MLFLOW_TRACKING_URI says where, MLFLOW_EXPERIMENT_NAME to which experiment.
  """
  import mlflow as package

  if known:
    package.start_run(run_id=known)
  else:
    known = package.start_run(run_name=workdir.resolve().name).info.run_id
    package.log_params(traverse_util.flatten_dict(config, sep='.'))
  return Writer(package.log_metrics, package.end_run), known


# The package that each needs, and its factory, by the names of `--writer`.
TRACKERS = {
  'tensorboard': ('tensorboardX', tensorboard),
  'wandb': ('wandb', wandb),
  'mlflow': ('mlflow', mlflow),
}
