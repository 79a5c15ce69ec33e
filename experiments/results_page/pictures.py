"""Which pictures RESULTS.md has, and the numbers in them."""

from collections.abc import Callable, Mapping, Sequence
import functools
import statistics
from typing import NamedTuple

from experiments.papers import interval
from experiments.program import errors
from experiments.results_page import answers
from experiments.results_page import drawing
from experiments.results_page import sections
from experiments.results_page.measured import Measured
from experiments.results_page.measured import Row
from experiments.run import scores

# Groups whose rows differ in a number: the field that has it, and whether its
# axis is that of powers of ten or of two.
_LINES: Mapping[str, tuple[str, int]] = {
  'density': ('compression.density', 10),
  'workers': ('parallel.num_workers', 2),
}
_FEWEST = 2  # rows beside dense that make a picture


class Picture(NamedTuple):
  """A picture of the page.

  Attributes:
    name: of its file.
    about: what it shows, for those who do not see it.
    draw: returns the PNG.
  """

  name: str
  about: str
  draw: Callable[[], bytes]


def paretos(measured: Measured) -> list[Picture]:
  """Returns scores by bytes, for each dense row with schemes beside it.

  None is drawn yet.
  """
  if not measured.compared:
    return []
  beside: dict[str, list[Row]] = {}
  for row in measured.schemes:
    if row.ends and row.beside in measured.rows:
      beside.setdefault(row.beside, []).append(row)
  score = measured.table.score
  found = []
  for name, rows in beside.items():
    dense = measured.rows[name]
    if len(rows) >= _FEWEST and dense.ends:
      draw = functools.partial(
        drawing.pareto,
        _title(measured, f'{score.name} by bytes'),
        score,
        _point(dense),
        [_point(row) for row in rows],
      )
      found.append(
        Picture(
          f'{measured.name}_{measured.size}_pareto_{name}.png',
          f'{scores.titled(score.name)} by bytes sent, {measured.name}, '
          f'beside {name}',
          draw,
        )
      )
  return found


def differences(measured: Measured) -> list[Picture]:
  """Returns differences to dense, of the schemes and of each group.

  None is drawn yet.
  """
  if not measured.compared:
    return []
  score = measured.table.score
  found = []
  groups = {'schemes': measured.schemes, **measured.groups}
  for group, rows in groups.items():
    compared = [row for row in rows if row.difference is not None]
    several = len({row.beside for row in compared}) > 1
    apart = several and group in measured.groups and group not in _LINES
    if len(compared) < _FEWEST or apart:
      continue  # of several dense rows the questions tell more
    title = _title(measured, group)
    if group in _LINES:
      _, base = _LINES[group]
      draw = functools.partial(
        drawing.lines,
        title,
        score,
        group,
        base,
        _lines(measured, group, compared),
      )
    else:
      dots = [
        drawing.Dot(
          f'{row.name} ({row.beside})' if several else row.name, row.difference
        )
        for row in compared
        if row.difference is not None
      ]
      draw = functools.partial(drawing.dots, title, score, dots, score.to_dense)
    found.append(
      Picture(
        f'{measured.name}_{measured.size}_{group}.png',
        f'{scores.titled(score.to_dense)}, {measured.name}: {group}',
        draw,
      )
    )
  return found


def questions(measured: Measured) -> list[Picture]:
  """Returns one row beside another, as the table asks.

  None is drawn yet.
  """
  told = answers.of(measured)
  if len(told) < _FEWEST:
    return []
  score = measured.table.score
  draw = functools.partial(
    drawing.dots,
    _title(measured, 'one row beside another'),
    score,
    [drawing.Dot(answer.question.asks, answer.found) for answer in told],
    f'{score.unit} to the other',
  )
  about = f'Differences between rows of {measured.name}: its questions'
  return [
    Picture(f'{measured.name}_{measured.size}_questions.png', about, draw)
  ]


def _title(measured: Measured, what: str) -> str:
  size = measured.size.replace('_', ' ')
  return f'{measured.name} ({size}), {sections.network(measured)}: {what}'


def _point(row: Row) -> drawing.Point:
  runs = row.runs.values()
  return drawing.Point(
    row.name,
    statistics.fmean(
      run['comm']['run_average_sent_bytes_per_step'] for run in runs
    ),
    interval.student(row.ends),
  )


def _lines(
  measured: Measured, group: str, rows: Sequence[Row]
) -> dict[str, list[tuple[float, interval.Interval]]]:
  """Returns the points of each line, ascending.

  The name of a line is that of its rows without the number: `dgc` of
  `dgc_8workers`.
  """
  section, field = _LINES[group][0].split('.')
  found: dict[str, list[tuple[float, interval.Interval]]] = {}
  for row in rows:
    config = measured.table.config(
      measured.table.rows[row.name], measured.size, True
    )
    x = config[section].get(field)
    if x is None:
      raise errors.ConfigError(
        f'row {row.name!r} is of the group {group!r} and must have '
        f'{section}.{field}, got none'
      )
    number = f'{x:g}'
    own = (number, group, number + group)
    parts = [part for part in row.name.split('_') if part not in own]
    name = '_'.join(parts) or config.compression.name
    found.setdefault(name, []).append((x, row.difference))
  return {name: sorted(points) for name, points in found.items()}
