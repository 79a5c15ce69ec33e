"""Checkpoints of a run: the state of all workers, and the place in the data.

Orbax writes a checkpoint into a folder with a temporary name and renames it
when everything is on disk. A crash in between leaves the one before. Of several
processes each writes what its devices hold, into the one folder they share.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments.data import batches
from experiments.program import errors
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import orbax.checkpoint as ocp

_KEEP = 2  # the last, and the one before in case a disk was full


class Checkpoints:
  """Saves a run and finds its last complete checkpoint.

  Attributes:
    directory: of the checkpoints.
  """

  def __init__(self, directory: pathlib.Path, every: int):
    """Opens the folder.

    Args:
      directory: of the checkpoints, made when the first is written.
      every: steps between two checkpoints; 0 for none at all, also none read.
    """
    self.directory = directory
    self._manager = None
    if every:
      self._manager = ocp.CheckpointManager(
        directory.absolute(),
        options=ocp.CheckpointManagerOptions(max_to_keep=_KEEP),
      )

  def latest_step(self) -> int:
    """Returns the steps done in the last complete checkpoint, 0 for none."""
    return (self._manager.latest_step() or 0) if self._manager else 0

  def save(
    self,
    state: Any,
    position: batches.Position,
    records: Mapping[str, Any],
  ) -> None:
    """Starts to write a checkpoint; training may go on at once.

    Args:
      state: arrays; worker-local ones have a leading axis of workers.
      position: where in the data the next step starts.
      records: what the run has counted so far, as JSON.
    """
    self._manager.save(
      position.step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state),
        progress=ocp.args.JsonSave({'position': position._asdict(), **records}),
      ),
    )

  def records(self, step: int) -> dict[str, Any]:
    """Returns what was saved beside the state after `step` steps."""
    args = ocp.args.Composite(progress=ocp.args.JsonRestore())
    return self._manager.restore(step, args=args).progress

  def restore(
    self, step: int, like: Any, position: batches.Position
  ) -> tuple[Any, dict[str, Any]]:
    """Returns the state after `step` steps, and the records saved with it.

    Args:
      step: what `latest_step` gave.
      like: a state of the same structure, shapes, dtypes and place.
      position: where the data should stand.

    Raises:
      ResumeError: the checkpoint belongs to another run.
    """
    target = jax.tree.map(_target, like)
    try:
      found = self._manager.restore(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardRestore(target),
          progress=ocp.args.JsonRestore(),
        ),
      )
    except (KeyError, TypeError, ValueError) as error:
      raise errors.ResumeError(
        f'the checkpoint of step {step} does not fit this run: {error}'
      ) from error
    if found.progress['position'] != position._asdict():
      raise errors.ResumeError(
        f'the checkpoint of step {step} was taken at '
        f'{found.progress["position"]} in the data, this run would be at '
        f'{position._asdict()}: number of workers, batch size or data changed'
      )
    # Arrays that are not bound to a device yet, where there is no mesh.
    return jax.tree.map(jnp.asarray, found.state), found.progress

  def close(self) -> None:
    """Waits until what was started is written."""
    if self._manager:
      self._manager.close()


def _target(x: jax.Array) -> Any:
  """Where to restore an array: on its mesh, or on the host without one.

  A device would bind it: `pmap` refuses what lies on one of its devices.
  """
  if isinstance(x.sharding, NamedSharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
  return jax.device_get(x)
