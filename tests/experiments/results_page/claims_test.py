"""What is said of a row follows from its interval, and nothing else."""

from experiments.papers import interval
from experiments.papers import target
from experiments.results_page import claims
from experiments.run import scores
import pytest
from tests.experiments.results_page import made_up


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
  root = tmp_path_factory.mktemp('root')
  made_up.write(root)
  return made_up.measure(root)


@pytest.mark.parametrize(
  ('mean', 'half', 'says'),
  [
    (0.0, 0.5, claims.NO_DIFFERENCE),
    (-1.9, 2.0, claims.NO_DIFFERENCE),
    (-1.9, 2.01, claims.TOO_WIDE),
    (-30.0, 127.0, claims.TOO_WIDE),
    (0.5, 0.5, claims.NO_DIFFERENCE),  # zero is in it, at the end
    (-0.5, 0.5, claims.NO_DIFFERENCE),
    (0.51, 0.5, claims.BETTER),
    (-0.51, 0.5, claims.WORSE),
    (-0.28, None, claims.ALIKE),
    (0.0, None, claims.NO_DIFFERENCE),
  ],
)
def test_a_verdict_is_that_of_the_interval(mean, half, says):
  found = interval.Interval(mean, half, 3)
  assert claims.verdict(found, scores.ACCURACY) == says


def test_one_seed_has_no_verdict():
  for mean in (-4.0, 0.0):
    found = interval.Interval(mean, None, 1)
    assert claims.verdict(found, scores.ACCURACY) == claims.ONE_SEED


@pytest.mark.parametrize(
  ('score', 'mean', 'half', 'says'),
  [
    (scores.PERPLEXITY, 5.1, 5.0, claims.WORSE),
    (scores.PERPLEXITY, -5.1, 5.0, claims.BETTER),
    (scores.PERPLEXITY, 1.0, 4.0, claims.NO_DIFFERENCE),  # percent
    (scores.PERPLEXITY, 1.0, 4.1, claims.TOO_WIDE),
    (scores.WER, 0.51, 0.5, claims.WORSE),
    (scores.WER, -0.51, 0.5, claims.BETTER),
    (scores.WER, 0.5, 2.1, claims.TOO_WIDE),
    (scores.BLEU, 0.51, 0.5, claims.BETTER),
  ],
)
def test_a_verdict_knows_which_way_is_better(score, mean, half, says):
  assert claims.verdict(interval.Interval(mean, half, 3), score) == says


def test_without_a_dense_run_there_is_nothing_to_compare():
  assert claims.verdict(None, scores.ACCURACY) == claims.NOTHING


def test_the_verdicts_on_rows(measured):
  found = {row.name: claims.verdict_of(row) for row in measured.schemes}
  assert found == {
    'same': 'no difference seen',
    'above': 'better',
    'below': 'worse',
    'one': 'one seed: no interval',
    'alike': 'alike in all seeds: no interval',
    'diverged': 'failed',
    'partly': 'no difference seen, 1 failed',
  }


def test_the_claim_holds_where_the_interval_and_all_runs_allow_it(measured):
  found = {row.name: claims.holds(row) for row in measured.schemes}
  assert found == {
    'same': True,
    'above': True,
    'below': False,
    'one': None,
    'alike': None,
    'diverged': False,
    'partly': False,
  }


def test_the_claim_is_told_for_each_ratio(measured):
  found = claims.tested([measured])
  where = 'of `made_up` (quick)'
  assert list(found.items()) == [
    (
      'Rows with a ratio of 1,000 or more, last stage: 7; the claim holds for '
      '3; it does not hold for 2; it cannot be told for 2.',
      [
        f'`same` {where}: +0.03 ± 0.94 (no difference seen)',
        f'`above` {where}: +2.00 ± 0.25 (better)',
        f'`below` {where}: -3.03 ± 0.38 (worse)',
        f'`one` {where}: +0.50 (one seed: no interval)',
        f'`alike` {where}: -1.00, alike (alike in all seeds: no interval)',
        f'`partly` {where}: +0.00 ± 1.27 (no difference seen, 1 failed)',
        # Rows of a group count, too.
        f'`with_it` {where}: -0.03 ± 0.80 (no difference seen)',
      ],
    ),
    (
      'Rows with a ratio of 1,000 or more, whole run: 1; it does not hold for '
      '1.',
      [f'`below` {where}: -3.03 ± 0.38 (worse)'],
    ),
    (
      'Rows with a ratio of 1,000 or more, sent, last stage: 1; it does not '
      'hold for 1.',
      [f'`below` {where}: -3.03 ± 0.38 (worse)'],
    ),
  ]


def test_where_nothing_was_compressed_so_far_it_says_so():
  assert claims.tested([]) == {
    'Rows with a ratio of 1,000 or more, last stage: none yet.': [],
    'Rows with a ratio of 1,000 or more, whole run: none yet.': [],
    'Rows with a ratio of 1,000 or more, sent, last stage: none yet.': [],
  }


def test_the_summary_counts_every_row_once(measured):
  said = claims.summary(measured)
  assert said.startswith(
    '7 rows; *no difference seen*: 2; *better*: 1; *worse*: 1; '
    '*one seed: no interval*: 1; *alike in all seeds: no interval*: 1; '
    '*failed*: 1. 4 runs failed.'
  )


def test_the_cheapest_way_to_the_target(measured):
  # Dense: 92 % on average. `below` ends at 88.97 %; of those that come to 91 %
  # in most of their seeds `same` sends the fewest bytes.
  said = claims.cheapest(measured)
  assert said == (
    'With the fewest bytes `same` came within 1 point of dense, at 91.00 %; '
    'dense took 90.0 times as many.'
  )


def test_bytes_until_the_last_test_are_those_of_the_run(tmp_path):
  made_up.write(tmp_path)
  measured = made_up.measure(tmp_path)
  for run in measured.rows['dense'].runs.values():
    run['evaluations'][1]['test_accuracy'] = 0.5
  assert not claims.cheapest(measured)


def test_the_target_is_a_point_below_the_dense_rows_mean(measured):
  for name in ('dense', 'same'):
    found = target.score(measured.table, measured.record, measured.size, name)
    assert found == pytest.approx(91)


def test_the_table_has_intervals_ratios_and_seeds(measured):
  lines = claims.table(measured).splitlines()
  assert (
    '| `one` | +0.50 | 1 | 1,000.0 | 80.0 | 500.0 | one seed: no interval |'
    in (lines)
  )
  # 4.303 times the standard error of 2.0, 2.1 and 1.9.
  assert (
    '| `above` | +2.00 ± 0.25 | 3 | 1,000.0 | 80.0 | 500.0 | better |' in lines
  )
  assert '| `diverged` | - | 0 | - | - | - | failed |' in lines
