"""What it takes to come to a target score: bytes and seconds.

A target is the final top-1 accuracy of the dense row, less a point. That is of
another row than the one which is asked about, so it is no column of `metrics`.
"""

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any, NamedTuple

from experiments.papers import metrics
from experiments.papers import record as records
from experiments.papers import table as tables

POINTS_BELOW = 1.0


class Reached(NamedTuple):
  """How the seeds of a row came to a target.

  Medians are over all seeds; one that never came to it counts as later than
  all others. None where that leaves no number.

  Attributes:
    seeds: how many can tell: those whose tests were recorded, and those that
      diverged.
    reached: how many came to it.
    sent_bytes: median of what one worker had sent until then.
    seconds: median of the time until then.
  """

  seeds: int
  reached: int
  sent_bytes: float | None
  seconds: float | None


def score(
  table: tables.Table, record: records.Record, size: str, name: str
) -> float | None:
  """Returns the target of a row in percent; None if its dense row was not run.

  Args:
    table: that has the row.
    record: of what was measured.
    size: of `table.SIZES`.
    name: of the row; a dense one has the target of those beside it.
  """
  runs = record.runs(size, table.rows[name].beside or name)
  if not runs:
    return None
  scores = [metrics.METRICS['top1'].of(run) for run in runs.values()]
  return statistics.fmean(scores) - POINTS_BELOW


def first(run: Mapping[str, Any], percent: float) -> Mapping[str, Any] | None:
  """Returns the first recorded test of a run that reaches a target."""
  for test in run.get('evaluations', ()):
    if 100 * test['test_accuracy'] >= percent:
      return test
  return None


def reached(
  runs: Mapping[int, Mapping[str, Any]], failures: int, percent: float
) -> Reached | None:
  """Returns how a row came to a target.

  Args:
    runs: of the row, by seed.
    failures: how many of its runs diverged.
    percent: the target.

  Returns:
    None if there are runs, but no tests of them on record, as in older records;
    or nothing at all.
  """
  told = [run for run in runs.values() if run.get('evaluations')]
  seeds = len(told) + failures
  if not seeds or (runs and not told):
    return None
  found = [test for run in told if (test := first(run, percent)) is not None]

  def median(name: str) -> float | None:
    return _median([test[name] for test in found], seeds)

  return Reached(seeds, len(found), median('sent_bytes'), median('seconds'))


def _median(numbers: Sequence[float], count: int) -> float | None:
  """Returns the median of numbers and of as many infinities as are missing."""
  missing = [math.inf] * (count - len(numbers))
  middle = statistics.median([*numbers, *missing])
  return middle if math.isfinite(middle) else None
