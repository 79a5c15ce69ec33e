"""Linear regression on three workers: batches, a loss, and a training step."""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

AXIS = gs.workers.AXIS
OWN = P(AXIS)
PARAMS = {'w': jnp.ones((6, 4)), 'b': jnp.zeros(4)}
NUM_WORKERS = 3


def batches(count):
  rng = np.random.default_rng(0)
  draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
  return [
    {'x': draw(NUM_WORKERS, 5, 6), 'y': draw(NUM_WORKERS, 5, 4)}
    for _ in range(count)
  ]


def loss_fn(params, batch):
  error = batch['x'] @ params['w'] + params['b'] - batch['y']
  return jnp.mean(error**2)


def training(tx, runner, **kwargs):
  specs = gs.workers.specs(tx, PARAMS, NUM_WORKERS)

  def step(params, opt_state, batch):
    own = gs.workers.local(params)
    loss, grads = jax.value_and_grad(loss_fn)(own, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, gs.workers.mean({'loss': loss}), loss

  return gs.workers.parallel(
    step,
    runner=runner,
    num_workers=NUM_WORKERS,
    in_specs=(P(), specs, OWN),
    out_specs=(P(), specs, P(), OWN),
    **kwargs,
  )
