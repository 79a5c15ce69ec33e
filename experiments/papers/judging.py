"""How sure a difference over seeds is, and what it says about a claim.

The claim is that a row is as good as the row beside it, up to the margin of the
score: one point, one BLEU, two percent. An interval that lies above the margin
supports it, one that lies below contradicts it, and all others leave it open.
"""

from collections.abc import Sequence
import math
import statistics
from typing import NamedTuple

from experiments.run import scores
from scipy import stats

SUPPORTED = 'supported'
CONTRADICTED = 'contradicted'
OPEN = 'open'
FAILED = 'failed'
FEWEST = 3  # seeds that a verdict needs
FAR = 10  # margins; a seed that ends further behind has failed

_ALIKE = 1e-9  # of any unit; smaller differences are rounding


def seeds(n: int) -> str:
  """Returns a number of seeds in words."""
  return {1: 'one seed', 2: 'two seeds'}.get(n, f'{n} seeds')


class Interval(NamedTuple):
  """A mean with Student's 95 % interval.

  Attributes:
    mean: of what was measured.
    half: half of the interval's width; None where the numbers do not tell:
      there is one, or all are alike.
    n: how many numbers.
  """

  mean: float
  half: float | None
  n: int

  def __str__(self) -> str:
    if self.half is None:
      return f'{self.mean:+z.2f}' + (', alike' if self.n > 1 else '')
    return f'{self.mean:+z.2f} ± {self.half:.2f}'


def student(numbers: Sequence[float]) -> Interval:
  """Returns the mean with Student's 95 % interval (Biometrika 6, 1908).

  Args:
    numbers: independent, at least one.
  """
  n, mean = len(numbers), statistics.fmean(numbers)
  # Scores are counts: coarse ones can be alike by chance.
  if max(numbers) - min(numbers) < _ALIKE:
    return Interval(mean, None, n)
  quantile = float(stats.t.ppf(0.975, n - 1))
  return Interval(mean, quantile * statistics.stdev(numbers) / math.sqrt(n), n)


def verdict(
  found: Interval | None, score: scores.Score, failed: int = 0, doubt: str = ''
) -> str:
  """Returns whether a row is as good as another up to the margin, in words.

  Args:
    found: the difference; None where no seed has both.
    score: of the difference.
    failed: number of runs of the row that diverged.
    doubt: why either row has no verdict yet, such as 'at one rate'.
  """
  said = _verdict(found, score, score.margin, doubt)
  if failed and said != CONTRADICTED:
    return f'{OPEN}, {failed} failed'
  return said


def better(found: Interval | None, score: scores.Score, doubt: str = '') -> str:
  """Returns likewise whether a row is better than another, without a margin."""
  return _verdict(found, score, 0.0, doubt)


def _verdict(
  found: Interval | None, score: scores.Score, margin: float, doubt: str
) -> str:
  if found is None:
    return f'{OPEN}, not run'
  mean = score.advantage(found.mean)
  if found.n < FEWEST:
    failed = margin and mean < -FAR * margin
    return f'{OPEN}, {seeds(found.n)}{f": {FAILED}" if failed else ""}'
  if found.half is None:
    return f'{OPEN}, alike'
  good = mean - found.half >= -margin
  if not good and mean + found.half >= -margin:
    return OPEN
  said = SUPPORTED if good else CONTRADICTED
  return f'{OPEN}: {said} {doubt}' if doubt else said
