"""The points of a sweep: which there are, and how far each is.

A function `sweep_NAME()` of a configuration file yields overrides, dicts of
dotted fields to values. A point of a sweep has one override of each function
that is named. It is a run of `experiments.main` with these fields, in a folder
of its own, whose name depends on nothing but them.
"""

from collections.abc import Mapping, Sequence
import hashlib
import itertools
import pathlib
import re
import runpy
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
    ConfigError: a function is not there, or yields what is no override; a field
      is set twice; or the configuration of a point is wrong.
  """
  file = words[0].removeprefix('--config=').partition(':')[0]
  there = runpy.run_path(file).items()
  found = [(name, value) for name, value in there if name.startswith(_PREFIX)]
  functions = {name.removeprefix(_PREFIX): value for name, value in found}
  listed = []
  for name in names:
    if name not in functions:
      raise errors.ConfigError(
        f'{file} has no sweep {name!r}{did_you_mean(name, functions)}; it has '
        f'{", ".join(functions) or "no function sweep_NAME()"}'
      )
    try:
      listed.append([dict(each) for each in functions[name]()])
    except Exception as error:  # of the user's code
      raise errors.ConfigError(
        f"sweep_{name}() must yield dicts such as {{'train.seed': 1}}: "
        f'{error!r}'
      ) from error
  given = [word.partition('=')[0].removeprefix('--config.') for word in words]
  points: list[Point] = []
  for parts in itertools.product(*listed):
    joined = [*given, *itertools.chain(*parts)]
    if twice := {field for field in joined if joined.count(field) > 1}:
      raise errors.ConfigError(f'{", ".join(twice)} is set twice')
    points.append(
      _point({k: v for p in parts for k, v in p.items()}, words, workdir)
    )
  folders = [point.folder for point in points]
  if not points or len({*folders}) < len(folders):
    raise errors.ConfigError(
      f'--sweep={",".join(names)} has no points, or one of them twice'
    )
  return points


def _point(overrides: Overrides, words, workdir: pathlib.Path) -> Point:
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
