"""The one way to print a table, or to write it: a frame."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from experiments.program import files
import pandas as pd

NONE = '-'  # in a cell without a value


def cells(
  columns: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]
) -> pd.DataFrame:
  """Returns the text of records.

  Args:
    columns: heading -> (field, format), or (field, format, unit) to divide by.
    rows: records; a value may be None or missing.
  """

  def cell(row: Mapping[str, Any], field: str, form: str, unit: float = 0):
    value = row.get(field)
    if value is None:
      return NONE
    return format(value / unit if unit else value, form)

  lines = [[cell(row, *how) for how in columns.values()] for row in rows]
  return pd.DataFrame(lines, columns=[*columns])


def show(table: pd.DataFrame, title: str = '', caption: str = '') -> None:
  """Prints a table, never narrower than what is in it."""
  text = table.to_string(index=False) if len(table) else 'nothing yet'
  print('\n'.join(filter(None, (title, text, caption))), end='\n\n')


def markdown(table: pd.DataFrame) -> str:
  """Returns a table as our documents have it."""
  lines = [[*table], ['---'] * len(table.columns), *table.values.tolist()]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def write_csv(path: pathlib.Path, table: pd.DataFrame) -> None:
  """Writes a table as CSV; what is None or missing is an empty cell."""
  files.write_bytes(path, table.to_csv(index=False).encode())
