"""A learning rate that falls where the test loss no longer does.

What has been seen of the loss is part of the optimizer's state, so it is in
every checkpoint, and a run that resumes goes on with it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class PlateauState(NamedTuple):
  """State of `scale_updates`; the same on all workers.

  Attributes:
    plateau_scale: float32, what updates are multiplied by.
    best: float32, the smallest loss so far.
    waited: int32, losses since then that were not smaller, or since the scale
      fell.
  """

  plateau_scale: jax.Array
  best: jax.Array
  waited: jax.Array


def scale_updates() -> optax.GradientTransformation:
  """An optimizer's last part: multiplies its updates by what `observe` says."""

  def init(params):
    del params
    return PlateauState(jnp.float32(1), jnp.float32(jnp.inf), jnp.int32(0))

  def update(updates, state, params=None):
    del params
    scaled = jax.tree.map(
      lambda u: u * state.plateau_scale.astype(u.dtype), updates
    )
    return scaled, state

  return optax.GradientTransformation(init, update)


def observe(opt_state: Any, loss: float, decay: float, patience: int) -> Any:
  """Returns an optimizer's state that has heard of a loss.

  Args:
    opt_state: has one PlateauState somewhere.
    loss: of a test; all processes must have the same.
    decay: what the scale is multiplied by where the loss does not fall.
    patience: losses in a row that must not be smaller than the best before.
  """

  def heard(state, loss):
    waited = jnp.where(loss < state.best, 0, state.waited + 1)
    falls = waited >= patience
    return PlateauState(
      jnp.where(falls, decay * state.plateau_scale, state.plateau_scale),
      jnp.where(loss < state.best, loss, state.best),
      jnp.where(falls, 0, waited),
    )

  def of(node):
    if not isinstance(node, PlateauState):
      return node
    # It stays on the devices on which it is.
    places = jax.tree.map(lambda x: x.sharding, node)
    return jax.jit(heard, out_shardings=places)(node, np.float32(loss))

  return jax.tree.map(
    of, opt_state, is_leaf=lambda node: isinstance(node, PlateauState)
  )
