"""Outer steps where parameters, arguments or a combination are wrong."""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np
import optax
import pytest

AXIS, WORKERS = gs.workers.AXIS, 2
PARAMS = {name: 0.5 * np.eye(4, dtype=np.float32) for name in 'abc'}


@pytest.mark.parametrize('fragments, delay', [(1, 2), (3, 0)])
def test_one_bad_worker_costs_one_exchange(fragments, delay):
  """Its bad leaves would spoil each other before their turn to be sent."""
  tx = gs.outer(
    gs.gradient_dropping(0.3, axis_name=AXIS),
    optax.sgd(1.0),
    sync_every=3,
    fragments=fragments,
    delay=delay,
  )
  specs, own = gs.workers.specs(tx, PARAMS, WORKERS), PartitionSpec(AXIS)

  def step(params, state):
    # As a gradient is not finite where any parameter is not.
    spoilt = 0.0 * sum(x.sum() for x in jax.tree.leaves(params))
    moved = jax.tree.map(lambda x: x + 0.01 + spoilt, params)
    return tx.sync(moved, state)

  step = gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(own, specs),
    out_specs=(own, specs),
  )
  params = gs.workers.stack(PARAMS, WORKERS)
  params = jax.tree.map(lambda x: jnp.asarray(x).at[1].set(jnp.nan), params)
  state = gs.workers.init(tx, PARAMS, WORKERS)
  for _ in range(6):
    params, state = step(params, state)
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(params))
  assert gs.metrics(state)['rejected_steps'] == 1


def test_progress_that_would_be_sent_again_is_warned_of():
  def make(scheme, alpha):
    return gs.outer(scheme, optax.sgd(1.0), sync_every=2, alpha=alpha)

  dropping = gs.gradient_dropping(0.25, axis_name=None, min_size=0)
  make(gs.dense(axis_name=None), 0.5)
  make(dropping, 0.0)
  with pytest.warns(UserWarning, match='alpha=0.5.* more than once'):
    tx = make(dropping, 0.5)
  # What the warning says: a worker that has moved once, and then rests.
  params = {'w': jnp.zeros(4)}
  state, params = tx.init(params), {'w': jnp.array([4.0, 3.0, 2.0, 1.0])}
  for _ in range(8):
    params, state = tx.sync(params, state)
  assert np.any(state.anchor['w'] > jnp.array([4.0, 3.0, 2.0, 1.0]))


def test_what_takes_gradients_is_refused():
  tx = gs.outer(gs.dense(axis_name=None), optax.sgd(1.0), sync_every=2)
  params = {'w': jnp.ones(2)}
  with pytest.raises(ValueError, match='no third argument.*sync'):
    tx.update(params, tx.init(params), params)
  with pytest.raises(ValueError, match=r'second moments.*variance_based\('):
    gs.outer(
      gs.variance_based(1.0, axis_name=None), optax.sgd(1.0), sync_every=2
    )
