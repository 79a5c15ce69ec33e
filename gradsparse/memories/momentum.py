"""DGC's momentum correction."""

from __future__ import annotations

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
import jax
import jax.numpy as jnp


class MomentumCorrectionState(NamedTuple):
  """State of `momentum_correction`.

  Both steps of the memory are linear. If the number of workers changes, the new
  workers get shares of both trees, with the same mean velocity and momentum.

  Attributes:
    momentum: float32 tree like params: DGC's u.
    velocity: float32 tree like params: DGC's v, accumulated and not
      delivered yet.
    decay: the factor on v in the next step, as in `ResidualState`.
  """

  momentum: Any
  velocity: Any
  decay: Any = ()

  @property
  def forgets(self) -> float:
    """The share of v that the next step forgets."""
    return forgotten_share(self.decay)

  def pending(self) -> Any:
    return self.velocity

  def with_pending(self, pending: Any) -> MomentumCorrectionState:
    return self._replace(velocity=pending)


def momentum_correction(
  momentum: Any = 0.9,
  nesterov: bool = False,
  factor_masking: bool = True,
  error_decay: float = 1.0,
) -> Memory:
  """DGC's memory: accumulates the velocity instead of the gradient.

    heavy ball (eq. 7):  u <- m u + g;    v <- v + u
    Nesterov (eq. 10):   u <- m (u + g);  v <- v + u + g

  With `error_decay` < 1, v is multiplied by it first.

  Delivered values are subtracted from v. With factor masking (section 3.3), u
  is cleared there. Use plain SGD after the exchange, or momentum applies twice.
  Leaves that stay dense keep momentum SGD on the mean gradient, unmasked; for
  float64 leaves the mean is float64, and u is float32.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> memory = gs.extend.memories.momentum_correction(momentum=0.5)
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> state = memory.init(grads)
  >>> for _ in range(2):
  ...   state = memory.accumulate(grads, state, {}, {'w': False})
  >>> print(state.momentum['w'], state.pending()['w'])
  [6.  1.5] [10.   2.5]

  Args:
    momentum: m, in [0, 1).
    nesterov: whether to use eq. 10.
    factor_masking: whether to clear u at delivered elements.
    error_decay: factor on v of the last step, in [0, 1]. 1 loses nothing.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: momentum or error_decay is out of range.

  References:
    Lin et al., arXiv 1712.01887, eq. 7, eq. 10, section 3.3.
  """
  momentum = arguments.number(
    'momentum', momentum, arguments.LESS_THAN_ONE, traced=True
  )
  nesterov = arguments.flag('nesterov', nesterov)
  factor_masking = arguments.flag('factor_masking', factor_masking)

  decay = arguments.number(
    'error_decay', error_decay, arguments.FRACTION_OR_ZERO
  )

  def init(params):
    return MomentumCorrectionState(
      zeros(params), zeros(params), decay_field(decay)
    )

  def moved(u, g):
    m, u = traced.here(momentum), u.astype(g.dtype)
    return m * (u + g) if nesterov else m * u + g

  def accumulate(grads, state, extra, is_dense):
    del extra
    u = where_compressed(moved, is_dense, state.momentum, grads)

    def added(v, u, g):
      v = v if decay == 1 else decay * v
      return v + u + g if nesterov else v + u

    v = where_compressed(added, is_dense, state.velocity, u, grads)
    return state._replace(momentum=u, velocity=v)

  def update(state, means, is_dense):
    def one(u, mean, w):
      if not w:
        return mean
      u = moved(u, mean)
      return u + mean if nesterov else u

    return jax.tree.map(one, state.momentum, means, is_dense)

  def masked(u, d):
    return u if d.is_dense else d.update(lambda x, sent: jnp.zeros_like(x), u)

  def sent(state, delivered):
    u = state.momentum
    if factor_masking:
      u = jax.tree.map(masked, u, delivered)
    velocity = less(state.velocity, delivered)
    return state._replace(momentum=u, velocity=velocity)

  def arrived(state, means, is_dense, accepted):
    def one(u, mean, w):
      if not w:
        return u
      new = moved(u, mean)
      if new.dtype != u.dtype:  # a float64 mean may exceed float32
        limit = float(jnp.finfo(u.dtype).max)
        new = jnp.clip(new, -limit, limit).astype(u.dtype)
      return jnp.where(accepted, new, u)

    u = jax.tree.map(one, state.momentum, means, is_dense)
    return state._replace(momentum=u)

  return Memory(
    init,
    accumulate,
    update=update,
    sent=sent,
    arrived=arrived,
    facts=MemoryFacts(
      lossless=decay == 1.0,
      elementwise=True,
      momentum=momentum,
      usable=lambda: traced.in_range((momentum, arguments.LESS_THAN_ONE)),
    ),
  )
