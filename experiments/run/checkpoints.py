"""Checkpoints of a run: the state of all workers, and what goes with it.

  checkpoints/120/            after step 120: Orbax' files and manifest.json
  checkpoints/120.damaged/    was not what had been written when a run resumed
  checkpoints/120.orbax-...   is being written, or was when a run died

Orbax writes while training goes on, each process what its devices hold, and
moves the folder to its place when all have written: a folder with a number is
complete. Before that, process 0 adds the manifest, see
`experiments.program.manifest`. Before a checkpoint is used, every file is
compared with it.
"""

from collections.abc import Iterator, Mapping
import contextlib
import functools
import logging as python_logging
import os
import pathlib
import re
import shutil
from typing import Any, NamedTuple

from absl import logging
from experiments.hosts.placement import Placement
from experiments.program import errors
from experiments.program import files
from experiments.program import manifest
from experiments.run import machine
from gradsparse.state import inspection
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
import orbax.checkpoint as ocp

KEEP = 2  # the last, and the one before in case the last is damaged
UNFINISHED = '.orbax-checkpoint-tmp'  # Orbax' suffix of what is being written


class Checkpoint(NamedTuple):
  """An intact checkpoint, or the beginning of a run.

  Attributes:
    step: steps done.
    folder: its own.
    about: what was saved with the arrays, as JSON; empty at the beginning.
  """

  step: int
  folder: pathlib.Path
  about: Mapping[str, Any]


class Checkpoints:
  """Saves a run and finds its last intact checkpoint.

  Attributes:
    directory: of the checkpoints.
  """

  def __init__(self, directory: pathlib.Path, every: int, placement: Placement):
    """Knows a folder of checkpoints, which need not be there.

    Args:
      directory: of the checkpoints.
      every: steps between two that will be saved; 0: none will.
      placement: of the run's processes; all make the same calls.
    """
    self.directory = directory.absolute()
    self._every = every
    self._placement = placement
    self._verified = functools.cache(self._verify)  # compares files once
    self._about: Mapping[str, Any] = {}  # of what is being written
    logging.get_absl_logger().addFilter(_is_not_told_by_us)
    options = ocp.AsyncOptions(
      # A folder that cannot be made is told at once; a thread would not
      # tell, and the others wait for it.
      create_directories_asynchronously=False,
      post_finalization_callback=self._seal,
    )
    # Not Orbax' CheckpointManager, which restores files with a changed bit and
    # tells no error, takes a damaged checkpoint for the latest, and deletes an
    # intact one to keep that.
    self._orbax = ocp.StandardCheckpointer(async_options=options)

  def steps(self) -> list[int]:
    """Returns the steps that have a folder, the last first."""
    with files.explained('read', self.directory):
      there = self.directory.is_dir()
      names = os.listdir(self.directory) if there else ()
    steps = [int(x) for x in names if re.fullmatch('[1-9][0-9]*', x)]
    return sorted(steps, reverse=True)

  def find(self) -> Checkpoint:
    """Returns the last checkpoint that is intact in all processes.

    Returns:
      The beginning where there is none at all.

    Raises:
      ResumeError: there are some, and all are damaged.
    """
    agreed = None
    while (least := self._placement.least(self._newest(agreed))) != agreed:
      agreed = least
    if agreed:
      return Checkpoint(agreed, self._folder(agreed), self._verified(agreed)[0])
    damaged = [f'{step}: {self._damage(step)}' for step in self.steps()]
    if self._placement.least(-len(damaged)):  # of the one that sees most
      raise errors.ResumeError(
        f'no checkpoint in {self.directory} is intact ({"; ".join(damaged)}); '
        'copy one there from a backup, or remove that folder to begin again'
      )
    return Checkpoint(0, self.directory, {})

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
    for unfinished in self.directory.glob(f'*{UNFINISHED}'):
      with files.explained('remove', unfinished):
        shutil.rmtree(unfinished)
    if self._every:
      files.make_folder(self.directory)
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
      state = self._orbax.restore(checkpoint.folder, target)
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
    self._about = {'step': step, 'versions': machine.versions(), **about}
    with self._told():
      self._orbax.save(self._folder(step), state)

  def check(self) -> None:
    """Raises where a checkpoint that was started could not be written."""
    with self._told():
      self._orbax.check_for_errors()

  def wait(self) -> None:
    """Waits until what was started is written, and removes what is older.

    Raises:
      FileError: it could not be.
    """
    with self._told():
      self._orbax.wait_until_finished()
      if self._placement.is_chief:
        for step in self.steps()[KEEP:]:
          # Moved first: nothing with a number is ever incomplete.
          moved = self._folder(step).rename(self._folder(step, UNFINISHED))
          shutil.rmtree(moved)

  def close(self) -> None:
    """Waits, and frees what is needed for saving.

    Raises:
      FileError: a checkpoint that was started could not be written.
    """
    try:
      self.wait()
    finally:
      with self._told():
        self._orbax.close()

  def _seal(self) -> None:
    """Adds the manifest; Orbax calls it in process 0 when all have written."""
    manifest.seal(self._folder(self._about['step'], UNFINISHED), self._about)

  def _newest(self, limit: int | None) -> int:
    """The last intact step of at most `limit` in this process, or 0."""
    steps = (s for s in self.steps() if limit is None or s <= limit)
    return next((s for s in steps if self._verified(s)[0]), 0)

  def _verify(self, step: int) -> tuple[Mapping[str, Any], str]:
    """What was saved with a checkpoint, or else what is wrong with it."""
    try:
      about = manifest.verify(self._folder(step))
    except manifest.DamagedError as error:
      return {}, str(error)
    if about.get('step') != step:
      return {}, f'{manifest.NAME} is of step {about.get("step")}'
    return about, ''

  def _damage(self, step: int) -> str:
    """Why a checkpoint is not used that not all processes have intact."""
    return self._verified(step)[1] or 'another process cannot read it'

  def _set_aside(self, step: int) -> None:
    folder = self._folder(step)
    place, count = folder.with_suffix('.damaged'), 1
    while place.exists():
      count += 1
      place = folder.with_suffix(f'.damaged-{count}')
    with files.explained('rename', folder):
      folder.rename(place)
    damage = f'checkpoint {folder} is damaged ({self._damage(step)})'
    logging.warning('%s; it is now called %s', damage, place.name)

  def _folder(self, step: int, suffix: str = '') -> pathlib.Path:
    return self.directory / f'{step}{suffix}'

  @contextlib.contextmanager
  def _told(self) -> Iterator[None]:
    """Makes one line of whatever Orbax, or the system, says."""
    try:
      yield
    except Exception as error:
      kept = ', '.join(map(str, self.steps()[:KEEP])) or 'there is none'
      raise errors.FileError(
        f'cannot write a checkpoint to {self.directory}: {_reason_in(error)}; '
        f'those before are whole: {kept}'
      ) from error


def _reason_in(error: Exception) -> str:
  """The system's own message in a long text of Orbax' C++ libraries."""
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
