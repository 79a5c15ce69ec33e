"""What was measured of a table: one JSON file, rewritten after every run."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from configs import default
from experiments.config import settings
from experiments.papers import table as tables
from experiments.program import errors
from experiments.program import files
from experiments.report import rows
from flax import traverse_util
import ml_collections

_FAILED = 'failed'

# Tell one run of a row from another, but not what it measures.
_NOT_COMPARED = {
  *settings.FREE_ON_RESUME,
  'train.seed',
  'parallel.workers_per_chunk',
}


def changes(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the fields of a setting that differ from the default.

  Without its seed, and without what does not touch what is trained.
  """
  known = traverse_util.flatten_dict(default.get_config().to_dict(), sep='.')
  return {
    name: value
    for name, value in traverse_util.flatten_dict(
      config.to_dict(), sep='.'
    ).items()
    if name not in _NOT_COMPARED and (name not in known or known[name] != value)
  }


def as_row(run: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a run or a trial as a row of a CSV file, lists left out.

  Its fields that differ from the default are `config.FIELD`.
  """
  rest = {name: value for name, value in run.items() if name != 'setting'}
  setting = {f'config.{name}': v for name, v in run['setting'].items()}
  return {**setting, **rows.flat(rest)}


class Record:
  """The finished runs of a table, by size, row and seed."""

  def __init__(
    self,
    path: pathlib.Path,
    name: str,
    table: tables.Table,
    *,
    at_hand: bool | None = None,
  ):
    """Reads what the file has.

    Args:
      path: of the file; it need not be there.
      name: of the table.
      table: the table.
      at_hand: whether quick runs must be those on CIFAR-10; None looks for it,
        as whoever runs them does.

    Raises:
      FileError: the file is that of another table, or damaged.
    """
    self._path = path
    self._table = table
    self._at_hand = at_hand
    self._content = files.read_json(path) or {
      'table': name,
      'title': table.title,
      'source': table.source,
      'runs': {},
    }
    found = isinstance(self._content, dict) and self._content.get('table')
    if found != name:
      raise errors.FileError(f'{path} is no record of the table {name}')

  def runs(self, size: str, row: str) -> dict[int, Mapping[str, Any]]:
    """Returns the runs of a row by seed.

    Those of a setting that the row no longer has are left out.

    Args:
      size: of `table.SIZES`.
      row: its name.
    """
    return self._find('runs', size, row)

  def failures(self, size: str, row: str) -> dict[int, Mapping[str, Any]]:
    """Likewise the runs that came to no end: `why` in words."""
    return self._find('failures', size, row)

  def as_rows(self, size: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns rows of a CSV file: one a run, failures too.

    Args:
      size: of `table.SIZES`.
      names: of the table's rows.
    """
    return [
      {'row': name, 'size': size, 'seed': seed, 'status': status, **as_row(run)}
      for name in names
      for status, runs in (
        (rows.FINISHED, self.runs(size, name)),
        (_FAILED, self.failures(size, name)),
      )
      for seed, run in runs.items()
    ]

  def former(self) -> int:
    """Returns how many kept runs `runs` and `failures` leave out."""
    count = 0
    for kind in ('runs', 'failures'):
      for size, by_row in self._content.get(kind, {}).items():
        for row, kept in by_row.items():
          count += len(kept)
          if row in self._table.rows:
            count -= len(self._find(kind, size, row))
    return count

  def add(self, size: str, row: str, seed: int, run: Mapping[str, Any]) -> None:
    """Adds a run, and writes the file."""
    self._add('runs', size, row, seed, run)

  def add_failure(
    self, size: str, row: str, seed: int, failure: Mapping[str, Any]
  ) -> None:
    """Adds a run that ended without a result, and writes the file."""
    self._add('failures', size, row, seed, failure)

  def _find(
    self, kind: str, size: str, row: str
  ) -> dict[int, Mapping[str, Any]]:
    found = self._content.get(kind, {}).get(size, {}).get(row, {})
    if not found:
      return {}
    now = changes(
      self._table.config(self._table.rows[row], size, self._at_hand)
    )
    return {
      int(seed): run for seed, run in found.items() if run['setting'] == now
    }

  def _add(
    self, kind: str, size: str, row: str, seed: int, run: Mapping[str, Any]
  ) -> None:
    by_row = self._content.setdefault(kind, {}).setdefault(size, {})
    by_row.setdefault(row, {})[str(seed)] = dict(run)
    files.write_json(self._path, self._content)
