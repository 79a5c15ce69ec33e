"""Memories: what a worker keeps of what it did not deliver.

Each is a `Memory` (see interfaces.py). States are NamedTuples of float32
trees shaped like the parameters; `pending()` is what the worker still owes.
Law 1 (nothing lost), elementwise on each worker:

  pending_old + inflow = delivered + pending_new

where the inflow is the gradient (residual) or the velocity (momentum
correction).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from gradsparse.interfaces import Memory
from gradsparse.interfaces import Signal
import jax
import jax.numpy as jnp


def is_signal(x: Any) -> bool:
  return isinstance(x, Signal)


def zeros(params: Any) -> Any:
  """float32 zeros in the shape of params."""
  return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StaticShape:
  """A shape as a tree node without arrays: survives jit and checkpoints."""

  shape: tuple[int, ...] = dataclasses.field(metadata={'static': True})


def is_static_shape(x: Any) -> bool:
  return isinstance(x, StaticShape)


class NoMemoryState(NamedTuple):
  """State of `no_memory`.

  Attributes:
    shapes: tree of StaticShape: pending() needs to know what it is zero of.
  """

  shapes: Any

  def pending(self) -> Any:
    return jax.tree.map(
      lambda s: jnp.zeros(s.shape, jnp.float32),
      self.shapes,
      is_leaf=is_static_shape,
    )


def no_memory() -> Memory:
  """Keeps nothing: what is not delivered is gone (unbiased quantisers)."""

  def init(params):
    return NoMemoryState(
      jax.tree.map(lambda p: StaticShape(tuple(jnp.shape(p))), params)
    )

  def accumulate(grads, state, extra, whole):
    del extra, whole
    return jax.tree.map(lambda g: Signal(g, g), grads), state

  def release(state, means, delivered):
    del delivered
    return means, state

  return Memory(init, accumulate, release, lossless=False)


class ResidualState(NamedTuple):
  """State of `residual`.

  Attributes:
    residual: float32 tree like params: gradient not delivered yet.
  """

  residual: Any

  def pending(self) -> Any:
    return self.residual


def residual(decay: float = 1.0) -> Memory:
  """Error feedback: e <- decay e + g; send from e; e <- e - delivered.

  Args:
    decay: factor on the residual of the last step, in [0, 1]. 1 loses
      nothing.

  References:
    Seide et al. 2014 (1-bit SGD); Aji & Heafield 2017 (gradient dropping).
  """

  def init(params):
    return ResidualState(zeros(params))

  def accumulate(grads, state, extra, whole):
    del extra
    # A leaf that stays dense delivers all it has: its residual stays zero.
    value = jax.tree.map(
      lambda e, g, w: g if w else decay * e + g, state.residual, grads, whole
    )
    signals = jax.tree.map(Signal, value, grads)
    kept = jax.tree.map(
      lambda e, v, w: e if w else v, state.residual, value, whole
    )
    return signals, ResidualState(kept)

  def release(state, means, delivered):
    kept = jax.tree.map(
      lambda e, d: e if d.whole else d.update(lambda x, sent: x - sent, e),
      state.residual,
      delivered,
    )
    return means, ResidualState(kept)

  return Memory(init, accumulate, release, lossless=decay == 1.0, floats=1)


class MomentumCorrectionState(NamedTuple):
  """State of `momentum_correction`.

  Attributes:
    momentum: float32 tree like params: DGC's u.
    velocity: float32 tree like params: DGC's v, accumulated and not
      delivered yet.
  """

  momentum: Any
  velocity: Any

  def pending(self) -> Any:
    return self.velocity


def momentum_correction(
  momentum: Any = 0.9, nesterov: bool = False, factor_masking: bool = True
) -> Memory:
  """DGC's memory: accumulates the velocity instead of the gradient.

    heavy ball (eq. 7):  u <- m u + g;    v <- v + u
    Nesterov (eq. 10):   u <- m (u + g);  v <- v + u + g

  What was delivered leaves v and, with factor masking (section 3.3), clears
  u there. Plain SGD follows the exchange: a second momentum would be double.
  Leaves that stay dense keep momentum SGD on the mean gradient, unmasked.

  Args:
    momentum: m, in [0, 1).
    nesterov: use eq. 10.
    factor_masking: clear u where something was delivered.

  References:
    Lin et al., arXiv 1712.01887, eq. 7, eq. 10, section 3.3.
  """

  def init(params):
    return MomentumCorrectionState(zeros(params), zeros(params))

  def moved(u, g):
    return momentum * (u + g) if nesterov else momentum * u + g

  def accumulate(grads, state, extra, whole):
    del extra
    u = jax.tree.map(
      lambda u, g, w: u if w else moved(u, g), state.momentum, grads, whole
    )

    def accumulated(v, u, g, w):
      if w:
        return v
      return v + u + g if nesterov else v + u

    v = jax.tree.map(accumulated, state.velocity, u, grads, whole)
    signals = jax.tree.map(
      lambda v, g, w: Signal(g if w else v, g), v, grads, whole
    )
    return signals, MomentumCorrectionState(u, v)

  def release(state, means, delivered):
    v = jax.tree.map(
      lambda v, d: v if d.whole else d.update(lambda x, sent: x - sent, v),
      state.velocity,
      delivered,
    )

    def new_momentum(u, mean, d):
      if d.whole:
        return moved(u, mean)
      if not factor_masking:
        return u
      return d.update(lambda x, sent: jnp.zeros_like(x), u)

    u = jax.tree.map(new_momentum, state.momentum, means, delivered)

    def update(mean, u, d):
      if not d.whole:
        return mean
      return u + mean if nesterov else u

    updates = jax.tree.map(update, means, u, delivered)
    return updates, MomentumCorrectionState(u, v)

  return Memory(init, accumulate, release, lossless=True, floats=2)
