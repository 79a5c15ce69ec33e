"""No memory, and the residual (error feedback)."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.sockets import Memory
from gradsparse.sockets import Signal
import jax
import jax.numpy as jnp


def zeros(params: Any) -> Any:
  """float32 zeros in the shape of params."""
  return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)


def less(tree: Any, delivered: Any) -> Any:
  """A tree less what was delivered. Leaves that stay dense are left alone."""
  return jax.tree.map(
    lambda x, d: x if d.whole else d.plus(x, -1.0),
    tree,
    delivered,
  )


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
    shapes: tree of StaticShape, of the zeros that pending() returns.
  """

  shapes: Any

  def pending(self) -> Any:
    return jax.tree.map(
      lambda s: jnp.zeros(s.shape, jnp.float32),
      self.shapes,
      is_leaf=is_static_shape,
    )


def no_memory() -> Memory:
  """Keeps nothing: what is not delivered is gone.

  For unbiased schemes, which lose nothing in expectation, and for those whose
  papers have no memory: the majority vote and QSGD's descent.
  """

  def init(params):
    return NoMemoryState(
      jax.tree.map(lambda p: StaticShape(tuple(jnp.shape(p))), params)
    )

  def accumulate(grads, state, extra, whole):
    del grads, extra, whole
    return state

  def signals(grads, state, whole):
    del state, whole
    return jax.tree.map(lambda g: Signal(g, g), grads)

  return Memory(init, accumulate, signals, lossless=False)


class ResidualState(NamedTuple):
  """State of `residual`.

  Attributes:
    residual: float32 tree like params: gradient not delivered yet.
  """

  residual: Any

  def pending(self) -> Any:
    return self.residual

  def with_pending(self, pending: Any) -> ResidualState:
    return self._replace(residual=pending)


def residual(decay: float = 1.0) -> Memory:
  """Error feedback: e <- decay e + g; send from e; e <- e - delivered.

  Args:
    decay: factor on the residual of the last step, in [0, 1]. 1 loses
      nothing.

  Raises:
    TypeError: decay is not a number.
    ValueError: decay out of range.

  References:
    Seide et al. 2014 (1-bit SGD); Aji & Heafield 2017 (gradient dropping).
  """
  decay = arguments.number('decay', decay, arguments.FRACTION_OR_ZERO)

  def init(params):
    return ResidualState(zeros(params))

  def accumulate(grads, state, extra, whole):
    del extra
    # A leaf that stays dense delivers all it has: its residual stays zero.
    kept = jax.tree.map(
      lambda e, g, w: e if w else decay * e + g, state.residual, grads, whole
    )
    return ResidualState(kept)

  def signals(grads, state, whole):
    return jax.tree.map(
      lambda e, g, w: Signal(g if w else e, g), state.residual, grads, whole
    )

  def sent(state, delivered):
    return ResidualState(less(state.residual, delivered))

  return Memory(
    init,
    accumulate,
    signals,
    sent=sent,
    lossless=decay == 1.0,
    floats=1,
    sums=True,
    elementwise=True,
  )
