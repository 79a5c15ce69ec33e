"""The variance-based schemes where the sum that was not sent decays."""

import functools

import gradsparse as gs
import numpy as np
import pytest

_ALPHA, _TAU = 1.0, np.float32(0.75)


@pytest.mark.parametrize('hybrid', [False, True])
def test_a_sum_that_decays_keeps_its_ratio_to_its_variance(hybrid):
  zeta, decay = np.float32(0.99), np.float32(0.5)
  known = {'decay': 0.99, 'error_decay': 0.5, 'axis_name': None}
  tx = (
    gs.variance_strom(_ALPHA, threshold=float(_TAU), **known)
    if hybrid
    else gs.variance_based(_ALPHA, values='float32', **known)
  )
  r, v = np.zeros((2, 40), np.float32)
  state, sent_entries = tx.init({'w': r}), 0
  rng = np.random.default_rng(0)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  for g in rng.normal(size=(6, 40)).astype(np.float32):
    squares = rng.uniform(0.2, 2, size=40).astype(np.float32)
    r, v = decay * r + g, decay * decay * v + squares
    sent = np.where(r * r > _ALPHA * v, r, 0)
    if hybrid:
      sent = np.where((sent != 0) & (np.abs(r) > _TAU), np.sign(r) * _TAU, 0)
    updates, state = tx.update({'w': g}, state, second_moment={'w': squares})
    close(updates['w'], sent)
    v = zeta * np.where(r == sent, 0, np.maximum(v + sent * (sent - 2 * r), 0))
    r, sent_entries = r - sent, sent_entries + np.count_nonzero(sent)
    close(gs.pending(state)['w'], r)
    metrics = gs.metrics(state)
    close(metrics['forgotten_norm'], 0.5 * metrics['residual_norm'])
  assert 20 < sent_entries < 220


def test_a_common_factor_changes_nothing_that_the_criterion_asks():
  # Nothing new comes in the second step: what waits is half as large, and so
  # is its standard deviation.
  squares = np.linspace(0.5, 2, 40).astype(np.float32)
  zeros = {'w': np.zeros(40, np.float32)}
  for factor in (0.9, 1.1):
    tx = gs.variance_based(
      1.0, decay=1.0, values='float32', error_decay=0.5, axis_name=None
    )
    state = tx.init(zeros)
    memory = state.memory._replace(
      residual={'w': factor * np.sqrt(squares)}, variance={'w': squares}
    )
    updates, _ = tx.update(
      zeros, state._replace(memory=memory), second_moment=zeros
    )
    assert np.all((updates['w'] != 0) == (factor > 1))
