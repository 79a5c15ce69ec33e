"""A scheme on simulated workers, in trees with leading worker axes.

`replay` gives the same in the form that oracles have, `runs` on all runners.
"""

import jax
import jax.numpy as jnp
import numpy as np
from tests import replay

PARAMS = {'kernel': jnp.zeros((12, 10)), 'bias': jnp.zeros(11)}


def gradients(num_workers=2, seed=0, params=PARAMS, dtype=np.float32):
  """Normal numbers, different on each worker."""
  rng = np.random.default_rng(seed)
  draw = lambda p: np.asarray(rng.normal(size=(num_workers, *p.shape)), dtype)
  return jax.tree.map(draw, params)


def quickly(fn, *args):
  """A compiled function of the types of args, not optimised."""
  return jax.jit(fn).lower(*args).compile(replay.QUICKLY)


def simulated(tx, num_workers=2, params=PARAMS, dtype=np.float32):
  """(state with worker axes, compiled (grads, state) -> (updates, state))."""
  # By NumPy: JAX would compile a program for each shape.
  state = jax.tree.map(lambda x: np.stack([x] * num_workers), tx.init(params))
  mapped = jax.vmap(tx.update, axis_name=replay.AXIS)
  return state, quickly(
    mapped, gradients(num_workers, params=params, dtype=dtype), state
  )


def mean_of(grads):
  return jax.tree.map(lambda g: np.mean(g, axis=0), grads)
