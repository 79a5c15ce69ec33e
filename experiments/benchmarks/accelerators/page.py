"""The tables of docs/accelerators_tables.md, from what was recorded."""

from collections.abc import Mapping, Sequence
import re
from typing import Any

from experiments.benchmarks.compress import page as compress
from experiments.program import tables
import pandas as pd

Row = Mapping[str, Any]

COLUMNS = {
  'scheme': ('scheme', ''),
  'compile, s': ('compile_s', '.1f'),
  'program, MB': ('code_bytes', '.1f', 1e6),
  'temporary, models': ('temp_models', '.2f'),
  'x SGD': ('cycles_x_sgd', ''),
  'kernels': ('kernels_x_sgd', '.1f'),
  'floor, x SGD': ('floor_x_sgd', '.2f'),
  'unknown loops': ('unknown_loops', ',d'),
  'launches': ('launches', ',d'),
  'plan, B': ('plan_bytes', ',.0f'),
  'program, B': ('program_bytes', ',.0f'),
  'inside, B': ('inside_bytes', ',.0f'),
  'uncounted': ('uncounted', ''),
}

HEAD = """# Accelerators

What the compilers of TPUs and GPUs make of a step; nothing has been run.
[On TPUs and GPUs](accelerators.md) says what is compiled, and what the
columns mean. Time, x SGD:"""
PROFILE = 'The most expensive operations; of a `cond` one branch runs:'
_PLACE = re.compile(r'jit\(step\)/shard_map/|gradsparse\.compress/|_fun\b')
_SHOWN, _LEAST = 6, 0.25  # operations, x SGD


def place(row: Row) -> str:
  """What a row was compiled for: target, slices, tree."""
  slices = row.get('slices', 1)
  several = f', {slices} slices' if slices > 1 else ''
  return f'{row["target"]}{several}, {row["tree"]}'


def cells(rows: Sequence[Row]) -> pd.DataFrame:
  """The text of the rows' columns."""

  def text(row):
    named = ', '.join(f'{n} {kind}' for kind, n in row['uncounted'].items())
    return {**row, 'uncounted': named or None, 'cycles_x_sgd': estimate(row)}

  return tables.cells(COLUMNS, [*map(text, rows)])


def estimate(row: Row) -> str | None:
  """The time, with the cheapest and the most expensive size of the message.

  XLA's estimate, and what kernels take at momentum SGD's bytes a second.
  """
  return ' to '.join(dict.fromkeys(f'{x:.1f}' for x in _ends(row))) or None


def _ends(row: Row) -> list[float]:
  sizes = row.get('sizes_x_sgd') or [row['cycles_x_sgd']]
  return [x + row['kernels_x_sgd'] for x in (min(sizes), max(sizes)) if x]


def draw(rows: Sequence[Row]) -> bytes:
  """A PNG: XLA's estimates for one slice of v5e, by tree; largest messages."""
  v5e = [r for r in rows if (r['target'], r['slices']) == ('v5e:2x4', 1)]
  if not v5e:
    raise SystemExit('--plot draws rows of v5e:2x4 with one slice; got none')
  shown = [r | {'shapes': r['tree'], 'sgd_ratio': _ends(r)[-1]} for r in v5e]
  return compress.draw(shown)


def profile(rows: Sequence[Row]) -> pd.DataFrame:
  """The operations that take most of each row's cycles."""
  found = []
  for row in rows:
    each = [
      f'`{_PLACE.sub("", name)}` {part:.1f}'
      for cycles, name in row['most_expensive'][:_SHOWN]
      if (part := cycles / row['cycles'] * row['cycles_x_sgd']) >= _LEAST
    ]
    found.append({'scheme': row['scheme'], 'x SGD': ', '.join(each)})
  return pd.DataFrame(found)


def summary(rows: Sequence[Row]) -> pd.DataFrame:
  """XLA's estimates: a line for each scheme, a column for each place."""
  found: dict[str, dict[str, str]] = {}
  for r in rows:
    if text := estimate(r):
      found.setdefault(r['scheme'], {'scheme': r['scheme']})[place(r)] = text
  return pd.DataFrame(list(found.values())).fillna(tables.NONE)


def page(rows: Sequence[Row]) -> str:
  """The document: a summary, and tables for each target and tree.

  The first of these has all columns; the second, where there are estimates, the
  profile. A scheme that was compiled twice for one of them has its last row.
  """
  found: dict[str, dict[str, Row]] = {}
  for row in rows:
    found.setdefault(place(row), {})[row['scheme']] = row
  estimates = summary(rows)
  parts = [] if estimates.empty else [HEAD, tables.markdown(estimates)]
  for name, own in found.items():
    parts += [f'## {name}', tables.markdown(cells([*own.values()]))]
    told = [row for row in own.values() if row['most_expensive']]
    if told:
      parts += [PROFILE, tables.markdown(profile(told))]
  return '\n\n'.join(parts)
