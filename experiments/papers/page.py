"""A table as text: published numbers beside ours, and lists of tables."""

from collections.abc import Mapping, Sequence

from experiments.papers import judging
from experiments.papers import metrics
from experiments.papers import outcomes
from experiments.papers import table as tables
from experiments.program.tables import NONE
import pandas as pd

_RATIO = 'ratio'
# Headings and columns of a frame, whose means are shown.
_MEANS = {
  'ratio, last stage': 'comm.ratio',
  'ratio, whole run': 'comm.run_average_ratio',
  'seconds': 'seconds',
}


def results(table: tables.Table, frame: pd.DataFrame) -> pd.DataFrame:
  """Returns the columns of a table: each number of the paper beside ours.

  Args:
    table: of the paper.
    frame: its runs in one size.
  """
  score, lines = table.score, []
  for each in outcomes.outcomes(table, frame).values():
    cells = {'row': each.name, 'beside': each.row.beside}
    for name in table.metrics:
      metric = metrics.METRICS[name]
      printed = each.row.published.get(name)
      cells[f'{metric.heading}, published'] = form(metric.form, printed)
      if name != _RATIO:  # both ratios are below
        ours = each.middle(name, table.middle)
        cells[metric.heading] = form(metric.form, ours)
    if score:
      printed, found = table.points(each.row), each.difference
      cells[f'{score.unit} to dense, published'] = form('{:+z.2f}', printed)
      cells[f'{score.unit} to dense, 95 %'] = str(found or NONE)
      cells['as good'] = each.verdict
    for heading, name in _MEANS.items():
      cells[heading] = form('{:,.1f}', each.middle(name))
    cells['sent, whole run: dense / own'] = form('{:,.1f}', each.sent_ratio)
    if score and (reached := each.reached(score)):
      cells['reached dense less margin'] = reached
    cells['seeds'] = str(len(each.runs))
    cells['failed'] = str(each.failed or '')
    lines.append(cells)
  return columns(lines)


def answers(table: tables.Table, frame: pd.DataFrame) -> pd.DataFrame:
  """Returns the columns of the table's questions: one row beside another."""
  lines = []
  for asked in table.questions:
    names = (asked.row, asked.other, asked.metric)
    if found := outcomes.difference(table, frame, *names):
      by = metrics.METRICS[asked.metric or table.metrics[0]]
      cells = (asked.asks, asked.row, asked.other, by.heading, f'{found}')
      heads = ('asked', 'row', 'beside', 'by', table.score.unit)
      doubt = outcomes.doubt(frame, asked.row, asked.other)
      said = judging.better(found, by.score, doubt)
      own = {'seeds': f'{found.n}', 'better': said}
      lines.append(dict(zip(heads, cells, strict=True)) | own)
  return columns(lines)


def columns(lines: Sequence[Mapping[str, str]]) -> pd.DataFrame:
  """Returns cells by heading; a column without any is left out."""
  table = pd.DataFrame(lines).fillna('').replace('', NONE)
  return table.loc[:, (table != NONE).any()]


def form(how: str, number: float | None) -> str:
  """Returns a number in a cell, '-' where there is none."""
  return NONE if number is None else how.format(number)


def listing(catalogue: Mapping[str, tables.Table]) -> str:
  """Returns all tables with their rows and what the full setting needs."""
  lines = []
  for name, table in catalogue.items():
    lines.append(f'{name}: {table.title} ({table.source})')
    for row_name, row in table.rows.items():
      needs = ', '.join(table.needed(row)) or 'nothing more'
      lines.append(f'  {row_name:<27} full needs {needs}')
    for what, why in table.missing.items():
      lines.append(f'  not here: {what}: {why}')
  return '\n'.join(lines)


def contents(
  catalogue: Mapping[str, tables.Table], frame: pd.DataFrame
) -> pd.DataFrame:
  """Returns the columns of the list of all tables.

  Args:
    catalogue: the tables by name.
    frame: all runs on record.
  """
  lines = []
  for name, table in catalogue.items():
    runs = frame[frame['table'] == name].groupby('size')['row'].nunique()
    needs = [need for row in table.rows.values() for need in table.needed(row)]
    lines.append(
      {
        'table': f'[{name}]({name}.md)' if len(runs) else name,
        'what': table.title,
        'from': table.source,
        'rows': str(len(table.rows)),
        'rows on record': ', '.join(f'{n} {size}' for size, n in runs.items()),
        'full needs': ', '.join(dict.fromkeys(needs)) or 'nothing more',
      }
    )
  return columns(lines)
