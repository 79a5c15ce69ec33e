"""Buckets of examples of about the same length, and what a step takes."""

import itertools

from experiments.data import buckets
from experiments.program import errors
import numpy as np
import pytest


def _lengths(count=500):
  return np.random.default_rng(0).integers(3, 60, count)


def _plan(lengths=None, **changes):
  settings = {
    'batch_size': lambda length: 120 // length,
    'num_buckets': 4,
    'multiple': 4,
    'num_workers': 3,
    'seed': 0,
  }
  lengths = _lengths() if lengths is None else lengths
  return buckets.Plan(lengths, **{**settings, **changes})


def _epoch(plan, epoch):
  first = epoch * plan.steps_per_epoch
  return [plan.at(first + step) for step in range(plan.steps_per_epoch)]


def test_examples_fit_into_their_buckets_and_fill_the_budget():
  plan, lengths = _plan(), _lengths()
  assert len(plan.lengths) == 4
  assert all(length % 4 == 0 for length in plan.lengths)
  assert plan.batch_sizes == tuple(120 // length for length in plan.lengths)
  for bucket, rows in _epoch(plan, 0):
    assert rows.shape == (3, plan.batch_sizes[bucket])
    assert lengths[rows].max() <= plan.lengths[bucket]
  # Little padding: all but what was handed on from a shorter bucket.
  below = (0, *plan.lengths)
  short = sum(
    (lengths[rows] <= below[bucket]).sum() for bucket, rows in _epoch(plan, 0)
  )
  assert short < 3 * sum(plan.batch_sizes)


@pytest.mark.parametrize('epoch', [0, 1, 5])
def test_an_epoch_has_each_example_once_but_for_less_than_a_step(epoch):
  plan = _plan()
  seen = np.concatenate([rows.ravel() for _, rows in _epoch(plan, epoch)])
  assert len(seen) == len(set(seen.tolist())) == 500 - plan.left_out
  assert 0 < plan.left_out < 3 * plan.batch_sizes[-1]


def test_a_step_is_a_pure_function_of_the_seed():
  plan, other = _plan(), _plan()
  steps = [plan.at(step) for step in range(3 * plan.steps_per_epoch)]
  for step in reversed(range(len(steps))):
    bucket, rows = other.at(step)
    assert bucket == steps[step].bucket
    np.testing.assert_array_equal(rows, steps[step].rows)
  orders = [
    [step.bucket for step in _epoch(made, epoch)]
    for made, epoch in ((plan, 0), (plan, 1), (_plan(seed=1), 0))
  ]
  assert orders[0] != orders[1] and orders[0] != orders[2]
  missing = [
    set(range(500)) - {int(r) for s in _epoch(plan, e) for r in s.rows.ravel()}
    for e in range(2)
  ]
  assert missing[0] != missing[1]


def test_a_position_counts_examples():
  plan = _plan()
  steps = plan.steps_per_epoch
  assert plan.position(0) == (0, 0, 0)
  assert plan.position(steps) == (steps, 1, 0)
  before = sum(plan.at(steps + step).rows.size for step in range(4))
  assert plan.position(steps + 4) == (steps + 4, 1, before)


def test_the_longest_are_never_left_out_for_good():
  # A single long example fills no step, so it shares one with shorter ones.
  lengths = np.array([4] * 50 + [100])
  plan = _plan(lengths, num_workers=1, batch_size=lambda length: 5)
  seen = {
    int(row) for epoch in range(9) for s in _epoch(plan, epoch)
    for row in s.rows.ravel()
  }  # fmt: skip
  assert 50 in seen
  assert plan.lengths[-1] == 100 and plan.left_out == 1


def test_too_few_examples_are_a_clear_error():
  with pytest.raises(errors.ConfigError, match='6 examples a step; .* has 5'):
    _plan(np.full(5, 60))
  assert _plan(np.full(6, 60)).steps_per_epoch == 1
  with pytest.raises(errors.ConfigError, match='training set has 0'):
    _plan(np.empty(0, int))


@pytest.mark.parametrize('seed', range(5))
def test_no_other_padded_lengths_have_less_padding(seed):
  rng = np.random.default_rng(seed)
  lengths = np.minimum(rng.geometric(0.08, 40), 39)
  plan = _plan(lengths, batch_size=lambda _: 1, num_workers=1, num_buckets=3)
  longest = -(-int(lengths.max()) // 4) * 4

  def padding(padded):
    return np.array(padded)[np.searchsorted(padded, lengths)].sum()

  others = itertools.combinations(range(4, longest, 4), 2)
  assert padding(plan.lengths) == min(
    padding([*other, longest]) for other in others
  )


def test_one_length_is_one_bucket():
  plan = _plan(np.full(60, 7))
  assert plan.lengths == (8,) and plan.batch_sizes == (15,)


def test_another_axis_holds_all_that_a_batch_can_have():
  lengths, values = np.array([3, 4, 9, 10]), np.array([7, 1, 2, 8])
  assert buckets.largest_so_far(values, lengths, (4, 9, 12)) == [7, 7, 8]


@pytest.mark.parametrize('processes', [1, 3])
def test_a_walk_has_each_example_once(processes):
  lengths = _lengths(101)
  seen, shapes = [], set()
  for process in range(processes):
    for length, rows, count in buckets.walk(
      lengths,
      batch_size=lambda length: 200 // length,
      num_buckets=3,
      multiple=4,
      process=process,
      processes=processes,
    ):
      assert len(rows) == 200 // length and 1 <= count <= len(rows)
      assert lengths[rows].max() <= length
      assert (rows[count:] == rows[0]).all()
      seen += rows[:count].tolist()
      shapes.add(length)
  assert sorted(seen) == list(range(101))
  assert len(shapes) == 3
