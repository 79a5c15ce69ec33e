"""A table as text: published numbers beside ours, headers of configs, lists."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import statistics
import textwrap
from typing import Any

from experiments.papers import interval
from experiments.papers import metrics
from experiments.papers import record as records
from experiments.papers import table as tables
from experiments.program import tables as text
from experiments.run import machine

NONE = '-'
_NOT_RUN = 'not run'
_NOTHING_MORE = 'nothing more'


def ours(
  table: tables.Table, runs: Mapping[int, Mapping[str, Any]], metric: str
) -> str:
  """Returns a metric of several seeds, '-' where nothing was measured."""
  found = [metrics.METRICS[metric].of(run) for run in runs.values()]
  numbers = [number for number in found if number is not None]
  if not numbers:
    return NONE
  return metrics.METRICS[metric].form.format(
    metrics.MIDDLES[table.middle](numbers)
  )


def published(row: tables.Row, metric: str) -> str:
  """Returns what the paper printed, '-' where it printed nothing."""
  if metric not in row.published:
    return NONE
  return metrics.METRICS[metric].form.format(row.published[metric])


def difference(
  table: tables.Table,
  record: records.Record,
  size: str,
  name: str,
  beside: str = '',
  metric: str = '',
) -> interval.Interval | None:
  """Returns how far a row is from another, in the unit of the score.

  Paired by seed; None where no seed has both, or nothing is compared.

  Args:
    table: of both.
    record: of the table.
    size: of `table.SIZES`.
    name: of the row.
    beside: of the other; '' is the dense row that it stands beside.
    metric: a score, of `metrics.METRICS`; '' is the table's first.
  """
  beside = beside or table.rows[name].beside
  by = metrics.METRICS[metric or table.metrics[0]]
  if not beside or by.score is None:
    return None
  mine, other = (
    {
      seed: found
      for seed, run in record.runs(size, row).items()
      if (found := by.of(run)) is not None
    }
    for row in (name, beside)
  )
  return interval.paired(mine, other, by.score.difference)


def points(table: tables.Table, row: tables.Row) -> str:
  """Returns what the paper printed of the difference, '-' where nothing."""
  found = table.points(row)
  return NONE if found is None else f'{found:+z.2f}'


def results(
  table: tables.Table,
  record: records.Record,
  size: str,
  names: Sequence[str],
) -> text.Table:
  """Returns the table that a user sees: each number of the paper beside ours.

  Args:
    table: of the paper.
    record: of what was measured.
    size: of its `sizes`.
    names: of the rows.
  """
  headings, rows = _measured(table, record, size, names)
  seconds = [
    mean(record.runs(size, name), lambda run: run['seconds']) for name in names
  ]
  caption = (
    f'ours: {table.middle} of n seeds; difference: paired by seed, '
    "Student's 95 % interval; ratio: of bytes"
  )
  if size == tables.QUICK:
    caption += "; the quick setting is not the paper's"
  return text.make(
    [*headings, 'seconds'],
    [[*cells, took] for cells, took in zip(rows, seconds, strict=True)],
    title=f'{table.title} ({table.source}): {size} setting',
    caption=caption,
  )


def _measured(
  table: tables.Table,
  record: records.Record,
  size: str,
  names: Sequence[str],
) -> tuple[list[str], list[list[str]]]:
  """Returns headings and cells of all that was measured of some rows."""

  def pair(heading: str, printed: str, mine: str) -> list[str]:
    if table.publishes:
      return [f'{heading}\n{printed}', mine]
    if ', ' in heading:
      return [heading.replace(', ', ',\n', 1)]
    return ['\n'.join(heading.rsplit(maxsplit=1))]

  headings = ['row']
  for metric in table.metrics:
    headings += pair(metrics.METRICS[metric].heading, 'published', 'ours')
  if table.score:
    headings += pair(table.score.to_dense, 'published', 'ours, 95 %')
  headings += ['ratio\nlast stage', 'whole run', 'n']
  rows = []
  for name in names:
    row, runs = table.rows[name], record.runs(size, name)
    cells = [name]
    for metric in table.metrics:
      cells += [published(row, metric)] if table.publishes else []
      cells.append(_cell(table, record, size, name, metric))
    if table.score:
      found = difference(table, record, size, name)
      cells += [points(table, row)] if table.publishes else []
      cells.append(NONE if found is None else str(found))
    ratios = ('ratio', 'run_average_ratio')
    cells += [mean(runs, lambda run, r=r: run['comm'][r]) for r in ratios]
    rows.append([*cells, str(len(runs))])
  return headings, rows


def mean(
  runs: Mapping[int, Mapping[str, Any]],
  of: Callable[[Mapping[str, Any]], float],
) -> str:
  """Returns the mean of a number over runs, '-' where there are none."""
  if not runs:
    return NONE
  return f'{statistics.fmean(of(run) for run in runs.values()):,.1f}'


def header(table: tables.Table, record: records.Record) -> str:
  """Returns the table for the head of its file in configs/.

  Args:
    table: of the paper.
    record: of what is kept with the project.
  """
  if table.quick is None:
    made = text.make(*_measured(table, record, tables.FULL, [*table.rows]))
  else:
    made = _beside(table, record)
  shown = textwrap.dedent(text.text(made))
  notes = [*_where(table, record), *_needs(table)]
  return '\n'.join([shown, '', *notes]).rstrip()


def _beside(table: tables.Table, record: records.Record) -> text.Table:
  """Returns the published numbers, and our first metric of each setting."""
  # Elsewhere the difference is that of two scores that are there.
  with_points = any(row.points is not None for row in table.rows.values())
  # What no paper printed needs no column, but for the first.
  columns = [
    metric
    for metric in table.metrics
    if metric == table.metrics[0]
    or any(metric in row.published for row in table.rows.values())
  ]
  rows = [
    [
      name,
      *(published(row, metric) for metric in columns),
      *([points(table, row)] if with_points else []),
      *(
        _cell(table, record, size, name, table.metrics[0])
        for size in table.sizes
      ),
    ]
    for name, row in table.rows.items()
  ]
  headings = [metrics.METRICS[metric].heading for metric in columns]
  headings += [table.score.unit] if with_points else []
  headings += [size.replace('_', ' ') for size in table.sizes]
  return text.make(['row', *headings], rows)


def _cell(
  table: tables.Table,
  record: records.Record,
  size: str,
  name: str,
  metric: str,
) -> str:
  """Returns a metric of a row of ours, or why there is none."""
  if size == tables.HELD_OUT and not table.holds_out(table.rows[name]):
    return NONE
  runs = record.runs(size, name)
  if runs:
    return ours(table, runs, metric)
  return 'failed' if record.failures(size, name) else _NOT_RUN


def _where(table: tables.Table, record: records.Record) -> list[str]:
  """Returns a line on hardware and date for each size that was measured."""
  lines = []
  for size in tables.SIZES:
    places = {
      f'{machine.place(run["environment"])}, {run["date"]}'
      for name in table.rows
      for run in record.runs(size, name).values()
    }
    shown = size.replace('_', ' ')
    lines += [f'{shown}: {place}' for place in sorted(places)]
  return lines


def _needs(table: tables.Table) -> list[str]:
  """Returns what full runs need, the common part once."""
  lines = []
  if table.needs:
    lines.append(f'full needs: {", ".join(table.needs)}')
  own: dict[str, list[str]] = {}
  for name, row in table.rows.items():
    if row.needs:
      own.setdefault(', '.join(row.needs), []).append(name)
  for needs, names in own.items():
    lines.append(f'{len(names)} rows need {needs}')
  return lines


def listing(catalogue: Mapping[str, tables.Table]) -> str:
  """Returns all tables with their rows and what the full setting needs."""
  lines = []
  for name, table in catalogue.items():
    lines.append(f'{name}: {table.title} ({table.source})')
    for row_name, row in table.rows.items():
      needs = ', '.join(table.needed(row)) or _NOTHING_MORE
      lines.append(f'  {row_name:<27} full needs {needs}')
    for what, why in table.missing.items():
      lines.append(f'  not here: {what}: {why}')
  return '\n'.join(lines)


def needed_by(table: tables.Table, names: Iterable[str]) -> str:
  """Returns what full runs of some rows need, each once."""
  return ', '.join(
    dict.fromkeys(
      need for name in names for need in table.needed(table.rows[name])
    )
  )


def contents(catalogue: Mapping[str, tables.Table]) -> str:
  """Returns the tables as our documents list them."""
  return text.markdown(
    ('table', 'what', 'from', 'rows', 'full needs'),
    [
      (
        f'`{name}`',
        table.title,
        table.source,
        str(len(table.rows)),
        needed_by(table, table.rows) or _NOTHING_MORE,
      )
      for name, table in catalogue.items()
    ],
  )


def missing(catalogue: Mapping[str, tables.Table]) -> str:
  """Returns what the papers have and this project lacks, for our documents."""
  return text.markdown(
    ('table', 'what', 'needs'),
    [
      (f'`{name}`', what, why)
      for name, table in catalogue.items()
      for what, why in table.missing.items()
    ],
  )


def elsewhere(programs: Mapping[str, str]) -> str:
  """Returns the programs of `catalogue.ELSEWHERE`, for our documents."""
  return text.markdown(
    ('what', 'program'),
    [(what, f'`{program}`') for what, program in programs.items()],
  )
