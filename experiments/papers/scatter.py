"""A score against compression: the variance paper's appendix C."""

import pathlib

from experiments.papers import metrics
from experiments.papers import record as records
from experiments.papers import table as tables
from experiments.program import files
from matplotlib import figure

_COLOURS = ('#0072B2', '#D55E00')  # published, ours


def draw(
  table: tables.Table, record: records.Record, size: str, path: pathlib.Path
) -> None:
  """Writes a PNG with two points a row, the published one and ours.

  Args:
    table: one with scores and a compression.
    record: of what was measured.
    size: of `table.SIZES`.
    path: of the file.
  """
  ratio = 'elements' if 'elements' in table.metrics else 'ratio'
  columns = (ratio, table.metrics[0])
  middle = metrics.MIDDLES[table.middle]
  canvas = figure.Figure(figsize=(7.5, 5), layout='constrained', dpi=120)
  axes = canvas.add_subplot()
  for number, (label, marker) in enumerate(
    (('published', 'o'), (f'ours, {size}', 's'))
  ):
    points = {}
    for name, row in table.rows.items():
      if number:
        runs = record.runs(size, name).values()
        point = [
          [metrics.METRICS[metric].of(run) for run in runs]
          for metric in columns
        ]
        values = [middle(p) for p in point if p and None not in p]
      else:
        values = [row.published[m] for m in columns if m in row.published]
      if len(values) == 2:
        points[name] = values
    if not points:
      continue
    axes.scatter(
      [x for x, _ in points.values()],
      [y for _, y in points.values()],
      marker=marker,
      color=_COLOURS[number],
      label=label,
    )
    for name, point in points.items():
      axes.annotate(
        name, point, fontsize=7, xytext=(3, 3), textcoords='offset points'
      )
  axes.set_xscale('log')
  axes.set_xlabel(metrics.METRICS[ratio].heading)
  axes.set_ylabel(metrics.METRICS[table.metrics[0]].heading)
  axes.set_title(f'{table.title}\n{table.source}', fontsize=10)
  axes.grid(alpha=0.3)
  axes.legend()
  with files.replacing(path) as file:
    canvas.savefig(file, format='png')
