"""Trainings on a slow network: scores by time and bytes, and where time goes.

Their records are those of `experiments.benchmarks.training`, one file for each
table whose rows were trained, by the table's name.
"""

from collections.abc import Mapping, Sequence
import functools
import pathlib
from typing import Any, NamedTuple

from experiments.papers import page
from experiments.papers import table as papers
from experiments.program import files
from experiments.program import tables
from experiments.results_page import curves
from experiments.results_page import pictures
from experiments.run import machine
from experiments.run import scores

_MIB = 2**20
_SECTION = """\
Every host is a process of its own, behind a network of {rate} each way; all
share the cores of one machine. Seconds are those on the clock, compiling and
{tests} tests included. {sizes} Measured on {place} ({date}), by
"""


class Training(NamedTuple):
  """Rows of a table that were trained on one network.

  Attributes:
    name: of the table.
    table: the table.
    record: of the benchmark, without its rows.
    workers: how many hosts.
    rate: of the network.
    rows: by the name of the table's row.
  """

  name: str
  table: papers.Table
  record: Mapping[str, Any]
  workers: int
  rate: str
  rows: Mapping[str, Mapping[str, Any]]

  @property
  def score(self) -> scores.Score:
    """By which the rows are compared."""
    return self.table.score


def read(
  catalogue: Mapping[str, papers.Table], folder: pathlib.Path
) -> list[Training]:
  """Returns what is on record, one item for each network.

  Args:
    catalogue: the tables by name.
    folder: of the records.

  Raises:
    FileError: a record is damaged.
  """
  found = []
  for name, table in catalogue.items():
    path = folder / f'{name}.json'
    if not path.exists():
      continue
    record = dict(files.read_json(path))
    networks: dict[tuple[int, str], dict[str, Mapping[str, Any]]] = {}
    for row in record.pop('rows'):
      own = networks.setdefault((row['workers'], row['rate']), {})
      own[row['setting'].split(':')[0]] = row
    found += [
      Training(name, table, record, *network, rows)
      for network, rows in networks.items()
    ]
  return found


def title(training: Training) -> str:
  """Which table, and on which network."""
  return f'`{training.name}`, {training.workers} hosts, {training.rate}'


def text(training: Training) -> str:
  """Returns how the rows were measured."""
  record, rows = training.record, training.rows.values()
  tests = sorted({len(row['evaluations']) for row in rows})
  quick = any(row['setting'].endswith(papers.QUICK) for row in rows)
  # A rate that trials chose later is not the one that these had.
  return _SECTION.format(
    rate=training.rate,
    tests=' or '.join(map(str, tests)),
    sizes='Rows are those of the quick setting as it was then, one seed.'
    if quick
    else '',
    place=machine.place(record['environment']),
    date=record['date'],
  )


def results(training: Training) -> str:
  """Returns the table: scores, time of a step and of its parts, the target."""
  score = training.score
  phases = _phases(training)
  lines = []
  for name, row in training.rows.items():
    target = _target(training, name)
    first = target and score.first(row['evaluations'], target)
    lines.append(
      (
        f'`{name}`',
        f'{score.of(row):.{score.digits}f}',
        f'{row["seconds"]:,.0f}',
        f'{row["compile_seconds"]:,.0f}',
        f'{row["step_ms"]:,.0f}',
        *(f'{row["breakdown_ms"][phase]:,.0f}' for phase in phases),
        page.NONE
        if row['wire_bytes'] is None
        else f'{row["wire_bytes"] / _MIB:,.3f}',
        f'{target:.{score.digits}f}' if target else page.NONE,
        f'{first["seconds"]:,.0f}' if first else page.NONE,
        f'{first["sent_bytes"] / _MIB:,.2f}' if first else page.NONE,
      )
    )
  return tables.markdown(
    (
      'row',
      score.label,
      'seconds',
      'compiling',
      'a step, ms',
      *phases,
      'on the wire a step, MiB',
      'target',
      'seconds to it',
      'sent until then, MiB',
    ),
    lines,
  )


def drawn(training: Training) -> list[pictures.Picture]:
  """Returns scores by time and bytes, and parts of a step; none is drawn."""
  score = training.score
  where = f'{training.name}, {training.workers} hosts, {training.rate}'
  stem = f'{training.name}_{training.workers}hosts_{training.rate}'
  lines = [
    curves.Curve(
      name,
      [test['seconds'] for test in row['evaluations']],
      [test['sent_bytes'] for test in row['evaluations']],
      [score.of(test) or 0.0 for test in row['evaluations']],
    )
    for name, row in training.rows.items()
  ]
  parts = {
    name: {phase: row['breakdown_ms'][phase] for phase in _phases(training)}
    for name, row in training.rows.items()
  }
  return [
    pictures.Picture(
      f'{stem}_scores.png',
      f'{scores.titled(score.name)} by time and by bytes sent, {where}',
      functools.partial(curves.by_cost, where, score, lines),
    ),
    pictures.Picture(
      f'{stem}_breakdown.png',
      f'The parts of a step, {where}',
      functools.partial(curves.breakdown, f'{where}: a step', parts),
    ),
  ]


def _target(training: Training, name: str) -> float | None:
  """Of a row: its dense row's score less the margin, if that was trained."""
  dense = training.rows.get(training.table.rows[name].beside or name)
  found = dense and training.score.of(dense)
  return None if found is None else training.score.target(found)


def _phases(training: Training) -> Sequence[str]:
  """Parts of a step, in its order; those that all rows have."""
  first, *others = training.rows.values()
  return [
    phase
    for phase in first['breakdown_ms']
    if all(phase in row['breakdown_ms'] for row in others)
  ]
