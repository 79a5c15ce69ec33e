"""How sure a mean over seeds is."""

from collections.abc import Callable, Mapping, Sequence
import math
import operator
import statistics
from typing import NamedTuple

from scipy import stats

ALIKE = 1e-9  # of any unit; below is rounding


class Interval(NamedTuple):
  """A mean, and where the true one lies.

  Attributes:
    mean: of what was measured.
    half: the true mean is within this of `mean`; None where the numbers do
      not tell: there is one, or all are alike.
    n: how many numbers.
  """

  mean: float
  half: float | None
  n: int

  def __str__(self) -> str:
    if self.half is None:
      return f'{self.mean:+z.2f}' + (', alike' if self.n > 1 else '')
    return f'{self.mean:+z.2f} ± {self.half:.2f}'


def student(numbers: Sequence[float], confidence: float = 0.95) -> Interval:
  """Returns the mean with Student's interval.

  Args:
    numbers: independent, at least one.
    confidence: of the interval.

  References:
    Student, The probable error of a mean, Biometrika 6, 1908.
  """
  n, mean = len(numbers), statistics.fmean(numbers)
  # Scores are counts: a coarse one can come out alike by chance.
  if max(numbers) - min(numbers) < ALIKE:
    return Interval(mean, None, n)
  quantile = float(stats.t.ppf((1 + confidence) / 2, n - 1))
  return Interval(mean, quantile * statistics.stdev(numbers) / math.sqrt(n), n)


def paired(
  mine: Mapping[int, float],
  other: Mapping[int, float],
  difference: Callable[[float, float], float] = operator.sub,
) -> Interval | None:
  """Returns the interval of the difference between two rows.

  Args:
    mine: a number a seed.
    other: likewise, of the row that mine is compared to.
    difference: of a number of mine and one of the other.

  Returns:
    Of the seeds that both have; None where there are none.
  """
  seeds = sorted({*mine} & {*other})
  if not seeds:
    return None
  return student([difference(mine[seed], other[seed]) for seed in seeds])
