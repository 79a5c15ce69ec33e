"""No memory, and the residual (error feedback)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.sockets import Memory
from gradsparse.sockets import MemoryFacts
from gradsparse.sockets import Signal
import jax
import jax.numpy as jnp


def zeros(params: Any) -> Any:
  """float32 zeros in the shape of params."""
  return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)


def where_compressed(
  fn: Callable[..., jax.Array], unchanged: Any, tree: Any, *others: Any
) -> Any:
  """fn(x, *others) of each leaf; x where `unchanged`, as of dense leaves."""
  return jax.tree.map(
    lambda same, x, *others: x if same else fn(x, *others),
    unchanged,
    tree,
    *others,
  )


def less(tree: Any, delivered: Any) -> Any:
  """A tree less the delivered values. Leaves that stay dense do not change."""
  return jax.tree.map(
    lambda x, d: x if d.is_dense else d.plus(x, -1.0), tree, delivered
  )


class ShapeOf(NamedTuple):
  """The shape of a leaf as tree structure, without arrays.

  Attributes:
    shape: a dict whose only key is the shape as text, such as '4,5'.
  """

  shape: dict[str, tuple[()]]

  @classmethod
  def of(cls, x: Any) -> ShapeOf:
    return cls({','.join(map(str, jnp.shape(x))): ()})

  def zeros(self) -> jax.Array:
    """float32 zeros of the shape."""
    (text,) = self.shape
    return jnp.zeros([int(n) for n in text.split(',') if n], jnp.float32)


class NoMemoryState(NamedTuple):
  """State of `no_memory`.

  Attributes:
    shapes: tree of ShapeOf, of the zeros that pending() returns.
  """

  shapes: Any

  def pending(self) -> Any:
    return jax.tree.map(
      ShapeOf.zeros, self.shapes, is_leaf=lambda x: isinstance(x, ShapeOf)
    )


def no_memory() -> Memory:
  """Keeps nothing: undelivered values are dropped.

  This suits unbiased schemes, which lose nothing in expectation, and schemes
  whose papers have no memory: the majority vote and QSGD's descent.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> memory = gs.extend.memories.no_memory()
  >>> state = memory.init({'w': jnp.ones(2)})
  >>> print(memory.facts.lossless, state.pending()['w'])
  False [0. 0.]
  """

  def init(params):
    return NoMemoryState(jax.tree.map(ShapeOf.of, params))

  def accumulate(grads, state, extra, is_dense):
    del grads, extra, is_dense
    return state

  def signals(grads, state, is_dense):
    del state, is_dense
    return jax.tree.map(lambda g: Signal(g, g), grads)

  return Memory(init, accumulate, signals, facts=MemoryFacts(lossless=False))


def decay_field(decay: float) -> Any:
  """A factor in a state, without arrays: the only key of a dict, or ()."""
  return {str(decay): ()} if decay < 1 else ()


def forgotten_share(field: Any) -> float:
  """The share that a memory with this `decay_field` forgets in a step."""
  return 1 - float(next(iter(field), 1))


class ResidualState(NamedTuple):
  """State of `residual`.

  Attributes:
    residual: float32 tree like params: gradient not delivered yet.
    decay: the factor on the residual in the next step, as the only key of a
      dict without arrays, such as '0.95'; () if the residual does not decay.
  """

  residual: Any
  decay: Any = ()

  @property
  def forgets(self) -> float:
    """The share of the residual that the next step forgets."""
    return forgotten_share(self.decay)

  def pending(self) -> Any:
    return self.residual

  def with_pending(self, pending: Any) -> ResidualState:
    return self._replace(residual=pending)


def residual(error_decay: float = 1.0) -> Memory:
  """Error feedback: e <- error_decay e + g; send from e; e <- e - delivered.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> memory = gs.extend.memories.residual()
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> state = memory.init(grads)
  >>> state = memory.accumulate(grads, state, {}, {'w': False})
  >>> state = memory.sent(state, {'w': gs.extend.Full(jnp.array([4.0, 0.0]))})
  >>> print(state.pending()['w'])
  [0. 1.]

  Args:
    error_decay: factor on the residual of the last step, in [0, 1]. 1 loses
      nothing.

  Raises:
    TypeError: error_decay is not a number.
    ValueError: error_decay is out of range.

  References:
    Seide et al. 2014 (1-bit SGD); Aji & Heafield 2017 (gradient dropping).
  """
  decay = arguments.number(
    'error_decay', error_decay, arguments.FRACTION_OR_ZERO
  )

  def init(params):
    return ResidualState(zeros(params), decay_field(decay))

  def accumulate(grads, state, extra, is_dense):
    del extra
    # The residual of a leaf that stays dense is always zero.
    return state._replace(
      residual=where_compressed(
        lambda e, g: decay * e + g, is_dense, state.residual, grads
      )
    )

  def sent(state, delivered):
    return state._replace(residual=less(state.residual, delivered))

  return Memory(
    init,
    accumulate,
    sent=sent,
    facts=MemoryFacts(lossless=decay == 1.0, elementwise=True),
  )
