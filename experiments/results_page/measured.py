"""What is on record of the papers' tables."""

from collections.abc import Mapping
import pathlib
from typing import Any, NamedTuple

from experiments.papers import interval
from experiments.papers import metrics
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import table as tables
from experiments.run import scores

Runs = Mapping[int, Mapping[str, Any]]  # by seed


class Row(NamedTuple):
  """What is on record of a row.

  Attributes:
    name: of the row.
    beside: the name of its dense row; '' if it is one.
    groups: of the pictures that it is in beside others.
    runs: those that came to their end.
    failures: the others.
    by: the column by which it is compared.
    difference: to the dense row in the unit of the score, paired by seed.
  """

  name: str
  beside: str
  groups: tuple[str, ...]
  runs: Runs
  failures: Runs
  by: metrics.Metric
  difference: interval.Interval | None

  @property
  def score(self) -> scores.Score | None:
    """By which it is compared; None where it is not."""
    return self.by.score

  @property
  def ends(self) -> list[float]:
    """What its runs ended with, of those that have a score."""
    found = [self.by.of(run) for run in self.runs.values()]
    return [end for end in found if end is not None]


class Measured(NamedTuple):
  """A table in one of its sizes, with at least one run.

  Attributes:
    name: of the table.
    table: the table.
    record: of its runs.
    size: of `table.SIZES`.
    rows: those that have runs or failures, by name.
  """

  name: str
  table: tables.Table
  record: records.Record
  size: str
  rows: Mapping[str, Row]

  @property
  def title(self) -> str:
    """Which table and which size."""
    return f'`{self.name}`, {self.size.replace("_", " ")} setting'

  @property
  def schemes(self) -> list[Row]:
    """The rows that are compared to a dense one, and in no group."""
    return [row for row in self.rows.values() if row.beside and not row.groups]

  @property
  def groups(self) -> dict[str, list[Row]]:
    """The other rows that are compared to a dense one, by group."""
    found: dict[str, list[Row]] = {}
    for row in self.rows.values():
      for group in row.groups if row.beside else ():
        found.setdefault(group, []).append(row)
    return found

  @property
  def several(self) -> bool:
    """Whether rows are compared to several dense ones."""
    return len({row.beside for row in self.rows.values() if row.beside}) > 1

  def beside(self, row: Row) -> str:
    """Returns the dense row of a row, for a cell."""
    return f'`{row.beside}`' if row.beside else page.NONE

  @property
  def compared(self) -> bool:
    """Whether the rows of the table are compared by a score."""
    return self.table.score is not None


def read(
  catalogue: Mapping[str, tables.Table], folder: pathlib.Path
) -> dict[str, records.Record]:
  """Returns the records of all tables, of some of which nothing may be there.

  Args:
    catalogue: the tables by name.
    folder: has the records.

  Raises:
    FileError: a file is that of another table, or damaged.
  """
  # What is kept reads alike on a machine without CIFAR-10.
  return {
    name: records.Record(folder / f'{name}.json', name, table, at_hand=True)
    for name, table in catalogue.items()
  }


def find(
  catalogue: Mapping[str, tables.Table],
  found: Mapping[str, records.Record],
) -> list[Measured]:
  """Returns what was measured, each table in each size.

  Args:
    catalogue: the tables by name.
    found: their records, from `read`.
  """
  all_of_them = [
    Measured(name, table, found[name], size, _rows(table, found[name], size))
    for name, table in catalogue.items()
    for size in table.sizes
  ]
  return [measured for measured in all_of_them if measured.rows]


def _rows(
  table: tables.Table, record: records.Record, size: str
) -> dict[str, Row]:
  found = {
    name: Row(
      name,
      row.beside,
      row.groups,
      record.runs(size, name),
      record.failures(size, name),
      metrics.METRICS[table.metrics[0]],
      page.difference(table, record, size, name),
    )
    for name, row in table.rows.items()
  }
  return {name: row for name, row in found.items() if row.runs or row.failures}
