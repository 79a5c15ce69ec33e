"""Checkpoints of a run: the state of all workers, and what goes with it.

  checkpoints/120/            after step 120: Orbax' files and manifest.json
  checkpoints/120.damaged/    was not what had been written when a run resumed
  checkpoints/unsealed/       what is being written, or was when a run died

Orbax writes into `unsealed`, each process what its devices hold, while training
goes on. When all have written, process 0 adds the manifest
(`experiments.run.manifest`) and moves the folder to its place: a folder with a
number is complete. Before one is used, every file is compared with the
manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import logging as python_logging
import os
import pathlib
import re
import shutil
import threading
from typing import Any

from absl import logging
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.program import files
from experiments.run import machine
from experiments.run import manifest
from gradsparse.state import inspection
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import orbax.checkpoint as ocp

KEEP = 2  # the last, and the one before in case the last is damaged
UNSEALED = 'unsealed'
_STATE = 'state'


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """An intact checkpoint.

  Attributes:
    step: steps done.
    folder: its own.
    about: what was saved with the arrays, as JSON.
  """

  step: int
  folder: pathlib.Path
  about: Mapping[str, Any]


class Checkpoints:
  """Saves a run and finds its last intact checkpoint.

  Attributes:
    directory: of the checkpoints.
  """

  def __init__(
    self, directory: pathlib.Path, every: int, placement: placing.Placement
  ):
    """Knows a folder of checkpoints, which need not be there.

    Args:
      directory: of the checkpoints.
      every: steps between two that will be saved; 0: none will.
      placement: of the run's processes; all make the same calls.
    """
    self.directory = directory.absolute()
    self._every = every
    self._placement = placement
    self._verified: dict[int, Mapping[str, Any] | str] = {}
    self._orbax: ocp.AsyncCheckpointer | None = None
    self._thread: threading.Thread | None = None
    self._failed: Exception | None = None  # in the thread

  def steps(self) -> list[int]:
    """Returns the steps that have a folder, the last first."""
    if not self.directory.is_dir():
      return []
    with files.explained('read', self.directory):
      names = [path.name for path in self.directory.iterdir()]
    steps = (int(name) for name in names if _is_number(name))
    return sorted(filter(None, steps), reverse=True)

  def find(self) -> Checkpoint | None:
    """Returns the last checkpoint that is intact in all processes.

    Returns:
      None where there is none at all.

    Raises:
      ResumeError: there are some, and all are damaged.
    """
    step = self._agreed()
    if step:
      about = self._verified[step]
      assert not isinstance(about, str)
      return Checkpoint(step, self._folder(step), about)
    if -self._placement.least(-len(self.steps())):  # of the one that sees most
      raise errors.ResumeError(
        f'no checkpoint in {self.directory} is intact ({self._damage(0)}); '
        'copy one there from a backup, or remove that folder to begin again'
      )
    return None

  def prepare(self, resumed: int) -> None:
    """Makes sure that there is a place for the checkpoints to come.

    What a dead run was writing is removed. Damaged checkpoints get another
    name, so that their steps can be saved again; nobody deletes them. Process 0
    does this.

    Args:
      resumed: steps done; a checkpoint of more is damaged.

    Raises:
      FileError: a folder cannot be made, moved or removed.
    """
    unsealed = self.directory / UNSEALED
    with files.explained('remove', unsealed):
      if unsealed.exists():
        shutil.rmtree(unsealed)
    if self._every:
      files.make_folder(unsealed)
    for step in self.steps():
      if step > resumed:
        self._set_aside(step)

  def restore(self, checkpoint: Checkpoint, like: Any) -> Any:
    """Returns the state that a checkpoint holds.

    Args:
      checkpoint: from `find`.
      like: a state of the same structure, shapes, dtypes and place.

    Raises:
      ResumeError: the arrays are those of another run.
    """
    target = jax.tree.map(_target, like)
    try:
      state = self._checkpointer().restore(
        checkpoint.folder / _STATE, args=ocp.args.StandardRestore(target)
      )
    except (KeyError, TypeError, ValueError) as error:
      raise errors.ResumeError(
        f'{checkpoint.folder} does not fit this run: {error}'
      ) from error
    # Arrays that are not bound to a device yet, where there is no mesh.
    return jax.tree.map(jnp.asarray, state)

  def save(self, step: int, state: Any, about: Mapping[str, Any]) -> None:
    """Starts to write a checkpoint; training may go on at once.

    Args:
      step: steps done.
      state: arrays; worker-local ones have a leading axis of workers.
      about: what else a resumed run needs, as JSON.

    Raises:
      FileError: this one, or the one before, cannot be written.
      ValueError: the memory of one worker only would be saved.
    """
    inspection.refuse_copies(state)
    self.wait()
    folder = self.directory / UNSEALED / str(step)
    content = {'step': step, 'versions': machine.versions(), **about}
    try:
      self._checkpointer().save(
        folder / _STATE, args=ocp.args.StandardSave(state)
      )
    except Exception as error:
      raise self._not_written(error) from error
    self._thread = threading.Thread(target=self._finish, args=(folder, content))
    self._thread.start()

  def check(self) -> None:
    """Raises where a checkpoint that was started could not be written."""
    if self._thread is not None and not self._thread.is_alive():
      self.wait()

  def wait(self) -> None:
    """Waits until what was started is written.

    Raises:
      FileError: it could not be.
    """
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    failed, self._failed = self._failed, None
    if failed is not None:
      raise self._not_written(failed) from failed

  def close(self) -> None:
    """Waits, and frees what is needed for saving.

    Raises:
      FileError: a checkpoint that was started could not be written.
    """
    try:
      self.wait()
    finally:
      orbax, self._orbax = self._orbax, None
      if orbax is not None:
        try:
          orbax.close()
        except Exception as error:  # of its own threads, once more
          raise self._not_written(error) from error

  def _finish(self, folder: pathlib.Path, about: Mapping[str, Any]) -> None:
    """Seals a checkpoint when it is written; in a thread."""
    try:
      self._checkpointer().wait_until_finished()  # for all processes
      if self._placement.is_chief:
        manifest.seal(folder, about)
        folder.rename(self._folder(about['step']))
        for step in self.steps()[KEEP:]:
          # Moved first: nothing with a number is ever incomplete.
          gone = self._folder(step).rename(folder)
          shutil.rmtree(gone)
    except Exception as error:  # told by `wait`, in the main thread
      self._failed = error

  def _agreed(self) -> int:
    """The last step whose checkpoint is intact in all processes, or 0."""
    agreed = None
    while True:
      own = self._newest(agreed)
      least = self._placement.least(own)
      if least == agreed:
        return least
      agreed = least

  def _newest(self, limit: int | None) -> int:
    """The last intact step of at most `limit` in this process, or 0."""
    for step in self.steps():
      if limit is None or step <= limit:
        if step not in self._verified:
          self._verified[step] = self._verify(step)
        if not isinstance(self._verified[step], str):
          return step
    return 0

  def _verify(self, step: int) -> Mapping[str, Any] | str:
    """What was saved with a checkpoint, or else what is wrong with it."""
    try:
      about = manifest.verify(self._folder(step))
    except manifest.DamagedError as error:
      return str(error)
    if about.get('step') != step:
      return f'{manifest.NAME} is of step {about.get("step")}'
    return about

  def _damage(self, resumed: int) -> str:
    """What is wrong with the checkpoints after a step."""
    return '; '.join(
      f'{step}: {reason}'
      for step in self.steps()
      if step > resumed and isinstance(reason := self._reason(step), str)
    )

  def _reason(self, step: int) -> str:
    found = self._verified.get(step, 'was not looked at')
    return found if isinstance(found, str) else 'another process cannot read it'

  def _set_aside(self, step: int) -> None:
    folder = self._folder(step)
    place, count = folder.with_suffix('.damaged'), 1
    while place.exists():
      count += 1
      place = folder.with_suffix(f'.damaged-{count}')
    with files.explained('rename', folder):
      folder.rename(place)
    logging.warning(
      'checkpoint %s is damaged (%s); it is now called %s',
      folder,
      self._reason(step),
      place.name,
    )

  def _folder(self, step: int) -> pathlib.Path:
    return self.directory / str(step)

  def _checkpointer(self) -> ocp.AsyncCheckpointer:
    if self._orbax is None:
      logging.get_absl_logger().addFilter(_is_not_told_by_us)
      self._orbax = ocp.AsyncCheckpointer(
        ocp.StandardCheckpointHandler(),
        # A folder that cannot be made is told at once; a thread would not
        # tell, and the others wait for it.
        async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
      )
    return self._orbax

  def _not_written(self, error: Exception) -> errors.FileError:
    """The one line for whatever Orbax, or the system, has said."""
    if self._placement.is_chief:
      shutil.rmtree(self.directory / UNSEALED, ignore_errors=True)
    kept = ', '.join(map(str, self.steps()[:KEEP])) or 'there is none'
    return errors.FileError(
      f'cannot write a checkpoint to {self.directory}: {_reason_in(error)}; '
      f'those before are whole: {kept}'
    )


def _is_number(name: str) -> bool:
  return name.isascii() and name.isdecimal() and str(int(name)) == name


def _reason_in(error: Exception) -> str:
  """What the system has said: Orbax' C++ libraries put it into long text."""
  text = str(getattr(error, 'strerror', None) or error)
  if code := re.search(r"os_error_code='(\d+)'", text):
    return os.strerror(int(code[1]))
  lines = text.splitlines()
  return lines[0] if lines else type(error).__name__


def _is_not_told_by_us(record: python_logging.LogRecord) -> bool:
  """False for errors that Orbax logs, with a stack trace: it raises them too.

  A filter of absl's logger.
  """
  of_orbax = f'{os.sep}orbax{os.sep}' in record.pathname
  return not (of_orbax and record.levelno >= python_logging.ERROR)


def _target(x: jax.Array) -> Any:
  """Where to restore an array: on its mesh, or on the host without one.

  A device would bind it: `pmap` refuses what lies on one of its devices.
  """
  if isinstance(x.sharding, NamedSharding):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
  return jax.device_get(x)
