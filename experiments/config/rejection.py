"""An optimizer that a rejected step leaves as it is.

A scheme rejects a step that some worker cannot take in, on all workers
together: its update is NaN then. `optax.apply_if_finite` would do, but not
where parameters differ between workers (`gs.local_gradient`): JAX wants its two
branches typed alike.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class SkipRejectedState(NamedTuple):
  """State of `skip_rejected`.

  Attributes:
    rejected_in_a_row: int32, updates without one between them that was not.
    inner: of the optimizer.
  """

  rejected_in_a_row: jax.Array
  inner: Any


def skip_rejected(
  inner: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """An optimizer to follow a scheme; of a rejected step it hears nothing.

  Args:
    inner: the optimizer.
  """

  def init(params):
    return SkipRejectedState(jnp.zeros([], jnp.int32), inner.init(params))

  def update(updates, state, params=None):
    # All of a rejected update is NaN, so one element tells.
    one = next(u for u in jax.tree.leaves(updates) if u.size)
    accepted = jnp.isfinite(one[(0,) * one.ndim])

    def chosen(new, old):
      return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

    stepped, new = inner.update(updates, state.inner, params)
    return chosen(stepped, optax.tree.zeros_like(stepped)), SkipRejectedState(
      jnp.where(accepted, 0, state.rejected_in_a_row + 1),
      chosen(new, state.inner),
    )

  return optax.GradientTransformation(init, update)
