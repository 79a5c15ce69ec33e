"""DGC beside its NumPy oracle: heavy ball and Nesterov, masking on and off."""

from __future__ import annotations

import functools
import itertools

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import checks
from tests.oracles import dgc

# Dense by DGC's own rule: fewer than two dimensions.
DENSE = tuple(i for i, s in enumerate(replay.SHAPES) if len(s) < 2)


def compare(num_workers, *, min_size=None, dense=DENSE, scope='leaf', **kwargs):
  tx = gs.dgc(
    0.1, axis_name=replay.AXIS, min_size=min_size, scope=scope, **kwargs
  )
  oracle = dgc.DeepGradientCompression(0.1, dense=dense, scope=scope, **kwargs)
  for step in replay.replay(tx, replay.drawn_steps(num_workers)):
    mean = oracle.step(step.grads)
    momentum = replay.unstack(step.state.memory.momentum)
    for leaf, expected in enumerate(mean):
      checks.close(step.mean[leaf], expected)
      for w in range(num_workers):
        checks.close(momentum[w][leaf], oracle.u[w][leaf])
        if leaf not in dense:
          checks.close(step.delivered[w][leaf], oracle.delivered[w][leaf])
          checks.close(step.pending[w][leaf], oracle.pending[w][leaf])


# In the fast suite tests/laws_test.py has heavy ball with masking.
@pytest.mark.parametrize(
  'nesterov, factor_masking',
  marks.few(itertools.product([False, True], repeat=2), (True, False)),
)
def test_three_workers_do_what_the_oracle_does(nesterov, factor_masking):
  compare(3, nesterov=nesterov, factor_masking=factor_masking)


@pytest.mark.slow
def test_every_leaf_compressed():
  compare(2, min_size=0, dense=())


@pytest.mark.slow
def test_global_scope():
  compare(4, scope='global', dense=())


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [1, 5, 6, 7, 8])
def test_any_number_of_workers(num_workers):
  compare(num_workers)


@pytest.mark.slow
@pytest.mark.parametrize('momentum', [0.0, 0.5])
def test_at_density_one_masking_makes_heavy_ball_plain_sgd(momentum):
  """Masking clears u each step; what is delivered is the gradient."""
  tx = gs.dgc(1.0, momentum=momentum, axis_name=replay.AXIS, min_size=0)
  for step in replay.replay(tx, replay.drawn_steps(2, count=3)):
    for leaf, mean in enumerate(step.mean):
      expected = np.mean([g[leaf] for g in step.grads], axis=0)
      checks.close(mean, expected)


@pytest.mark.slow
def test_at_density_one_without_masking_it_is_momentum_sgd():
  tx = gs.dgc(1.0, factor_masking=False, axis_name=replay.AXIS, min_size=0)
  u = [np.zeros(s, np.float32) for s in replay.SHAPES]
  for step in replay.replay(tx, replay.drawn_steps(2, count=3)):
    for leaf, mean in enumerate(step.mean):
      u[leaf] = 0.9 * u[leaf] + np.mean([g[leaf] for g in step.grads], axis=0)
      checks.close(mean, u[leaf])


@pytest.mark.slow
def test_a_schedule_samples_its_threshold_for_the_density_of_the_step():
  """Between two rungs: the sample is all, so exactly k are sent."""

  def density(step):
    return 0.5 / (1 + step)

  density.ladder = (0.2, 0.6)
  tx = gs.dgc(
    density,
    momentum=0.0,
    sample_rate=1.0,
    axis_name=None,
    min_size=0,
  )
  grads = np.random.default_rng(0).normal(size=200).astype(np.float32)
  state, owed = tx.init(grads), np.zeros(200, np.float32)
  step = jax.jit(tx.step).lower(grads, state).compile(replay.QUICKLY)
  for k in (100, 50, 34, 25):
    owed += grads
    expected = np.argsort(-np.abs(owed), kind='stable')[:k]
    mean, state, _ = step(grads, state)
    assert set(np.flatnonzero(mean)) == set(expected)
    owed -= mean
    checks.close(gs.pending(state), owed)


@pytest.mark.parametrize('nesterov', [False, True])
def test_velocity_that_is_not_sent_decays(nesterov):
  m, decay = np.float32(0.5), np.float32(0.9)
  tx = gs.dgc(
    0.25,
    momentum=0.5,
    nesterov=nesterov,
    error_decay=0.9,
    axis_name=None,
    min_size=0,
  )
  u, v = np.zeros((2, 4), np.float32), np.zeros((2, 4), np.float32)
  state = tx.init({'w': u})
  for g in np.float32(np.random.default_rng(0).normal(size=(5, 2, 4))):
    u = m * (u + g) if nesterov else m * u + g
    v = decay * v + u + (g if nesterov else 0)
    sent = np.abs(v) >= np.sort(np.abs(v), axis=None)[-2]
    updates, state = tx.update({'w': g}, state)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    close(updates['w'], np.where(sent, v, 0))
    u, v = np.where(sent, 0, u), np.where(sent, 0, v)
    close(gs.pending(state)['w'], v)
    metrics = gs.metrics(state)
    close(metrics['forgotten_norm'], 0.1 * metrics['residual_norm'])


def test_a_switch_has_the_new_schemes_decay():
  old, new = (
    make(0.25, error_decay=decay, axis_name=None, min_size=0)
    for make, decay in ((gs.gradient_dropping, 0.9), (gs.dgc, 0.5))
  )
  grads = {'w': jnp.arange(8.0).reshape(2, 4)}
  _, state = old.update(grads, old.init(grads))
  for tx in (new, gs.dgc(0.25, axis_name=None, min_size=0)):
    there = gs.switch(old, tx, state)
    np.testing.assert_array_equal(
      gs.pending(there)['w'], gs.pending(state)['w']
    )
    old, (_, state) = tx, tx.update(grads, there)
