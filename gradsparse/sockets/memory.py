"""The first socket: what a worker keeps between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradsparse.sockets.compressor import Signal
import jax
import jax.numpy as jnp


def _forget(state: Any, delivered: Any) -> Any:
  del delivered
  return state


def _stay(state: Any, means: Any, is_dense: Any, accepted: jax.Array) -> Any:
  del means, is_dense, accepted
  return state


def _everything(state: Any, is_dense: Any) -> Any:
  del is_dense
  return state


def plain_means(state: Any, means: Any, is_dense: Any) -> Any:
  """The update of a memory that passes the means on."""
  del state, is_dense
  return means


def signals_of_pending(grads: Any, state: Any, is_dense: Any) -> Any:
  """Signals of all that is pending; a dense leaf's is its gradient."""
  return jax.tree.map(
    lambda owed, g, dense: Signal(g if dense else owed, g),
    state.pending(),
    grads,
    is_dense,
  )


class MemoryFacts(NamedTuple):
  """What the transformation, checks and tables may ask of a memory.

  Attributes:
    lossless: what is not delivered is kept (law 1 applies).
    moments: the update takes a `second_moment`, in `extra`.
    elementwise: all that the memory does to a number of a leaf depends on the
      numbers in that place alone. Then the memory may be given several leaves
      as one vector, which is sooner compiled: `grads`, its state, `is_dense`
      and so on are lists of such vectors then, and not trees like params.
    momentum: factor of the momentum that the updates already have, so that no
      other should follow; 0 without one.
    usable: () -> bool scalar, whether numbers that are traced are in range. If
      not, all workers reject the step.
  """

  lossless: bool = True
  moments: bool = False
  elementwise: bool = False
  momentum: Any = 0.0
  usable: Callable[[], Any] = lambda: True


class Memory(NamedTuple):
  """What a worker keeps between steps.

  The state is a NamedTuple of params-shaped float32 trees with a method
  `pending()`, which returns what the worker still owes. If that is a sum of
  gradients, a second method `with_pending(tree)` returns the state owing
  something else; where more goes with what is pending than itself, a third,
  `emptied()`, returns the state owing nothing. Leaves that stay dense deliver
  all of their gradient: what is pending of them must not change. All of the
  state is this worker's own, except for the fields that its class names by
  `shared` (`gs.extend.shared`). When the number of workers changes, each field
  is divided like a sum of gradients, which keeps the mean. A class can name
  another rule for a field by `resized` (`gs.extend.resized`).

  Attributes:
    init: params -> state.
    accumulate: (grads, state, extra, is_dense) -> state. `is_dense` is a tree
      of bools: leaves that stay dense, whose signal is the gradient itself.
      `extra` are the keyword arguments of the update. It must not change
      shared fields.
    signals: (grads, state, is_dense) -> tree of Signal. Called with the state
      after `accumulate`; computes nothing. The default is all of `pending()`.
    update: (state, means, is_dense) -> updates: what goes to the optimizer. It
      may read only what is equal on all workers: the means, and the parts of
      the state that were made of means alone.
    sent: (state, delivered) -> state: lets go of what was sent, a tree of
      Window or Full. It reads nothing that arrives: an exchange that is
      one step late can call it at once.
    arrived: (state, means, is_dense, accepted) -> state: moves what waits for
      the means (a momentum of dense leaves, the decay of a variance). In a
      rejected step it moves nothing.
    magnitudes: (state, is_dense) -> tuple of trees like params: arrays that
      must stay below `health.largest_kept` after `accumulate`. If one does not,
      this worker refuses the step. No step whose gradient is zero may enlarge
      them: a worker that cannot keep a step leaves its memory alone, and could
      not keep the next step either.
    facts: what others may ask.
  """

  init: Callable[[Any], Any]
  accumulate: Callable[[Any, Any, dict[str, Any], Any], Any]
  signals: Callable[[Any, Any, Any], Any] = signals_of_pending
  update: Callable[[Any, Any, Any], Any] = plain_means
  sent: Callable[[Any, Any], Any] = _forget
  arrived: Callable[[Any, Any, Any, jax.Array], Any] = _stay
  magnitudes: Callable[[Any, Any], Any] = _everything
  facts: MemoryFacts = MemoryFacts()

  @property
  def floats(self) -> int:
    """float32 numbers that the memory keeps for each parameter."""
    return len(jax.tree.leaves(self._state()))

  @property
  def fields(self) -> tuple[str, ...]:
    """Names of what the memory keeps."""
    return self._state()._fields

  @property
  def sums(self) -> bool:
    """Whether what is pending is a sum of gradients."""
    return hasattr(self._state(), 'with_pending')

  def _state(self) -> Any:
    """The state of one parameter, as shapes."""
    return jax.eval_shape(self.init, jax.ShapeDtypeStruct((), jnp.float32))


def checked_state(function: str, new: Any, old: Any) -> Any:
  """A memory's state, after one of its functions.

  Args:
    function: its name, such as 'memory.sent'.
    new: what it returned.
    old: the state that it was given.

  Returns:
    The new state.

  Raises:
    TypeError: the tree, or the type of a leaf, is another one.
  """
  wanted: Any = jax.tree.structure(old)
  if jax.tree.structure(new) != wanted:
    raise TypeError(
      f'{function} must return a {type(old).__name__} like the one that it '
      f'got, returned {type(new).__name__ if new is not None else None}'
    )
  pairs = zip(
    jax.tree_util.tree_leaves_with_path(new), jax.tree.leaves(old), strict=True
  )
  for (path, x), y in pairs:
    if x.dtype != y.dtype:
      raise TypeError(
        f'{function} made {x.dtype} of {y.dtype}: state'
        f'{jax.tree_util.keystr(path)} must be float32 from memory.init on'
      )
  return new
