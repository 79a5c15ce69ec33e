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


def test_a_worker_that_rests_is_not_sent_again():
  """What a memory keeps is not in the parameters too, whatever alpha is."""
  scheme = gs.gradient_dropping(0.25, axis_name=None, min_size=0)
  tx = gs.outer(scheme, optax.sgd(1.0), sync_every=2, alpha=0.9)
  moved = jnp.array([4.0, 3.0, 2.0, 1.0])
  params = {'w': jnp.zeros(4)}
  state, params = tx.init(params), {'w': moved}
  for _ in range(8):
    params, state = tx.sync(params, state)
  for found, expected in (
    (state.anchor['w'], moved),
    (params['w'], moved),
    (gs.pending(state)['w'], 0.0),
  ):
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_rejected_exchange_leaves_dense_leaves_their_part():
  """What a dense leaf moved is in no memory, so alpha counts as without one."""
  scheme = gs.gradient_dropping(
    0.3, axis_name=AXIS, min_size=0, dense_paths='b'
  )
  tx = gs.outer(scheme, optax.sgd(1.0), sync_every=1, alpha=0.5)
  specs, own = gs.workers.specs(tx, PARAMS, WORKERS), PartitionSpec(AXIS)
  step = gs.workers.parallel(
    tx.sync,
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(own, specs),
    out_specs=(own, specs),
  )
  moved = jax.tree.map(lambda x: jnp.stack([x + 2.0] * WORKERS), PARAMS)
  moved['c'] = moved['c'].at[1, 0].set(jnp.nan)
  params, state = step(moved, gs.workers.init(tx, PARAMS, WORKERS))
  assert gs.metrics(state)['rejected_steps'] == 1
  healthy, pending = jax.tree.map(lambda x: x[0], (params, gs.pending(state)))
  np.testing.assert_array_equal(healthy['a'], PARAMS['a'])
  np.testing.assert_array_equal(pending['a'], np.full((4, 4), -2.0))
  np.testing.assert_array_equal(healthy['b'], PARAMS['b'] + 1.0)


def test_alpha_is_refused_where_nothing_is_kept_for_later():
  scheme = gs.ef21(0.1, axis_name=None)
  gs.outer(scheme, optax.sgd(1.0), sync_every=2)
  with pytest.raises(ValueError, match='alpha must be 0 with ef21.* 0.5'):
    gs.outer(scheme, optax.sgd(1.0), sync_every=2, alpha=0.5)


def test_what_takes_gradients_is_refused():
  tx = gs.outer(gs.dense(axis_name=None), optax.sgd(1.0), sync_every=2)
  params = {'w': jnp.ones(2)}
  with pytest.raises(ValueError, match='no third argument.*sync'):
    tx.update(params, tx.init(params), params)
  with pytest.raises(ValueError, match=r'second moments.*variance_based\('):
    gs.outer(
      gs.variance_based(1.0, axis_name=None), optax.sgd(1.0), sync_every=2
    )
