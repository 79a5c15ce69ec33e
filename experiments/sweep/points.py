"""The points of a sweep: which there are, and how far each is.

A function `sweep_NAME()` of a configuration file yields overrides, dicts of
dotted fields to values. A point of a sweep has one override of each function
that is named. It is a run of `experiments.main` with these fields, in a folder
of its own, whose name depends on nothing but them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import hashlib
import importlib.util
import itertools
import pathlib
import re
from typing import Any, NamedTuple

from experiments.config import settings
from experiments.program import command_line
from experiments.program import errors
from experiments.program import files
from experiments.report import rows
from experiments.run import records
from gradsparse.arguments import did_you_mean

# Beside those of `rows`. What has failed is tried again by the same command.
NOT_BEGUN = 'not begun'
FAILED = 'failed'
OUTPUT = 'output.txt'  # what the runs in a folder have said

_PREFIX = 'sweep_'
_LONGEST = 150  # characters of a folder's name

Overrides = Mapping[str, Any]


class Point(NamedTuple):
  """One run of a sweep.

  Attributes:
    overrides: its fields that the sweep sets.
    folder: its working directory.
    words: flags of `experiments.main`, without the working directory.
    config: all of its fields.
  """

  overrides: Overrides
  folder: pathlib.Path
  words: tuple[str, ...]
  config: Mapping[str, Any]

  def summary(self) -> Mapping[str, Any] | None:
    """Returns the result, None where the run is not at its last step.

    Raises:
      ResumeError: the folder has the result of a run with other fields.
    """
    found = files.read_json(self.folder / records.SUMMARY)
    if found is None:
      return None
    before = files.read_json(self.folder / records.CONFIG) or self.config
    try:
      settings.check_resumable(before, self.config)
    except errors.ResumeError as error:
      raise errors.ResumeError(f'{self.folder}: {error}') from error
    # A run may go on to more steps.
    asked = self.config['train']['steps']
    return found if before['train']['steps'] == asked else None

  def row(self, index: int) -> dict[str, Any]:
    """Returns its row of the CSV file.

    Args:
      index: of the point in the sweep.
    """
    summary = self.summary()
    metrics = records.read_metrics(self.folder / records.METRICS)
    said = self.last_words() if summary is None else ''
    row = {
      'index': index,
      'folder': str(self.folder),
      **{f'config.{name}': value for name, value in self.overrides.items()},
      **rows.outcome(summary, metrics),
      'error': said if said.startswith('error: ') else '',
      **rows.flat(summary or {}),
    }
    if row['error']:
      row['status'] = FAILED
    elif not (self.folder / records.CONFIG).exists():
      row['status'] = NOT_BEGUN
    return row

  def last_words(self) -> str:
    """Returns the last line that a run in the folder has said."""
    path = self.folder / OUTPUT
    if not path.exists():
      return ''
    with files.explained('read', path):
      lines = path.read_text(errors='replace').split('\n')
    said = [line for line in lines if line and line != '--help tells the flags']
    return said[-1] if said else ''


def make(
  names: Sequence[str], words: Sequence[str], workdir: pathlib.Path
) -> list[Point]:
  """Returns the points of a sweep, the last function changing fastest.

  Args:
    names: of the functions, without `sweep_`.
    words: `--config=FILE`, then `--config.FIELD=VALUE` of all points.
    workdir: gets a folder for each point.

  Raises:
    ConfigError: a function is not there, yields what is no override, or two of
      them set the same field; or the configuration of a point is wrong.
  """
  if repeated := {name for name in names if names.count(name) > 1}:
    raise errors.ConfigError(f'--sweep names {", ".join(repeated)} twice')
  file = words[0].removeprefix('--config=').partition(':')[0]
  functions = _functions(pathlib.Path(file))
  listed = []
  for name in names:
    if name not in functions:
      raise errors.ConfigError(
        f'{file} has no sweep {name!r}{did_you_mean(name, functions)}; it has '
        f'{", ".join(functions) or "no function sweep_NAME()"}'
      )
    listed.append(_overrides(name, functions[name]))
  given = {word.partition('=')[0] for word in words}
  points: list[Point] = []
  for parts in itertools.product(*listed):
    joined = [field for part in parts for field in part]
    for field in joined:
      if f'--config.{field}' in given:
        raise errors.ConfigError(
          f'--config.{field} is given, and the sweep sets it too'
        )
      if joined.count(field) > 1:
        raise errors.ConfigError(
          f'{field} is set by two of the sweeps {", ".join(names)}'
        )
    overrides = {k: v for part in parts for k, v in part.items()}
    points.append(_point(overrides, words, workdir))
  folders = [point.folder for point in points]
  if twice := [point for point in points if folders.count(point.folder) > 1]:
    raise errors.ConfigError(f'two points are {_worded(twice[0].overrides)}')
  return points


def _functions(file: pathlib.Path) -> dict[str, Callable[[], Iterable[Any]]]:
  """Returns the sweeps of a configuration file by their names."""
  spec = importlib.util.spec_from_file_location('_swept_config', file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return {
    name.removeprefix(_PREFIX): value
    for name, value in vars(module).items()
    if name.startswith(_PREFIX) and callable(value)
  }


def _overrides(
  name: str, function: Callable[[], Iterable[Any]]
) -> list[Overrides]:
  """Returns what a function yields, its numbers those of Python."""
  where = f'{_PREFIX}{name}()'
  try:
    yielded = list(function())
  except Exception as error:  # of the user's code
    raise errors.ConfigError(f'{where} raised {error!r}') from error
  if not yielded:
    raise errors.ConfigError(f'{where} yields no override')
  found = []
  for each in yielded:
    if not isinstance(each, Mapping):
      raise errors.ConfigError(
        f"{where} must yield dicts such as {{'train.seed': 1}}, got {each!r}"
      )
    plain = {}
    for field, value in each.items():
      if not isinstance(field, str) or not re.fullmatch(r'\w+(\.\w+)+', field):
        raise errors.ConfigError(
          f'{where}: a field is SECTION.FIELD, got {field!r}'
        )
      plain[field] = value.item() if hasattr(value, 'item') else value
      if not isinstance(plain[field], bool | int | float | str):
        raise errors.ConfigError(
          f'{where}: {field} must be a number, a bool or text, got {value!r}'
        )
    found.append(plain)
  return found


def _point(
  overrides: Overrides, words: Sequence[str], workdir: pathlib.Path
) -> Point:
  """Returns a point whose configuration is right."""
  own = (f'--config.{name}={value}' for name, value in overrides.items())
  flags = (*words, *own)
  try:
    config = command_line.parse_config(flags).to_dict()
    settings.check(config)
  except errors.ConfigError as error:
    raise errors.ConfigError(
      f'the point {_worded(overrides)}: {error}'
    ) from error
  return Point(overrides, workdir / _folder(overrides), flags, config)


def _worded(overrides: Overrides) -> str:
  """Returns overrides as text, in the order of the fields' names."""
  named = (f'{name}={value}' for name, value in sorted(overrides.items()))
  return ','.join(named) or 'unchanged'


def _folder(overrides: Overrides) -> str:
  """Returns the name of a point's folder.

  One that would be long, or have other characters than names of files, has a
  digest of it behind it.
  """
  name = _worded(overrides)
  plain = re.sub(r'[^\w.,=+-]', '_', name)[:_LONGEST]
  if plain == name:
    return name
  return f'{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}'
