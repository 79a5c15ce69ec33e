"""Files that are there whole or not at all; the one way to write JSON.

A file is written beside its place and moved there, so a reader finds the old
one or the new one, never half of one.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import Any, BinaryIO

from experiments.program import errors


@contextlib.contextmanager
def explained(doing: str, path: pathlib.Path | str) -> Iterator[None]:
  """Tells in one line what could not be done with a file in a `with` block.

  Args:
    doing: what is tried, such as 'write'.
    path: of the file or folder.

  Raises:
    FileError: instead of the OSError of the block.
  """
  try:
    yield
  except OSError as error:
    why = error.strerror or error
    raise errors.FileError(f'cannot {doing} {path}: {why}') from error


def make_folder(path: pathlib.Path) -> None:
  """Makes a folder and those above it, if they are not there.

  Raises:
    FileError: it cannot be made.
  """
  with explained('make the folder', path):
    path.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a file that takes the place of `path` when all is written.

  Raises:
    FileError: it cannot be written; `path` is what it was.
  """
  make_folder(path.parent)
  scratch = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
  with explained('write', path):
    try:
      with scratch.open('wb') as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
      scratch.replace(path)
    finally:
      scratch.unlink(missing_ok=True)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes `value` as indented JSON, its keys in the order they have."""
  text = json.dumps(value, indent=2, allow_nan=False)
  write_bytes(path, text.encode() + b'\n')


def read_json(path: pathlib.Path) -> Any:
  """Returns the content of a JSON file, or None where there is none.

  Raises:
    FileError: it cannot be read, or is no JSON.
  """
  if not path.exists():
    return None
  with explained('read', path):
    content = path.read_bytes()
  try:
    return json.loads(content)
  except ValueError as error:
    raise errors.FileError(f'{path} is damaged: it is no JSON') from error


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a file that is there whole or not at all."""
  with replacing(path) as file:
    file.write(content)
