"""The variance criterion's memory: the gradient and its second moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import traced
from gradsparse.memories.basic import decay_field
from gradsparse.memories.basic import forgotten_share
from gradsparse.memories.basic import less
from gradsparse.memories.basic import where_compressed
from gradsparse.memories.basic import zeros
from gradsparse.sockets import Memory
from gradsparse.sockets import MemoryFacts
from gradsparse.sockets import Signal
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp

_LARGEST = float(jnp.finfo(jnp.float32).max)


@ownership.resized(variance='squares')
class VarianceState(NamedTuple):
  """State of `variance`.

  Attributes:
    residual: float32 tree like params: r, gradient not delivered yet.
    variance: float32 tree like params: v, the sum of squared contributions of
      single examples to r. If the number of workers changes, a new worker with
      shares w of several r has contributions w g_z / |B|, so it takes w^2 of
      their v.
    decay: the factor on r in the next step, as in `ResidualState`.
  """

  residual: Any
  variance: Any
  decay: Any = ()

  @property
  def forgets(self) -> float:
    """The share of r that the next step forgets."""
    return forgotten_share(self.decay)

  def pending(self) -> Any:
    return self.residual

  def with_pending(self, pending: Any) -> VarianceState:
    return self._replace(residual=pending)

  def emptied(self) -> VarianceState:
    """A state with r = v = 0."""
    return self._replace(
      residual=zeros(self.residual), variance=zeros(self.residual)
    )


class Rounding(NamedTuple):
  """What a memory does with rounding errors.

  Attributes:
    sent: (state, delivered, alpha of the criterion or None) -> state.
    keeps: whether rounding errors stay in r, so that nothing is lost.
    elementwise: whether `sent` is elementwise.
    refuses: the name of a value code -> why it does not fit, or None.
  """

  sent: Callable[[VarianceState, Any, float | None], VarianceState]
  keeps: bool = True
  elementwise: bool = True
  refuses: Callable[[str], str | None] = lambda values: None


def _keep(state, delivered, alpha):
  del alpha

  def sent_from_v(v, d, r):
    # v + (r - d)^2 - r^2, factored because r^2 may overflow.
    corrected = jnp.clip(v + d * (d - 2 * r), 0.0, _LARGEST)
    return jnp.where(r - d == 0, 0.0, corrected)

  v = jax.tree.map(
    lambda v, r, d: v if d.is_dense else d.update(sent_from_v, v, r),
    state.variance,
    state.residual,
    delivered,
  )
  return state._replace(residual=less(state.residual, delivered), variance=v)


ROUNDING = {'keep': Rounding(_keep)}


def variance(
  decay: float = 0.999,
  alpha: float | None = None,
  rounding: str = 'keep',
  error_decay: float = 1.0,
) -> Memory:
  """Accumulates r <- r + g and v <- v + sum_z (g_z / |B|)^2.

  The delivered values d are subtracted from r. v is corrected by
  a^2 -> (a - b)^2, that is v <- max(v - 2 d r + d^2, 0), and then decays:
  v <- decay v.

  With `error_decay` b < 1, first r <- b r and v <- b^2 v: every contribution to
  r is then b times as large, so the sum of their squares is b^2 times as large,
  and the criterion judges the same gradients as before. (Ours; the paper's r
  does not decay.)

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> memory = gs.extend.memories.variance()
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> state = memory.init(grads)
  >>> extra = {'second_moment': {'w': jnp.array([8.0, 2.0])}}
  >>> state = memory.accumulate(grads, state, extra, {'w': False})
  >>> print(state.pending()['w'], state.variance['w'])
  [4. 1.] [8. 2.]

  Args:
    decay: decay of v, the sum of squares, in (0, 1]; the paper's zeta.
    alpha: alpha of the criterion, for a rounding that needs it; 'keep' does
      not.
    rounding: a key of `ROUNDING`. 'keep' leaves rounding errors in r.
    error_decay: factor on r of the last step, in [0, 1]. 1 loses nothing.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.

  References:
    Tsuzuku et al., arXiv 1802.06058, algorithm 1 and section 4.5.
  """
  decay = arguments.number('decay', decay, arguments.FRACTION, traced=True)
  arguments.one_of('rounding', rounding, ROUNDING)
  how = ROUNDING[rounding]
  kept = arguments.number(
    'error_decay', error_decay, arguments.FRACTION_OR_ZERO
  )

  def init(params):
    return VarianceState(zeros(params), zeros(params), decay_field(kept))

  def accumulate(grads, state, extra, is_dense):
    r, v = state.residual, state.variance
    if kept < 1:
      r = where_compressed(lambda r: kept * r, is_dense, r)
      v = where_compressed(lambda v: kept * kept * v, is_dense, v)
    r = where_compressed(jnp.add, is_dense, r, grads)
    v = where_compressed(
      lambda v, m: v + m.astype(jnp.float32),
      is_dense,
      v,
      extra['second_moment'],
    )
    return state._replace(residual=r, variance=v)

  def signals(grads, state, is_dense):
    return jax.tree.map(
      lambda r, g, v, w: Signal(g if w else r, g, v),
      state.residual,
      grads,
      state.variance,
      is_dense,
    )

  def arrived(state, means, is_dense, accepted):
    del means
    factor = jnp.where(accepted, traced.here(decay), 1.0)
    v = where_compressed(lambda v: factor * v, is_dense, state.variance)
    return state._replace(variance=v)

  return Memory(
    init,
    accumulate,
    signals,
    sent=lambda state, delivered: how.sent(state, delivered, alpha),
    arrived=arrived,
    facts=MemoryFacts(
      lossless=how.keeps and kept == 1.0,
      moments=True,
      elementwise=how.elementwise,
      usable=lambda: traced.in_range((decay, arguments.FRACTION)),
    ),
  )
