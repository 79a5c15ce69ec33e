"""What it takes to come to a target score: bytes and seconds.

A target is the final score of the dense row, less the margin of the score (or
more, where less is better). That is of another row than the one which is asked
about, so it is no column of `metrics`.
"""

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import Any, NamedTuple

from experiments.papers import record as records
from experiments.papers import table as tables
from experiments.run import scores


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
  """Returns the target of a row; None if its dense row was not run.

  Args:
    table: that has the row, and compares its rows by a score.
    record: of what was measured.
    size: of `table.SIZES`.
    name: of the row; a dense one has the target of those beside it.
  """
  runs = record.runs(size, table.rows[name].beside or name)
  finals = [table.score.of(run['final']) for run in runs.values()]
  found = [final for final in finals if final is not None]
  return table.score.target(statistics.fmean(found)) if found else None


def reached(
  runs: Mapping[int, Mapping[str, Any]],
  failures: int,
  by: scores.Score,
  target: float,
) -> Reached | None:
  """Returns how a row came to a target.

  Args:
    runs: of the row, by seed.
    failures: how many of its runs diverged.
    by: the score that is looked at.
    target: of that score.

  Returns:
    None if there are runs, but no tests of them on record, as in older records;
    or nothing at all.
  """
  told = [run for run in runs.values() if run.get('evaluations')]
  seeds = len(told) + failures
  if not seeds or (runs and not told):
    return None
  tests = [by.first(run['evaluations'], target) for run in told]
  found = [test for test in tests if test is not None]

  def median(name: str) -> float | None:
    return _median([test[name] for test in found], seeds)

  return Reached(seeds, len(found), median('sent_bytes'), median('seconds'))


def _median(numbers: Sequence[float], count: int) -> float | None:
  """Returns the median of numbers and of as many infinities as are missing."""
  missing = [math.inf] * (count - len(numbers))
  middle = statistics.median([*numbers, *missing])
  return middle if math.isfinite(middle) else None
