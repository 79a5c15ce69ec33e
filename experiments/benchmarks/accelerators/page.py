"""The tables of docs/accelerators.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.program import tables

Row = Mapping[str, Any]

COLUMNS = (
  'scheme',
  'compile, s',
  'program, MB',
  'temporary, models',
  'x SGD',
  'floor, x SGD',
  'unknown loops',
  'launches',
  'plan, B',
  'program, B',
  'inside, B',
  'uncounted',
)


def place(row: Row) -> str:
  """What a row was compiled for: target, slices, tree."""
  slices = row.get('slices', 1)
  several = f', {slices} slices' if slices > 1 else ''
  return f'{row["target"]}{several}, {row["tree"]}'


def cells(row: Row) -> tuple[str, ...]:
  """The text of a row's columns."""
  uncounted = row['uncounted'].items()
  return (
    row['scheme'],
    _number(row['compile_s'], '.1f'),
    _number(row['code_bytes'], '.1f', 1e6),
    _number(row['temp_models'], '.2f'),
    _number(row['cycles_x_sgd'], '.1f'),
    _number(row.get('floor_x_sgd'), '.2f'),
    _number(row['unknown_loops'], ',d'),
    _number(row['launches'], ',d'),
    _number(row['plan_bytes'], ',.0f'),
    _number(row['program_bytes'], ',.0f'),
    _number(row.get('inside_bytes'), ',.0f'),
    ', '.join(f'{n} {kind}' for kind, n in uncounted) or '-',
  )


def page(rows: Sequence[Row]) -> str:
  """A table for each target and tree, under its name, as in the document.

  A scheme that was compiled twice for one of them has its last row.
  """
  found: dict[str, dict[str, Row]] = {}
  for row in rows:
    found.setdefault(place(row), {})[row['scheme']] = row
  return '\n\n'.join(
    f'### {name}\n\n'
    + tables.markdown(COLUMNS, [cells(row) for row in own.values()])
    for name, own in found.items()
  )


def _number(value: Any, form: str, unit: float = 0) -> str:
  if value is None:
    return '-'
  return format(value / unit if unit else value, form)
