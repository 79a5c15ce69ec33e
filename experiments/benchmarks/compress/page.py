"""The table and the picture of docs/performance.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import io
from typing import Any

from experiments.benchmarks.compress import contenders
from experiments.program import tables
from matplotlib import figure
from matplotlib.backends import backend_agg

Row = Mapping[str, Any]

_COLOURS = {'resnet50': '#1f77b4', 'one': '#9ecae1', 'transformer': '#e6883c'}
_BESIDE = ('read', 'lax.top_k')  # references, not schemes


def by_scheme(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
  """The rows by scheme, and then by tree."""
  found: dict[str, dict[str, Row]] = {}
  for row in rows:
    found.setdefault(row['scheme'], {})[row['shapes']] = row
  return found


def steps_table(rows: Sequence[Row]) -> str:
  """A row a scheme: milliseconds, multiples of SGD, compile time, by tree."""
  head, columns = ['scheme'], {'scheme': ('scheme', '')}
  for tree in dict.fromkeys(row['shapes'] for row in rows):
    head += [f'{tree}, ms', 'x SGD', 'compile s']
    fields = {'step_ms': '.0f', 'sgd_ratio': '.1f', 'compile_s': '.1f'}
    columns |= {f'{tree} {k}': (f'{tree} {k}', v) for k, v in fields.items()}
  joined = [
    {
      'scheme': scheme,
      **{f'{tree} {k}': v for tree, row in own.items() for k, v in row.items()},
    }
    for scheme, own in by_scheme(rows).items()
  ]
  return tables.markdown(head, tables.cells(columns, joined))


def draw(rows: Sequence[Row]) -> bytes:
  """A PNG: a step of each scheme as a multiple of momentum SGD, by tree."""
  schemes = {
    scheme: own
    for scheme, own in by_scheme(rows).items()
    if scheme not in (*_BESIDE, contenders.REFERENCE)
  }
  trees = [t for t in _COLOURS if any(t in own for own in schemes.values())]
  canvas = figure.Figure(
    (8, 0.8 + 0.36 * len(schemes)), layout='constrained', dpi=110
  )
  axes = canvas.subplots()
  height = 0.8 / len(trees)
  for number, tree in enumerate(trees):
    places = [
      place for place, own in enumerate(schemes.values()) if tree in own
    ]
    ratios = [o[tree]['sgd_ratio'] for o in schemes.values() if tree in o]
    shift = (number - (len(trees) - 1) / 2) * height
    shifted = [place + shift for place in places]
    axes.barh(shifted, ratios, height, color=_COLOURS[tree], label=tree)
  axes.axvline(1, color='#444444', linewidth=1)
  axes.set_yticks(range(len(schemes)), list(schemes))
  axes.invert_yaxis()
  axes.set_xscale('log', base=2)
  axes.xaxis.set_major_formatter(lambda value, _: f'{value:g}')
  axes.set_xlabel('a step, as a multiple of momentum SGD (the line at 1)')
  axes.grid(axis='x', color='#dddddd', linewidth=0.6)
  axes.set_axisbelow(True)
  axes.spines[['top', 'right']].set_visible(False)
  axes.legend(frameon=False, loc='lower right')
  out = io.BytesIO()
  backend_agg.FigureCanvasAgg(canvas).print_png(out)
  return out.getvalue()
