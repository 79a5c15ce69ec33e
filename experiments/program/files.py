"""Files that are there whole or not at all, and the one way to write JSON.

A file is written beside its place and moved there, so a reader finds the old
one or the new one, never half of one.
"""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import re
from typing import Any, BinaryIO

_PAIR = re.compile(r'\[\s+([-\d.e]+),\s+([-\d.e]+)\s+\]')


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a file that takes the place of `path` when all is written."""
  path.parent.mkdir(parents=True, exist_ok=True)
  scratch = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
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
  # Points of a curve: a line each, not four.
  text = _PAIR.sub(r'[\1, \2]', text)
  with replacing(path) as file:
    file.write(text.encode() + b'\n')


def read_json(path: pathlib.Path) -> Any:
  """Returns the content of a JSON file, or None where there is none."""
  return json.loads(path.read_text()) if path.exists() else None


def write_bytes(path: pathlib.Path, content: bytes) -> None:
  """Writes a file that is there whole or not at all."""
  with replacing(path) as file:
    file.write(content)
