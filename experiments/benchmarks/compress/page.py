"""The tables and the picture of docs/performance.md, from what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import io
from typing import Any

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import stages
from experiments.program import tables
from matplotlib import figure
from matplotlib.backends import backend_agg

Row = Mapping[str, Any]

_COLOURS = {'resnet50': '#1f77b4', 'one': '#9ecae1', 'transformer': '#e6883c'}
_BESIDE = ('read', 'lax.top_k')  # references, not schemes


def steps_table(rows: Sequence[Row]) -> str:
  """A row a scheme: milliseconds, multiples of SGD, compile time, by tree."""
  trees = list(dict.fromkeys(row['shapes'] for row in rows))
  by_scheme = _by_scheme(rows)
  head = ['scheme']
  for tree in trees:
    head += [f'{tree}, ms', 'x SGD', 'compile s']
  lines = []
  for scheme, own in by_scheme.items():
    line = [scheme]
    for tree in trees:
      if tree in own:
        row = own[tree]
        line.append(f'{row["step_ms"]:.0f}')
        line.append(f'{row["sgd_ratio"]:.1f}')
        line.append(f'{row["compile_s"]:.1f}')
      else:
        line += ['-'] * 3
    lines.append(tuple(line))
  return tables.markdown(tuple(head), lines)


def stages_table(rows: Sequence[Row], tree: str) -> str:
  """Milliseconds of each stage by itself, on one tree."""
  lines = []
  for row in rows:
    if row['shapes'] == tree and row.get('stages_ms'):
      found = row['stages_ms']
      cells = (
        '-' if name not in found else f'{found[name]:.1f}'
        for name in stages.NAMES
      )
      lines.append((row['scheme'], *cells))
  return tables.markdown(('scheme', *stages.NAMES), lines)


def pages_table(rows: Sequence[Row], large: Sequence[Row]) -> str:
  """Milliseconds and multiples of SGD's, of one run and with large pages.

  Args:
    rows: of a record.
    large: of a record made with large pages; it has the table's rows and trees.
  """
  trees = list(dict.fromkeys(row['shapes'] for row in large))
  pairs = _by_scheme(rows), _by_scheme(large)
  return tables.markdown(
    ('scheme', *(head for t in trees for head in (f'{t}, ms', 'large pages'))),
    [
      (
        scheme,
        *(
          f'{run[scheme][tree]["step_ms"]:.0f} '
          f'({run[scheme][tree]["sgd_ratio"]:.1f})'
          for tree in trees
          for run in pairs
        ),
      )
      for scheme in pairs[1]
    ],
  )


def network_table(columns: Mapping[str, Sequence[Row]]) -> str:
  """Milliseconds of a step on a slow network, and how often as fast as dense.

  Args:
    columns: by heading, rows of `experiments.benchmarks.exchange`.
  """
  found = {
    (heading, row['scheme']): f'{row["step_ms"]:.0f} ({row["speedup"]:.1f})'
    for heading, rows in columns.items()
    for row in rows
  }
  return tables.markdown(
    ('scheme', *columns),
    [
      (scheme, *(found.get((heading, scheme), '-') for heading in columns))
      for scheme in dict.fromkeys(scheme for _, scheme in found)
    ],
  )


def model_table(rows: Sequence[Row]) -> str:
  """Milliseconds of exchanges, beside what the cost model says.

  Args:
    rows: of `experiments.benchmarks.exchange`.
  """
  return tables.markdown(
    ('scheme', 'model', 'collectives alone', 'step', 'spread'),
    [
      (
        row['scheme'],
        *(
          f'{row[name]:.0f}'
          for name in (
            'serial_ms',
            'collectives_ms',
            'step_ms',
            'step_ms_spread',
          )
        ),
      )
      for row in rows
    ],
  )


def draw(rows: Sequence[Row]) -> bytes:
  """A PNG: a step of each scheme as a multiple of momentum SGD, by tree."""
  by_scheme = {
    scheme: own
    for scheme, own in _by_scheme(rows).items()
    if scheme not in (*_BESIDE, contenders.REFERENCE)
  }
  trees = [
    tree for tree in _COLOURS if any(tree in x for x in by_scheme.values())
  ]
  canvas = figure.Figure(
    (8, 0.8 + 0.36 * len(by_scheme)), layout='constrained', dpi=110
  )
  axes = canvas.subplots()
  height = 0.8 / len(trees)
  for number, tree in enumerate(trees):
    there = [
      (place, own[tree]['sgd_ratio'])
      for place, own in enumerate(by_scheme.values())
      if tree in own
    ]
    places = [
      place + (number - (len(trees) - 1) / 2) * height for place, _ in there
    ]
    ratios = [ratio for _, ratio in there]
    axes.barh(places, ratios, height, color=_COLOURS[tree], label=tree)
  axes.axvline(1, color='#444444', linewidth=1)
  axes.set_yticks(range(len(by_scheme)), list(by_scheme))
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


def _by_scheme(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
  out: dict[str, dict[str, Row]] = {}
  for row in rows:
    out.setdefault(row['scheme'], {})[row['shapes']] = row
  return out
