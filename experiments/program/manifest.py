"""The manifest of a folder: every file with its checksum, written last.

A folder with a manifest is complete, and `verify` tells whether it still is
what was written. It holds for any damage, whoever did it: a disk, a crash, a
copy that stopped half way.
"""

from collections.abc import Mapping
import hashlib
import json
import pathlib
from typing import Any

from experiments.program import files

NAME = 'manifest.json'

_CHANGED = 'does not have its SHA-256 checksum any more'
_FILES, _OWN = 'files', 'sha256'  # the latter: of the manifest without itself
# Orbax writes the time into it last of all, and reads nothing of it.
_NOT_SEALED = {NAME, '_CHECKPOINT_METADATA'}


class DamagedError(Exception):
  """A folder is not what was written; the message names file and damage."""


def seal(folder: pathlib.Path, about: Mapping[str, Any]) -> None:
  """Writes the manifest of a folder in which all else is written.

  Args:
    folder: the checkpoint's.
    about: what `verify` gives back, as JSON.

  Raises:
    FileError: a file cannot be read, or the manifest not be written.
  """
  found = {}
  for name, path in _listed(folder).items():
    with files.explained('read', path):
      found[name] = {'bytes': path.stat().st_size, 'sha256': _sha256(path)}
  # Tuples become lists, as they are read.
  content = json.loads(json.dumps({**about, _FILES: found}))
  files.write_json(folder / NAME, {**content, _OWN: _of_json(content)})


def verify(folder: pathlib.Path) -> dict[str, Any]:
  """Returns what was said when a folder was sealed, if nothing has changed.

  Only names that are found in the folder are opened: a manifest cannot lead
  out of it.

  Raises:
    DamagedError: a file is missing or not what was written.
  """
  present = _listed(folder)
  try:
    content = _read(folder / NAME)
    for name, expected in content.pop(_FILES).items():
      if name not in present:
        raise DamagedError(f'{name} is missing')
      size = present[name].stat().st_size
      if size != expected['bytes']:
        raise DamagedError(f'{name} has {size} bytes, not {expected["bytes"]}')
      if _sha256(present[name]) != expected['sha256']:
        raise DamagedError(f'{name} {_CHANGED}')
  except FileNotFoundError as error:
    missing = f'{NAME} is missing' if present else 'the folder is empty'
    raise DamagedError(missing) from error
  except OSError as error:
    name = pathlib.Path(error.filename or folder).name
    raise DamagedError(f'{name} cannot be read: {error.strerror}') from error
  return content


def _read(path: pathlib.Path) -> dict[str, Any]:
  try:
    content = json.loads(path.read_bytes())
  except ValueError as error:
    raise DamagedError(f'{path.name} is no JSON') from error
  own = content.pop(_OWN, None) if isinstance(content, dict) else None
  if own is None or own != _of_json(content):
    raise DamagedError(f'{path.name} {_CHANGED}')
  return content


def _listed(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """The files of a folder by their names relative to it, sorted."""
  return {
    path.relative_to(folder).as_posix(): path
    for path in sorted(folder.rglob('*'))
    if path.is_file() and path.name not in _NOT_SEALED
  }


def _sha256(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _of_json(content: Any) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
