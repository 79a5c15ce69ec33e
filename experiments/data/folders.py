"""Finding the folder of a data set, and saying what is missing from it."""

from collections.abc import Sequence
import os
import pathlib

from experiments.program import errors

ROOT_VARIABLE = 'GRADSPARSE_DATA'


def find(
  directory: str,
  names: Sequence[str],
  marker: str | Sequence[str],
  *,
  source: str,
) -> pathlib.Path:
  """Returns the folder that holds a data set.

  Args:
    directory: `config.data.dir`, the root of all sets or the set's own folder;
      empty means the environment variable GRADSPARSE_DATA.
    names: what the set's folder is called below a root, the first that exists
      is taken.
    marker: glob pattern of a file that every copy of the set has; several if
      it has one of them.
    source: where users get the set, for the message.

  Raises:
    DataFileError: nothing there; names what was looked for and where.
  """
  markers = (marker,) if isinstance(marker, str) else marker
  root_text = directory or os.environ.get(ROOT_VARIABLE, '')
  if not root_text:
    raise errors.DataFileError(
      f'no folder given for the data set {names[0]!r}: pass '
      f'--config.data.dir=DIR or set {ROOT_VARIABLE} to the root of your data '
      f'sets. Get it from {source}'
    )
  try:
    root = pathlib.Path(root_text).expanduser()
  except RuntimeError as error:  # a home that nobody has
    raise errors.DataFileError(
      f'data.dir must be a folder, got {root_text!r}: {error}'
    ) from error
  if '\0' in root_text or root.is_file():
    raise errors.DataFileError(f'data.dir must be a folder, got {root_text!r}')
  candidates = [root / name for name in names] + [root]
  for folder in candidates:
    if any(any(folder.glob(pattern)) for pattern in markers):
      return folder
  # An own folder in which just the marker is missing: let the loader name it.
  for folder in candidates[:-1]:
    if folder.is_dir():
      return folder
  if root.name in {pathlib.PurePath(name).name for name in names}:
    return root
  looked = ', '.join(str(folder) for folder in candidates)
  raise errors.DataFileError(
    f'no data set {names[0]!r}: expected files '
    f'{" or ".join(markers)} in one of {looked}. '
    f'Get it from {source} and pass --config.data.dir=DIR'
  )


def read(path: pathlib.Path, expected: str, source: str) -> bytes:
  """Returns the content of a file.

  Args:
    path: of the file.
    expected: what it should hold, for the message.
    source: where users get it.

  Raises:
    DataFileError: it is not there, or cannot be read.
  """
  if not path.exists():
    raise missing(path, expected, source)
  try:
    return path.read_bytes()
  except OSError as error:  # a folder of that name, or no permission
    raise damaged(path, f'{error.strerror}', expected, source) from error


def read_text(path: pathlib.Path, expected: str, source: str) -> str:
  """Returns the content of a file of UTF-8 text, see `read`."""
  try:
    return read(path, expected, source).decode()
  except UnicodeDecodeError as error:
    raise damaged(path, f'{error}', expected, source) from error


def missing(path: pathlib.Path, expected: str, source: str) -> Exception:
  """Returns the error for a file that is not there."""
  return errors.DataFileError(
    f'{path} is missing; expected {expected}. Get it from {source}'
  )


def damaged(
  path: pathlib.Path, found: str, expected: str, source: str
) -> Exception:
  """Returns the error for a file whose content cannot be right."""
  return errors.DataFileError(
    f'{path} is damaged: {found}; expected {expected}. '
    f'Get a fresh copy from {source}'
  )
