"""Gradient dropping beside its NumPy oracle, and its value formats."""

from __future__ import annotations

import gradsparse as gs
import numpy as np
import pytest
from tests import replay
from tests.oracles import checks
from tests.oracles import gradient_dropping


@pytest.mark.parametrize(
  'scope, num_workers',
  [
    ('global', 3),
    pytest.param('leaf', 3, marks=pytest.mark.slow),
    pytest.param('global', 8, marks=pytest.mark.slow),
    pytest.param('leaf', 5, marks=pytest.mark.slow),
  ],
)
def test_it_does_what_its_oracle_does(scope, num_workers):
  tx = gs.gradient_dropping(
    0.05, scope=scope, axis_name=replay.AXIS, min_size=0
  )
  oracle = gradient_dropping.GradientDropping(0.05, scope=scope)
  for step in replay.replay(tx, replay.drawn_steps(num_workers)):
    for leaf, expected in enumerate(oracle.step(step.grads)):
      checks.close(step.mean[leaf], expected)
      for w in range(num_workers):
        checks.close(step.delivered[w][leaf], oracle.delivered[w][leaf])
        checks.close(step.pending[w][leaf], oracle.pending[w][leaf])


@pytest.mark.slow
def test_a_thick_message_changes_the_transport_only():
  """Four workers at 0.5 use a dense all-reduce; the selection stays."""
  tx = gs.gradient_dropping(0.5, axis_name=replay.AXIS)
  oracle = gradient_dropping.GradientDropping(0.5)
  for step in replay.replay(tx, replay.drawn_steps(4, count=2)):
    for leaf, expected in enumerate(oracle.step(step.grads)):
      checks.close(step.mean[leaf], expected)
      checks.close(step.pending[1][leaf], oracle.pending[1][leaf])
  params = [np.zeros(s, np.float32) for s in replay.SHAPES]
  dense = gs.plan(tx, params, 4)
  assert dense.payload_bytes == dense.dense_bytes
  assert gs.plan(tx, params, 3).payload_bytes < dense.dense_bytes


def test_exponent4_sends_powers_of_two_and_keeps_the_rest():
  tx = gs.gradient_dropping(0.2, values='exponent4', axis_name=replay.AXIS)
  (step,) = replay.replay(tx, replay.drawn_steps(2, count=1))
  for w in range(2):
    for leaf, sent in enumerate(step.delivered[w]):
      nonzero = np.abs(sent[sent != 0])
      np.testing.assert_array_equal(np.log2(nonzero) % 1, 0)
      checks.close(sent + step.pending[w][leaf], step.grads[w][leaf])
