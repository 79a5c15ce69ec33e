"""Late messages: the same updates, and nothing lost."""

import numpy as np
import pytest
from tests.between_sites.oracles import delayed
from tests.between_sites.oracles import walks
from tests.oracles import checks
from tests.oracles import gradient_dropping
from tests.oracles import leaves


@pytest.mark.parametrize('num_workers', walks.WORKERS)
@pytest.mark.parametrize('density', [0.2, 1.0])
def test_the_same_updates_one_step_later(density, num_workers):
  rng = np.random.default_rng(0)
  late = delayed.Delayed(delayed.residual_top_k(density))
  prompt = gradient_dropping.GradientDropping(density, scope='leaf')
  expected = leaves.zeros(checks.draw(rng, 1))[0]
  for _ in range(6):
    gradients = checks.draw(rng, num_workers)
    walks.same([late.step(gradients)], [expected])
    expected = prompt.step(gradients)
    walks.same(late.memory, prompt.pending)


def test_a_rejected_message_is_put_back():
  """Worker 1 has an infinite gradient in the second of four steps."""
  oracle = delayed.Delayed(delayed.residual_top_k(0.5))
  inf = np.inf
  # (gradients, update, what is on its way, memory), of workers 0 and 1.
  for gradients, update, sent, memory in (
    (([4, 1], [2, 3]), [0, 0], ([4, 0], [0, 3]), ([0, 1], [2, 0])),
    (([0, 1], [inf, 0]), [2, 1.5], ([0, 2], [0, 0]), ([0, 0], [2, 0])),
    # The 2 of worker 0 comes back, and is sent with the 3 of this step;
    # worker 1 had kept its 2.
    (([1, 3], [1, 0]), [np.nan] * 2, ([0, 5], [3, 0]), ([1, 0], [0, 0])),
    (([0, 0], [0, 0]), [1.5, 2.5], ([1, 0], [0, 0]), ([0, 0], [0, 0])),
  ):
    (actual,) = oracle.step([[np.float32(g)] for g in gradients])
    np.testing.assert_array_equal(actual, update)
    for w in range(2):
      np.testing.assert_array_equal(oracle.on_its_way[w][0], sent[w])
      np.testing.assert_array_equal(oracle.memory[w][0], memory[w])


@pytest.mark.parametrize('num_workers', walks.WORKERS)
def test_nothing_is_lost_but_what_is_not_finite(num_workers):
  rng = np.random.default_rng(1)
  oracle = delayed.Delayed(delayed.residual_top_k(0.3))
  owed = leaves.zeros(checks.draw(rng, 1))[0]
  rejections = 0
  for step in range(12):
    gradients = checks.draw(rng, num_workers)
    if step in (3, 4, 8):
      gradients[step % num_workers][0].flat[0] = np.nan
    update = oracle.step(gradients)
    for tree in gradients:
      if delayed.finite(tree):
        owed = [x + g for x, g in zip(owed, tree, strict=True)]
    assert oracle.rejected == (step in (4, 5, 9))
    assert delayed.finite(update) != oracle.rejected
    if oracle.rejected:
      rejections += 1
    else:
      owed = [x - num_workers * u for x, u in zip(owed, update, strict=True)]
    pending = [sum(x) for x in zip(*oracle.pending, strict=True)]
    walks.near([pending], [owed])
  assert rejections == 3


def test_the_update_does_not_depend_on_this_gradient():
  rng = np.random.default_rng(2)
  first, *second = (checks.draw(rng, 3) for _ in range(3))
  updates = []
  for gradients in second:
    oracle = delayed.Delayed(delayed.residual_top_k(0.3))
    oracle.step(first)
    updates.append(oracle.step(gradients))
  walks.same(updates[:1], updates[1:])
  assert any(np.any(x) for x in updates[0])
