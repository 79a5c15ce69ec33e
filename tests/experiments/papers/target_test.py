"""When a target was reached, over seeds of which some never reach it."""

from experiments.papers import target


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
  assert target.first(SOON, 90.0)['sent_bytes'] == 20
  assert target.first(SOON, 91.0)['sent_bytes'] == 40
  assert target.first(SOON, 96.0) is None
  assert target.first(OLD, 1.0) is None


def test_a_seed_that_never_reaches_it_is_later_than_all_others():
  found = target.reached({0: SOON, 1: NEVER, 2: LATE}, 0, 90.0)
  assert found == target.Reached(3, 2, 44, 4.5)
  # Half of them: the median is no number.
  assert target.reached({0: SOON, 1: NEVER}, 0, 90.0) == (2, 1, None, None)
  assert target.reached({0: NEVER}, 0, 90.0) == (1, 0, None, None)


def test_a_run_that_failed_never_reached_it():
  assert target.reached({0: SOON, 1: LATE}, 0, 90.0) == (2, 2, 32, 3.25)
  assert target.reached({0: SOON, 1: LATE}, 1, 90.0) == (3, 2, 44, 4.5)
  assert target.reached({}, 2, 90.0) == (2, 0, None, None)


def test_a_record_without_tests_cannot_tell():
  assert target.reached({0: OLD}, 0, 90.0) is None
  assert target.reached({0: OLD}, 1, 90.0) is None
  assert target.reached({}, 0, 90.0) is None
  assert target.reached({0: OLD, 1: SOON}, 0, 90.0) == (1, 1, 20, 2.0)
