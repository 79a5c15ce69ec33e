"""The variance criterion's memory: gradient and its second moment."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import traced
from gradsparse.memories.basic import less
from gradsparse.memories.basic import zeros
from gradsparse.sockets import Memory
from gradsparse.sockets import Signal
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp

ROUNDING = ('keep', 'paper')

# An exponent-coded entry is not sent when it rounds to less than 2^-7 of the
# largest: when it is below 1.5 * 2^-8 of it (the boundary of the rounding).
_UNSENDABLE = 1.5 / 256

_LARGEST = float(jnp.finfo(jnp.float32).max)


@ownership.resized(variance='squares')
class VarianceState(NamedTuple):
  """State of `variance`.

  Attributes:
    residual: float32 tree like params: r, gradient not delivered yet.
    variance: float32 tree like params: v, sum of squared contributions of
      single examples to r. A new worker that takes shares w of several r has
      contributions of w g_z / |B|, so it takes w^2 of their v: what one
      worker with all of their examples would have.
  """

  residual: Any
  variance: Any

  def pending(self) -> Any:
    return self.residual

  def with_pending(self, pending: Any) -> VarianceState:
    return self._replace(residual=pending)

  def emptied(self) -> VarianceState:
    """Neither r nor what was contributed to it."""
    return VarianceState(zeros(self.residual), zeros(self.residual))


def variance(
  decay: float = 0.999, alpha: float | None = None, rounding: str = 'keep'
) -> Memory:
  """r <- r + g;  v <- v + sum_z (g_z / |B|)^2;  what was sent leaves both.

  What was delivered, d, leaves r; v is corrected by a^2 -> (a - b)^2, that is
  v <- max(v - 2 d r + d^2, 0), and then decays: v <- decay v.

  Args:
    decay: of v, the sum of squares, in (0, 1]; the paper's zeta.
    alpha: of the criterion; needed for rounding='paper' only.
    rounding: 'keep' leaves in r what a rounded value did not deliver; 'paper'
      sets r = v = 0 wherever the criterion held, also where rounding lost
      something or the entry was too small to be sent.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Tsuzuku et al., arXiv 1802.06058, algorithm 1 and section 4.5.
  """
  decay = arguments.number('decay', decay, arguments.FRACTION, traced=True)
  arguments.one_of('rounding', rounding, ROUNDING)

  def init(params):
    return VarianceState(zeros(params), zeros(params))

  def accumulate(grads, state, extra, is_dense):
    r = jax.tree.map(
      lambda r, g, w: r if w else r + g, state.residual, grads, is_dense
    )
    v = jax.tree.map(
      lambda v, m, w: v if w else v + m.astype(jnp.float32),
      state.variance,
      extra['second_moment'],
      is_dense,
    )
    return VarianceState(r, v)

  def signals(grads, state, is_dense):
    return jax.tree.map(
      lambda r, g, v, w: Signal(g if w else r, g, v),
      state.residual,
      grads,
      state.variance,
      is_dense,
    )

  def sent_from_v(v, d, r):
    # (r - d)^2 - r^2. Squares of what r can hold may overflow.
    corrected = jnp.clip(v + d * (d - 2 * r), 0.0, _LARGEST)
    return jnp.where(r - d == 0, 0.0, corrected)

  def sent(state, delivered):
    v = jax.tree.map(
      lambda v, r, d: v if d.is_dense else d.update(sent_from_v, v, r),
      state.variance,
      state.residual,
      delivered,
    )
    return VarianceState(less(state.residual, delivered), v)

  def gone(r, v, d):
    """Selected, whether sent or too small for the code."""
    if d.is_dense:
      return jnp.zeros_like(r, bool)
    largest = jnp.max(jnp.abs(d.values), initial=0.0)
    small = (r * r > alpha * v) & (jnp.abs(r) < _UNSENDABLE * largest)
    sent = d.update(lambda x, _: jnp.ones_like(x), jnp.zeros_like(r))
    return small | (sent > 0)

  def sent_as_printed(state, delivered):
    lost = jax.tree.map(gone, state.residual, state.variance, delivered)
    r, v = (
      jax.tree.map(lambda x, g: jnp.where(g, 0.0, x), tree, lost)
      for tree in state
    )
    return VarianceState(r, v)

  def arrived(state, means, is_dense, accepted):
    del means
    factor = jnp.where(accepted, traced.here(decay), 1.0)
    v = jax.tree.map(
      lambda v, w: v if w else factor * v, state.variance, is_dense
    )
    return state._replace(variance=v)

  return Memory(
    init,
    accumulate,
    signals,
    sent=sent if rounding == 'keep' else sent_as_printed,
    arrived=arrived,
    lossless=rounding == 'keep',
    floats=2,
    sums=True,
    elementwise=rounding == 'keep',  # the other looks at the largest
    moments=True,
    usable=lambda: traced.in_range((decay, arguments.FRACTION)),
  )
