"""Intervals over seeds, and what they say about a claim with a margin."""

from experiments.papers import judging
from experiments.run import scores
import pytest


def test_students_interval():
  # 1, 2 and 3: 4.303 standard errors of 1 / sqrt(3).
  found = judging.student([1, 2, 3])
  assert found.mean == 2 and found.half == pytest.approx(2.484, abs=1e-3)
  assert str(found) == '+2.00 ± 2.48' and found.n == 3


def test_one_number_or_equal_ones_have_no_interval():
  assert judging.student([-0.001]) == (-0.001, None, 1)
  assert str(judging.student([-0.001])) == '+0.00'
  assert str(judging.student([2, 2])) == '+2.00, alike'


@pytest.mark.parametrize(
  ('mean', 'half', 'n', 'says'),
  [
    (0.0, 0.9, 3, 'supported'),
    (5.0, 5.9, 3, 'supported'),
    (0.0, 1.1, 3, 'open'),
    (-1.5, 1.8, 3, 'open'),
    (-3.0, 1.9, 3, 'contradicted'),
    (-3.0, 0.1, 2, 'open, two seeds'),
    (0.5, None, 1, 'open, one seed'),
    (-9.9, None, 1, 'open, one seed'),
    (-10.1, None, 1, 'open, one seed: failed'),
    (-0.8, None, 3, 'open, alike'),
  ],
)
def test_the_verdict_is_where_the_interval_lies(mean, half, n, says):
  found = judging.Interval(mean, half, n)
  assert judging.verdict(found, scores.ACCURACY) == says
  worse = judging.Interval(-mean, half, n)
  assert judging.verdict(worse, scores.WER) == says


def test_the_margin_is_that_of_the_score():
  found = judging.Interval(1.5, 0.3, 3)
  assert judging.verdict(found, scores.PERPLEXITY) == 'supported'
  assert judging.verdict(found, scores.WER) == 'contradicted'


def test_a_run_that_diverged_is_never_supported():
  found = judging.Interval(0.0, 0.1, 3)
  assert judging.verdict(found, scores.ACCURACY, 1) == 'open, 1 failed'
  assert judging.verdict(None, scores.ACCURACY, 3) == 'open, 3 failed'
  assert judging.verdict(None, scores.ACCURACY) == 'open, not run'


def test_better_has_no_margin():
  for mean, says in ((2, 'supported'), (0.5, 'open'), (-2, 'contradicted')):
    found = judging.Interval(mean, 1.0, 3)
    assert judging.better(found, scores.ACCURACY) == says
  one = judging.Interval(-20.0, None, 1)
  assert judging.better(one, scores.ACCURACY) == 'open, one seed'
