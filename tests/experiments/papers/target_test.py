"""When a target was reached, over seeds of which some never reach it."""

from experiments.papers import target
from experiments.run import scores


def _run(*tests):
  """Of (accuracy, bytes, seconds); the step is of no interest."""
  return {
    'evaluations': [
      {'step': i, 'test_accuracy': a, 'sent_bytes': b, 'seconds': s}
      for i, (a, b, s) in enumerate(tests, 1)
    ]
  }


SOON = _run((0.5, 10, 1.0), (0.9, 20, 2.0), (0.8, 30, 3.0), (0.95, 40, 4.0))
LATE = _run((0.5, 10, 1.0), (0.6, 20, 2.0), (0.7, 30, 3.0), (0.9, 44, 4.5))
NEVER = _run((0.5, 10, 1.0), (0.6, 20, 2.0))
OLD = {}  # of a record without tests


def test_the_first_test_counts_though_a_later_one_is_worse():
  tests, first = SOON['evaluations'], scores.ACCURACY.first
  assert first(tests, 90.0)['sent_bytes'] == 20
  assert first(tests, 91.0)['sent_bytes'] == 40
  assert first(tests, 96.0) is None
  assert first([], 1.0) is None


def test_where_less_is_better_the_first_that_is_low_enough_counts():
  tests = [
    {'step': 1, 'test_loss': 6.0},  # a test without the score
    {'step': 2, 'test_perplexity': 100.0},
    {'step': 3, 'test_perplexity': 79.0},
    {'step': 4, 'test_perplexity': 81.0},
  ]
  run = {
    'evaluations': [t | {'sent_bytes': t['step'], 'seconds': 0} for t in tests]
  }
  found = target.reached({0: run}, 0, scores.PERPLEXITY, 80.0)
  assert (found.reached, found.sent_bytes) == (1, 3)
  assert target.reached({0: run}, 0, scores.PERPLEXITY, 78.0).reached == 0
  assert target.reached({0: run}, 0, scores.PERPLEXITY, 100.0).sent_bytes == 2


def _reached(runs, failures):
  return target.reached(runs, failures, scores.ACCURACY, 90.0)


def test_a_seed_that_never_reaches_it_is_later_than_all_others():
  found = _reached({0: SOON, 1: NEVER, 2: LATE}, 0)
  assert found == target.Reached(3, 2, 44, 4.5)
  # Half of them: the median is no number.
  assert _reached({0: SOON, 1: NEVER}, 0) == (2, 1, None, None)
  assert _reached({0: NEVER}, 0) == (1, 0, None, None)


def test_a_run_that_failed_never_reached_it():
  assert _reached({0: SOON, 1: LATE}, 0) == (2, 2, 32, 3.25)
  assert _reached({0: SOON, 1: LATE}, 1) == (3, 2, 44, 4.5)
  assert _reached({}, 2) == (2, 0, None, None)


def test_a_record_without_tests_cannot_tell():
  assert _reached({0: OLD}, 0) is None
  assert _reached({0: OLD}, 1) is None
  assert _reached({}, 0) is None
  assert _reached({0: OLD, 1: SOON}, 0) == (1, 1, 20, 2.0)
