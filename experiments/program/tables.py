"""The one way to print a table."""

from collections.abc import Mapping, Sequence
import io
import sys
from typing import IO, Any

from rich import box
from rich import console as consoles
from rich.table import Table

_WIDEST = 10_000  # characters


def make(
  columns: Sequence[str],
  rows: Sequence[Sequence[str]],
  *,
  title: str | None = None,
  caption: str | None = None,
  left: int = 1,
) -> Table:
  """Returns a table of text.

  Args:
    columns: headings.
    rows: cells of each line.
    title: above it.
    caption: below it.
    left: how many columns are text; the others are numbers, on the right.
  """
  made = Table(
    box=box.SIMPLE_HEAD,
    title=title,
    caption=caption,
    pad_edge=False,
    padding=(0, 1, 0, 0),
  )
  for number, heading in enumerate(columns):
    justify = 'left' if number < left else 'right'
    made.add_column(heading, justify=justify, no_wrap=True)
  for row in rows:
    made.add_row(*row)
  return made


def cells(
  columns: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]
) -> list[list[str]]:
  """Returns the text of records, for `make` or `markdown`.

  Args:
    columns: heading -> (field, format), or (field, format, unit) to divide by.
    rows: records; a value that is None or missing is '-'.
  """

  def cell(row: Mapping[str, Any], field: str, form: str, unit: float = 0):
    value = row.get(field)
    if value is None:
      return '-'
    return format(value / unit if unit else value, form)

  return [[cell(row, *how) for how in columns.values()] for row in rows]


def show(table: Table, file: IO[str] | None = None) -> None:
  """Prints a table, never narrower than what is in it.

  Args:
    table: from `make`.
    file: standard output if None.
  """
  screen = consoles.Console(file=file or sys.stdout, width=_WIDEST)
  screen.print(table)


def text(table: Table) -> str:
  """Returns what `show` prints, without the empty lines around it."""
  file = io.StringIO()
  show(table, file)
  lines = [line.rstrip() for line in file.getvalue().splitlines()]
  return '\n'.join(lines).strip('\n')


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Returns a table as our documents have it."""
  lines = [columns, ['---' for _ in columns], *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)
