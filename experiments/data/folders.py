"""Finding the folder of a data set, and saying what is missing from it."""

from collections.abc import Sequence
import os
import pathlib
from typing import NamedTuple

from experiments.program import errors

ROOT_VARIABLE = 'GRADSPARSE_DATA'


def check_split(name: str, split: str, known: Sequence[str]) -> None:
  """Raises unless a data set has a split to test on.

  Raises:
    ConfigError: names those that there are.
  """
  if split not in known:
    valid = f'{", ".join(known[:-1])} or {known[-1]}'
    raise errors.ConfigError(
      f'data.test_split must be {valid} for {name}, got {split!r}'
    )


class Source(NamedTuple):
  """Where a data set is.

  Attributes:
    names: what its folder is called below a root; the first that exists is
      taken.
    text: where users get it, for messages.
  """

  names: tuple[str, ...]
  text: str

  def find(self, directory: str, marker: str) -> pathlib.Path:
    """Returns the folder that holds the set.

    Args:
      directory: `config.data.dir`, the root of all sets or the set's own
        folder; empty means the environment variable GRADSPARSE_DATA.
      marker: glob pattern of a file that every copy of the set has.

    Raises:
      DataFileError: nothing there; names what was looked for and where.
    """
    first, directory = self.names[0], directory or os.environ.get(ROOT_VARIABLE)
    if not directory:
      raise errors.DataFileError(
        f'no folder given for the data set {first!r}: pass '
        f'--config.data.dir=DIR or set {ROOT_VARIABLE} to the root of your '
        f'data sets. Get it from {self.text}'
      )
    try:
      root = pathlib.Path(directory).expanduser()
    except RuntimeError as error:  # a home that nobody has
      raise errors.DataFileError(
        f'data.dir must be a folder, got {directory!r}: {error}'
      ) from error
    if '\0' in directory or root.is_file():
      raise errors.DataFileError(
        f'data.dir must be a folder, got {directory!r}'
      )
    candidates = [root / name for name in self.names] + [root]
    for folder in candidates:
      if any(folder.glob(marker)):
        return folder
    # An own folder in which just the marker is missing: the loader names it.
    for folder in candidates[:-1]:
      if folder.is_dir():
        return folder
    if root.name in {pathlib.PurePath(name).name for name in self.names}:
      return root
    looked = ', '.join(str(folder) for folder in candidates)
    raise errors.DataFileError(
      f'no data set {first!r}: expected files {marker} in one of {looked}. Get '
      f'it from {self.text} and pass --config.data.dir=DIR'
    )

  def read(self, path: pathlib.Path, expected: str) -> bytes:
    """Returns the content of a file.

    Args:
      path: of the file.
      expected: what it should hold, for the message.

    Raises:
      DataFileError: it is not there, or cannot be read.
    """
    if not path.exists():
      raise self.missing(path, expected)
    try:
      return path.read_bytes()
    except OSError as error:  # a folder of that name, or no permission
      raise self.damaged(path, f'{error.strerror}', expected) from error

  def read_text(self, path: pathlib.Path, expected: str) -> str:
    """Returns the content of a file of UTF-8 text, see `read`."""
    try:
      return self.read(path, expected).decode()
    except UnicodeDecodeError as error:
      raise self.damaged(path, f'{error}', expected) from error

  def missing(self, path: pathlib.Path, expected: str) -> Exception:
    """Returns the error for a file that is not there."""
    return errors.DataFileError(
      f'{path} is missing; expected {expected}. Get it from {self.text}'
    )

  def damaged(self, path: pathlib.Path, found: str, expected: str) -> Exception:
    """Returns the error for a file whose content cannot be right."""
    return errors.DataFileError(
      f'{path} is damaged: {found}; expected {expected}. '
      f'Get a fresh copy from {self.text}'
    )
