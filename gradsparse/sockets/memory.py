"""The memory socket: what a worker keeps between steps."""

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


def plain_means(state: Any, means: Any, is_dense: Any) -> Any:
  """The default update: the means."""
  del state, is_dense
  return means


def signals_of_pending(grads: Any, state: Any, is_dense: Any) -> Any:
  """The default signals: pending(); for dense leaves the gradient."""
  return jax.tree.map(
    lambda kept, g, dense: Signal(g if dense else kept, g),
    state.pending(),
    grads,
    is_dense,
  )


class MemoryFacts(NamedTuple):
  """Properties of a memory.

  Attributes:
    lossless: whether undelivered values are kept (law 1 applies).
    moments: whether the update takes a `second_moment`, in `extra`.
    elementwise: whether all functions are elementwise. Small leaves may then
      arrive joined to vectors, in lists and not in trees like params: this
      compiles faster. On TPUs and GPUs `accumulate`, `signals` and `sent` may
      run in a kernel, on blocks of a leaf (`Compressor.per_chunk`): `sent` must
      change delivered elements only.
    momentum: factor of the momentum that the updates already have, so that no
      other should follow; 0 without one.
    usable: () -> bool scalar, whether traced arguments are in range. If not,
      all workers reject the step.
  """

  lossless: bool = True
  moments: bool = False
  elementwise: bool = False
  momentum: Any = 0.0
  usable: Callable[[], Any] = lambda: True


class Memory(NamedTuple):
  """What a worker keeps between steps.

  The state is a NamedTuple of params-shaped float32 trees. Its method
  `pending()` returns the undelivered values. If these are a sum of gradients, a
  method `with_pending(tree)` returns the state with `tree` in their place. If
  other fields belong to them, a method `emptied()` returns the state in which
  all of these are zero. Leaves that stay dense deliver their full gradient, so
  their pending values must not change. The state is this worker's own, except
  for fields that its class names by `shared` (`gs.extend.shared`). When the
  number of workers changes, each field is divided like a sum of gradients,
  which keeps the mean. A class can name another rule for a field by `resized`
  (`gs.extend.resized`).

  Attributes:
    init: params -> state.
    accumulate: (grads, state, extra, is_dense) -> state. `is_dense` is a tree
      of bools: leaves that stay dense, whose signal is the gradient itself.
      `extra` are the keyword arguments of the update. Shared fields must not
      change.
    signals: (grads, state, is_dense) -> tree of Signal, from the state after
      `accumulate`, without computation. The default is all of `pending()`.
    update: (state, means, is_dense) -> updates, the optimizer's input. It may
      read only values that are equal on all workers: the means, and fields of
      the state that depend on means alone. Finite means must give a finite
      update: after a sparse message nothing checks it again.
    sent: (state, delivered) -> state: subtracts what was sent, a tree of
      `Delivered`. It does not read the means.
    arrived: (state, means, is_dense, accepted) -> state: updates fields that
      depend on the means (a momentum of dense leaves) or on acceptance (the
      decay of a variance). A rejected step changes nothing.
    facts: properties of the memory.
  """

  init: Callable[[Any], Any]
  accumulate: Callable[[Any, Any, dict[str, Any], Any], Any]
  signals: Callable[[Any, Any, Any], Any] = signals_of_pending
  update: Callable[[Any, Any, Any], Any] = plain_means
  sent: Callable[[Any, Any], Any] = _forget
  arrived: Callable[[Any, Any, Any, jax.Array], Any] = _stay
  facts: MemoryFacts = MemoryFacts()

  @property
  def floats(self) -> int:
    """The number of float32 values kept for each parameter."""
    return len(jax.tree.leaves(self._state()))

  @property
  def fields(self) -> tuple[str, ...]:
    """The names of the state's fields of arrays."""
    fields = self._state()._asdict().items()
    return tuple(name for name, tree in fields if jax.tree.leaves(tree))

  @property
  def sums(self) -> bool:
    """Whether pending values are a sum of gradients."""
    return hasattr(self._state(), 'with_pending')

  def _state(self) -> Any:
    """The state of one parameter, as shapes."""
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.eval_shape(lambda param: first_state(self, param), shape)


def first_state(memory: Memory, params: Any) -> Any:
  """The result of `Memory.init`.

  Raises:
    TypeError: it is no NamedTuple with a method `pending`.
  """
  state = memory.init(params)
  owes = callable(getattr(state, 'pending', None))
  if not owes or not hasattr(state, '_asdict'):
    raise TypeError(
      'memory.init must return a NamedTuple with a method pending(), which '
      f'returns the undelivered values, got {type(state).__name__}'
    )
  return state


def checked_state(function: str, new: Any, old: Any) -> Any:
  """Checks a state that one of the memory's functions returned.

  Args:
    function: the function's name, such as 'memory.sent'.
    new: the returned state.
    old: the state before.

  Returns:
    The new state.

  Raises:
    TypeError: the tree's structure or a leaf's dtype has changed.
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
