"""The tables of docs/accelerators.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.program import tables
import pandas as pd

Row = Mapping[str, Any]

COLUMNS = {
  'scheme': ('scheme', ''),
  'compile, s': ('compile_s', '.1f'),
  'program, MB': ('code_bytes', '.1f', 1e6),
  'temporary, models': ('temp_models', '.2f'),
  'x SGD': ('cycles_x_sgd', '.1f'),
  'floor, x SGD': ('floor_x_sgd', '.2f'),
  'unknown loops': ('unknown_loops', ',d'),
  'launches': ('launches', ',d'),
  'plan, B': ('plan_bytes', ',.0f'),
  'program, B': ('program_bytes', ',.0f'),
  'inside, B': ('inside_bytes', ',.0f'),
  'uncounted': ('uncounted', ''),
}


def place(row: Row) -> str:
  """What a row was compiled for: target, slices, tree."""
  slices = row.get('slices', 1)
  several = f', {slices} slices' if slices > 1 else ''
  return f'{row["target"]}{several}, {row["tree"]}'


def cells(rows: Sequence[Row]) -> pd.DataFrame:
  """The text of the rows' columns."""
  named = [
    ', '.join(f'{n} {kind}' for kind, n in row['uncounted'].items()) or '-'
    for row in rows
  ]
  shown = zip(rows, named, strict=True)
  return tables.cells(COLUMNS, [{**r, 'uncounted': text} for r, text in shown])


def page(rows: Sequence[Row]) -> str:
  """A table for each target and tree, under its name, as in the document.

  A scheme that was compiled twice for one of them has its last row.
  """
  found: dict[str, dict[str, Row]] = {}
  for row in rows:
    found.setdefault(place(row), {})[row['scheme']] = row
  return '\n\n'.join(
    f'### {name}\n\n' + tables.markdown(cells([*own.values()]))
    for name, own in found.items()
  )
