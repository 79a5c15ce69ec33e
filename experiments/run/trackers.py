"""Writers for TensorBoard, Weights & Biases, MLflow and Trackio.

Each is a factory, see `writers`, and imports its package when it is called.
Where things go is said by the environment variables of the tracker.

  trackers.json   in the working directory: the run's name in each tracker,
                  under which it goes on
"""

from collections.abc import Mapping
import pathlib
import secrets
from typing import Any

from experiments.program import files

IDS = 'trackers.json'


class TensorBoard:
  """Writes event files to `tensorboard/` in the working directory."""

  def __init__(
    self, config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
  ):
    """Opens a file; events after `last_step` of earlier ones do not show."""
    import tensorboardX

    del config
    self._board = tensorboardX.SummaryWriter(
      str(workdir / 'tensorboard'), purge_step=last_step + 1
    )

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Adds a scalar for each number."""
    for name, value in numbers.items():
      self._board.add_scalar(name, value, step)

  def close(self) -> None:
    """Closes the file."""
    self._board.close()


class WandB:
  """Writes a run of Weights & Biases.

  Its project is what WANDB_PROJECT says; with WANDB_MODE=offline it stays in
  `wandb/` in the working directory.
  """

  def __init__(
    self, config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
  ):
    """Begins a run, or goes on with the one of earlier attempts."""
    import wandb

    del last_step
    known = _ids(workdir).get('wandb')
    self._run = wandb.init(
      config=dict(config),
      dir=str(workdir),
      name=workdir.resolve().name,
      id=known,
      resume='allow' if known else None,
    )
    _keep(workdir, 'wandb', self._run.id)

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Logs a step; without `commit` it would wait for the next one."""
    self._run.log(dict(numbers), step=step, commit=True)

  def close(self) -> None:
    """Waits until all is sent."""
    self._run.finish()


class MLflow:
  """Writes a run of MLflow.

  MLFLOW_TRACKING_URI says where, MLFLOW_EXPERIMENT_NAME to which experiment.
  """

  def __init__(
    self, config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
  ):
    """Begins a run, or goes on with the one of earlier attempts."""
    import mlflow

    del last_step
    self._mlflow = mlflow
    known = _ids(workdir).get('mlflow')
    if known:
      mlflow.start_run(run_id=known)
      return
    run = mlflow.start_run(run_name=workdir.resolve().name)
    _keep(workdir, 'mlflow', run.info.run_id)
    mlflow.log_params(
      {
        f'{section}.{field}': value
        for section, fields in config.items()
        for field, value in fields.items()
      }
    )

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Logs a step, and waits for the server."""
    self._mlflow.log_metrics(dict(numbers), step=step)

  def close(self) -> None:
    """Says that the run has ended."""
    self._mlflow.end_run()


class Trackio:
  """Writes a run of Trackio, in the project `gradsparse`.

  TRACKIO_SPACE_ID or TRACKIO_SERVER_URL says where, if not on this machine.
  """

  def __init__(
    self, config: Mapping[str, Any], workdir: pathlib.Path, last_step: int
  ):
    """Begins a run, or goes on with the one of earlier attempts."""
    import trackio

    del last_step
    self._trackio = trackio
    known = _ids(workdir).get('trackio')
    # It knows runs by their names, and several folders may have the same one.
    name = known or f'{workdir.resolve().name}-{secrets.token_hex(3)}'
    trackio.init(
      project='gradsparse',
      name=name,
      config=dict(config),
      resume='allow' if known else 'never',
    )
    _keep(workdir, 'trackio', name)

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """Logs a step."""
    self._trackio.log(dict(numbers), step=step)

  def close(self) -> None:
    """Waits until all is written."""
    self._trackio.finish()


# The package that each needs, and its factory, by the names of `--writer`.
TRACKERS = {
  'tensorboard': ('tensorboardX', TensorBoard),
  'wandb': ('wandb', WandB),
  'mlflow': ('mlflow', MLflow),
  'trackio': ('trackio', Trackio),
}


def _ids(workdir: pathlib.Path) -> Mapping[str, str]:
  return files.read_json(workdir / IDS) or {}


def _keep(workdir: pathlib.Path, tracker: str, run_id: str) -> None:
  files.write_json(workdir / IDS, {**_ids(workdir), tracker: run_id})
