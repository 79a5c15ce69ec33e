"""Tables of docs/performance.md and docs/accelerators.md, and the picture."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.benchmarks.compress import contenders
from experiments.program import tables
from experiments.report import drawing
import pandas as pd

Row = Mapping[str, Any]
# Heading -> name, format.
_HERE = {
  'ms': ('step_ms', '.0f'),
  'x SGD': ('sgd_ratio', '.1f'),
  'compile s': ('compile_s', '.1f'),
}
_ON_DEVICE = {
  'ms': ('device_ms', '.2f'),
  'x SGD': ('device_ratio', '.1f'),
  'launches': ('launches', ',.0f'),
}

# References, not schemes.
_BESIDE = ('read', 'lax.top_k', contenders.REFERENCE)


def by_scheme(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
  """The rows by scheme, and then by tree."""
  found: dict[str, dict[str, Row]] = {}
  for row in rows:
    found.setdefault(row['scheme'], {})[row['shapes']] = row
  return found


def table(rows: Sequence[Row]) -> str:
  """A row a scheme: what it takes here, or on an accelerator, by tree."""
  fields = _ON_DEVICE if 'device_ms' in rows[0] else _HERE
  head, columns = ['scheme'], {'scheme': ('scheme', '')}
  for tree in dict.fromkeys(row['shapes'] for row in rows):
    first, *rest = fields
    head += [f'{tree}, {first}', *rest]
    columns |= {f'{tree} {k}': (f'{tree} {k}', v) for k, v in fields.values()}
  joined = [
    {
      'scheme': scheme,
      **{f'{tree} {k}': v for tree, row in own.items() for k, v in row.items()},
    }
    for scheme, own in by_scheme(rows).items()
  ]
  table = tables.cells(columns, joined).set_axis(head, axis=1)
  return tables.markdown(table)


def draw(rows: Sequence[Row]) -> bytes:
  """A PNG: a step of each scheme as a multiple of momentum SGD, by tree."""
  frame = pd.DataFrame(rows).pivot(
    index='scheme', columns='shapes', values='sgd_ratio'
  )
  schemes = [x for x in by_scheme(rows) if x not in _BESIDE]
  picture = drawing.canvas(8, 0.8 + 0.36 * len(schemes))
  axes = picture.subplots()
  frame.loc[schemes].plot.barh(ax=axes, width=0.8, color=drawing.COLOURS[1:])
  axes.axvline(1, color='#444444', linewidth=1)
  axes.invert_yaxis()
  drawing.logarithmic(axes, 'x')
  drawing.describe(axes, '', 'a step, times momentum SGD (the line at 1)', '')
  axes.legend(frameon=False, loc='upper right')
  return drawing.png(picture)
