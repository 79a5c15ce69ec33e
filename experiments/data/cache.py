"""What takes long to make of a data set's files, kept in a folder.

Arrays are mapped into memory and not read: the processes of a host share them,
and each needs room for those parts only that it looks at.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any
import zlib

from absl import logging
from experiments.program import errors
from experiments.program import files
import numpy as np

_ABOUT = 'about.json'
_CHUNK = 2**24  # bytes that are read together

# Appends bytes or an array to a file, by its name.
Write = Callable[[str, Any], None]


class Kept:
  """Files of one key."""

  def __init__(self, folder: pathlib.Path):
    """Takes a folder that `keep` has made."""
    self._folder = folder

  def read(self, name: str) -> bytes:
    """Returns the content of a file."""
    return (self._folder / name).read_bytes()

  def map(self, name: str, dtype: Any) -> np.ndarray:
    """Returns a file as an array of one axis, which cannot be written."""
    path = self._folder / name
    if not path.stat().st_size:  # cannot be mapped
      return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode='r'))


def key(paths: Sequence[pathlib.Path], *others: Any) -> str:
  """Returns what tells one content from another.

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
  folder: pathlib.Path, name: str, make: Callable[[Write], None]
) -> Kept:
  """Returns files that are kept under a key, and makes them if they are not.

  Of several processes the first makes them, the others wait. What is damaged is
  made anew.

  Args:
    folder: of all keys; is made.
    name: the key, from `key`.
    make: writes the files.

  Raises:
    FileError: the folder cannot be read or written.
  """
  try:
    folder = folder.expanduser()
    files.make_folder(folder)
  except (RuntimeError, ValueError) as error:  # a home that nobody has, a '\0'
    raise errors.FileError(f'there is no folder {folder}: {error}') from error
  place = folder / name
  with files.explained('read', place):
    if _whole(place):  # that may be all that this user may do
      return Kept(place)
  with files.explained('write', place), _alone(folder / f'{name}.lock'):
    if not _whole(place):  # nobody was faster
      if place.exists():
        logging.warning('%s is damaged, and is made anew', place)
        shutil.rmtree(place)
      scratch = folder / f'{name}.tmp'
      shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
      scratch.mkdir()
      try:
        _make(scratch, make)
        scratch.rename(place)
      except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
  return Kept(place)


@contextlib.contextmanager
def _alone(path: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out; the lock ends with the process."""
  with path.open('w') as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _make(folder: pathlib.Path, make: Callable[[Write], None]) -> None:
  with contextlib.ExitStack() as stack:
    opened: dict[str, Any] = {}

    def write(name: str, content: Any) -> None:
      if name not in opened:
        opened[name] = stack.enter_context((folder / name).open('wb'))
      opened[name].write(content)

    make(write)
    for file in opened.values():
      file.flush()
      os.fsync(file.fileno())
  checksums = {name: _checksum(folder / name) for name in opened}
  files.write_json(folder / _ABOUT, checksums)


def _whole(folder: pathlib.Path) -> bool:
  """Whether all files are there, as they were written.

  Raises:
    OSError: one cannot be read now, so nobody knows.
  """
  try:
    checksums = json.loads((folder / _ABOUT).read_bytes())
    return bool(checksums) and all(
      _checksum(folder / name) == known for name, known in checksums.items()
    )
  except (FileNotFoundError, ValueError, AttributeError):
    return False


def _checksum(path: pathlib.Path) -> int:
  found = 0
  with path.open('rb') as file:
    while content := file.read(_CHUNK):
      found = zlib.crc32(content, found)
  return found
