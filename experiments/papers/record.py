"""What was measured of a table: one JSON file, rewritten after every run."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from configs import default
from experiments.config import settings
from experiments.papers import metrics
from experiments.papers import table as tables
from experiments.program import errors
from experiments.program import files
from experiments.report import rows
import ml_collections
import pandas as pd

# Tell one run of a row from another, but not what it measures.
_NOT_COMPARED = {
  *settings.FREE_ON_RESUME,
  'train.seed',
  'parallel.workers_per_chunk',
}
_COLUMNS = ('table', 'size', 'row', 'beside', 'seed', 'status')


def changes(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the fields of a setting that differ from the default.

  The seed, and fields that do not change the training, are left out.
  """
  known = rows.flat(default.get_config().to_dict())
  return {
    name: value
    for name, value in rows.flat(config.to_dict()).items()
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

  def __init__(self, path: pathlib.Path, name: str, table: tables.Table):
    """Reads what the file has.

    Args:
      path: of the file; it need not be there.
      name: of the table.
      table: the table.

    Raises:
      FileError: the file is that of another table, or damaged.
    """
    self._path, self._table = path, table
    self._content = files.read_json(path) or {
      'table': name,
      'title': table.title,
      'source': table.source,
      'runs': {},
    }
    found = isinstance(self._content, dict) and self._content.get('table')
    if found != name:
      raise errors.FileError(f'{path} is no record of the table {name}')

  def runs(
    self, size: str, row: str, kind: str = 'runs'
  ) -> dict[int, Mapping[str, Any]]:
    """Returns the runs of a row by seed.

    Those of a setting that the row no longer has are left out.

    Args:
      size: of `table.SIZES`.
      row: its name.
      kind: `runs`, or `failures`.
    """
    found = self._content.get(kind, {}).get(size, {}).get(row, {})
    if not found:
      return {}
    now = changes(self._table.config(self._table.rows[row], size))
    return {int(s): run for s, run in found.items() if run['setting'] == now}

  def failures(self, size: str, row: str) -> dict[int, Mapping[str, Any]]:
    """Returns likewise the runs that came to no end: `why` in words."""
    return self.runs(size, row, 'failures')

  def frame(self, size: str, names: Sequence[str] = ()) -> pd.DataFrame:
    """Returns a line a run, failures too: all that is kept of it.

    The first columns are `_COLUMNS`, then come those of the table; `tests` has
    the tests of a run.

    Args:
      size: of `table.SIZES`.
      names: of the table's rows; none means all.
    """
    table, lines = self._table, []
    for name in names or table.rows:
      head = (self._content['table'], size, name, table.rows[name].beside)
      for kind, status in (('runs', rows.FINISHED), ('failures', rows.FAILED)):
        for seed, run in self.runs(size, name, kind).items():
          own = metrics.METRICS if status == rows.FINISHED else ()
          lines.append(
            dict(zip(_COLUMNS, (*head, seed, status), strict=True))
            | {n: own[n].of(run) for n in table.metrics if n in own}
            | as_row(run)
            | {'tests': run.get('evaluations', ())}
          )
    columns = None if lines else [*_COLUMNS, 'tests']
    return pd.DataFrame(lines, columns=columns, dtype=object)

  def add(
    self,
    size: str,
    row: str,
    seed: int,
    run: Mapping[str, Any],
    kind: str = 'runs',
  ) -> None:
    """Adds a run, or one of the `failures`, and writes the file."""
    by_row = self._content.setdefault(kind, {}).setdefault(size, {})
    by_row.setdefault(row, {})[str(seed)] = dict(run)
    files.write_json(self._path, self._content)
