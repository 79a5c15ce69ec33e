"""What the runs of a table say: each row beside its dense row.

Runs are a pandas frame, `record.Record.frame`: a line a run.
"""

from typing import NamedTuple

from experiments.papers import judging
from experiments.papers import metrics
from experiments.papers import table as tables
from experiments.report import rows
from experiments.run import scores
import pandas as pd


class Outcome(NamedTuple):
  """What the runs of a row say.

  Attributes:
    name: of the row.
    row: the row.
    runs: those that are finished, with their seeds as the index.
    failed: how many diverged.
    difference: to the dense row, with the same seeds.
    verdict: whether it is as good as dense; '' where nothing is compared.
    sent_ratio: what one worker of the dense row sends in a whole run, divided
      by what one of this row sends.
    target: a score that is worse than that of dense by the margin.
  """

  name: str
  row: tables.Row
  runs: pd.DataFrame
  failed: int
  difference: judging.Interval | None
  verdict: str
  sent_ratio: float | None
  target: float | None

  def middle(self, column: str, how: str = 'mean') -> float | None:
    """Returns a column's mean or median; None where no run has it."""
    found = column_of(self.runs, column)
    return metrics.MIDDLES[how](list(found)) if len(found) else None

  def reached(self, score: scores.Score) -> str:
    """Returns how many seeds reached the target, and after how many bytes.

    The bytes are those that one worker sent, the median over the seeds that
    reached it. '' where no tests are on record.
    """
    told = [tests for tests in column_of(self.runs, 'tests') if len(tests)]
    if self.target is None or not told:
      return ''
    found = [score.first(tests, self.target) for tests in told]
    sent = pd.Series([test['sent_bytes'] for test in found if test])
    after = f' after {sent.median() / 2**20:,.1f} MiB' if len(sent) else ''
    return f'{len(sent)} of {len(told) + self.failed}{after}'


def outcomes(table: tables.Table, frame: pd.DataFrame) -> dict[str, Outcome]:
  """Returns what the runs of one size say, by row, in the table's order.

  Args:
    table: that has the rows.
    frame: runs of the table in one size.
  """
  found, score = {}, table.score
  for name in [name for name in table.rows if name in set(frame['row'])]:
    row = table.rows[name]
    own, dense = _runs(frame, name), _runs(frame, row.beside or name)
    failed = int((frame['row'] == name).sum()) - len(own)
    by = difference(table, frame, name, metric=_judged_by(table, row))
    ends = column_of(dense, table.metrics[0])
    sent = [
      (column_of(runs, 'comm.run_average_sent_bytes_per_step')).mean()
      * column_of(runs, 'steps').mean()
      for runs in (dense, own)
    ]
    found[name] = Outcome(
      name,
      row,
      own,
      failed,
      by,
      judging.verdict(by, score, failed, doubt(frame, name, row.beside))
      if row.beside and score
      else '',
      sent[0] / sent[1] if sent[0] > 0 and sent[1] > 0 else None,
      score.target(ends.mean()) if score and len(ends) else None,
    )
  return found


def _judged_by(table: tables.Table, row: tables.Row) -> str:
  """Returns a metric: of one worker's model, where models differ."""
  own = [each for each in table.metrics if each.startswith('worker_')]
  local = 'compression.local_gradient' in row.fields
  return own[0] if own and local else table.metrics[0]


def difference(
  table: tables.Table,
  frame: pd.DataFrame,
  name: str,
  other: str = '',
  metric: str = '',
) -> judging.Interval | None:
  """Returns how far a row is from another, in the unit of the score.

  Paired by seed; None where no seed has both, or nothing is compared.

  Args:
    table: of both.
    frame: runs of one size.
    name: of the row.
    other: name of the other row; '' is the dense row that it stands beside.
    metric: a score, of `metrics.METRICS`; '' is the table's first.
  """
  metric, other = metric or table.metrics[0], other or table.rows[name].beside
  score = metrics.METRICS[metric].score
  if not other or score is None:
    return None
  known = ['row', 'status', 'seed', *({metric} & {*frame})]
  mine, its = (column_of(_runs(frame[known], n), metric) for n in (name, other))
  seeds = sorted(mine.index.intersection(its.index))
  found = [score.difference(mine[seed], its[seed]) for seed in seeds]
  return judging.student(found) if found else None


def doubt(frame: pd.DataFrame, *names: str) -> str:
  """Returns why rows have no verdict yet; '' where none has a reason.

  Args:
    frame: runs; their column `doubt`, if there is one, has the reasons.
    names: of the rows.
  """
  found = column_of(frame[frame['row'].isin(names)], 'doubt')
  return next(filter(None, found), '')


def column_of(runs: pd.DataFrame, name: str) -> pd.Series:
  """Returns a column, of the runs that have it."""
  return runs[name].dropna() if name in runs else pd.Series(dtype=float)


def _runs(frame: pd.DataFrame, name: str) -> pd.DataFrame:
  own = frame[(frame['row'] == name) & (frame['status'] == rows.FINISHED)]
  return own.set_index('seed')
