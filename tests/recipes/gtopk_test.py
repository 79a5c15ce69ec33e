"""gTop-k beside its NumPy oracle: all topologies, one to eight workers."""

from __future__ import annotations

import gradsparse as gs
import numpy as np
import pytest
from tests import replay
from tests.oracles import checks
from tests.oracles import gtopk

ALL = [
  (topology, put_back, p)
  for topology in ('butterfly', 'tree', 'allgather')
  for put_back in ('exact', 'paper')
  for p in range(1, 9)
]


# In the fast suite tests/laws_test.py has the default on three workers.
@pytest.mark.slow
@pytest.mark.parametrize('topology, put_back, workers', ALL)
def test_it_does_what_its_oracle_does(topology, put_back, workers):
  tx = gs.gtopk(
    0.05, topology=topology, put_back=put_back, axis_name=replay.AXIS
  )
  oracle = gtopk.GTopK(0.05, topology=topology, put_back=put_back)
  for step in replay.replay(tx, replay.drawn_steps(workers)):
    sent = 0
    for leaf, expected in enumerate(oracle.step(step.grads)):
      checks.close(step.mean[leaf], expected)
      sent += np.count_nonzero(step.mean[leaf])
      for w in range(workers):
        checks.close(step.pending[w][leaf], oracle.pending[w][leaf])
        if put_back == 'exact':
          checks.close(step.delivered[w][leaf], oracle.delivered[w][leaf])
    assert sent <= 13  # k = ceil(0.05 * 252)


@pytest.mark.slow
def test_the_papers_put_back_loses_gradient_and_the_exact_one_does_not():
  """An index dropped at an inner merge but present in the final mask."""
  big, small = 10.0, 1.0
  grads = [np.zeros(8, np.float32) for _ in range(4)]
  # Ranks 0 and 1 merge first: index 5 loses against 0 and 1 there, but comes
  # back with ranks 2 and 3.
  grads[0][[0, 5]] = big, small
  grads[1][[1, 0]] = big, big
  grads[2][[5, 6]] = big * 3, small
  grads[3][[5, 7]] = big * 3, small
  lost = {}
  for put_back in ('exact', 'paper'):
    tx = gs.gtopk(0.25, put_back=put_back, axis_name=replay.AXIS)
    trees = [[g] for g in grads]
    (step,) = replay.replay(tx, [(trees, trees)])
    owed = sum(p[0] for p in step.pending)
    lost[put_back] = sum(grads) - owed - 4 * step.mean[0]
  np.testing.assert_allclose(lost['exact'], 0, atol=1e-6)
  assert lost['paper'][5] == small


@pytest.mark.parametrize('name', ['bfloat16', 'exponent4'])
def test_rounded_values_are_refused(name):
  with pytest.raises(ValueError, match=f'partial sums.*{name}'):
    gs.gtopk(0.1, values=name, axis_name='workers')
