"""Student's interval against values of the books."""

from experiments.papers import interval
import numpy as np
import pytest
from scipy import stats


@pytest.mark.parametrize(
  ('n', 'quantile'),
  # Of any table of Student's t, two-sided 95 %: 1, 2, 4 and 9 degrees.
  [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262)],
)
def test_the_half_width_has_the_quantile_of_the_tables(n, quantile):
  numbers = np.arange(n, dtype=float)
  found = interval.student(numbers.tolist())
  error = np.std(numbers, ddof=1) / np.sqrt(n)
  assert found.mean == (n - 1) / 2 and found.n == n
  assert found.half == pytest.approx(quantile * error, rel=1e-3)


def test_it_is_scipys_confidence_interval():
  a, b = [93.1, 92.8, 93.4, 92.9], [92.9, 92.9, 92.7, 92.6]
  test = stats.ttest_rel(a, b).confidence_interval(0.95)
  found = interval.paired(dict(enumerate(a)), dict(enumerate(b)))
  assert found.mean - found.half == pytest.approx(test.low)
  assert found.mean + found.half == pytest.approx(test.high)
  wide = interval.student([x - y for x, y in zip(a, b, strict=True)], 0.99)
  assert wide.half > found.half


def test_only_seeds_that_both_have_are_paired():
  found = interval.paired({0: 1.0, 1: 5.0, 7: 9.0}, {7: 8.0, 1: 2.0, 3: 0.0})
  assert (found.mean, found.n) == (2.0, 2)
  assert interval.paired({0: 1.0}, {1: 1.0}) is None


def test_one_seed_has_no_interval():
  found = interval.paired({3: 1.5}, {3: 1.0})
  assert found.half is None and str(found) == '+0.50'


def test_seeds_that_are_all_alike_have_none_either():
  found = interval.student([98.1 - 98.0, 97.1 - 97.0, 0.1])
  assert found.half is None and found.n == 3 and str(found) == '+0.10, alike'
  assert interval.student([0.1, 0.1, 0.1001]).half is not None


def test_a_mean_that_rounds_to_zero_has_no_minus():
  assert str(interval.student([-1e-9])) == '+0.00'
