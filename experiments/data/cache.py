"""Keeps in a folder what takes long to make of a data set's files."""

from collections.abc import Callable, Sequence
import fcntl
import hashlib
import pathlib
import shutil
from typing import Any

from absl import logging
from experiments.program import errors
from experiments.program import files
from experiments.program import manifest


def key(paths: Sequence[pathlib.Path], *others: Any) -> str:
  """Returns a key of some content: other content has another key.

  Args:
    paths: of files, whose bytes count and not their names.
    *others: what else counts, as it is written.
  """
  digest = hashlib.sha256(repr(others).encode())
  for path in paths:
    with files.explained('read', path), path.open('rb') as file:
      digest.update(hashlib.file_digest(file, 'sha256').digest())
  return digest.hexdigest()[:32]


def keep(
  folder: pathlib.Path, name: str, make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
  """Returns the folder of a key, and makes its content if need be.

  Of several processes the first makes it, the others wait. What is damaged is
  made anew.

  Args:
    folder: of all keys; is made.
    name: the key, from `key`.
    make: writes files to a folder.

  Raises:
    FileError: the folder cannot be read or written.
  """
  try:
    folder = folder.expanduser()
    files.make_folder(folder)
  except (RuntimeError, ValueError) as error:  # a home that nobody has, a '\0'
    raise errors.FileError(f'there is no folder {folder}: {error}') from error
  place, scratch = folder / name, folder / f'{name}.tmp'
  if _whole(place):  # that may be all that this user may do
    return place
  lock = folder / f'{name}.lock'
  with files.explained('write', place), lock.open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    if not _whole(place):  # nobody was faster
      if place.exists():
        logging.warning('%s is damaged, and is made anew', place)
        shutil.rmtree(place)
      shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
      scratch.mkdir()
      make(scratch)
      manifest.seal(scratch, {})
      scratch.rename(place)
  return place


def _whole(place: pathlib.Path) -> bool:
  try:
    manifest.verify(place)
  except manifest.DamagedError:
    return False
  return True
