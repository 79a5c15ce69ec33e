"""Changes the scheme during training and keeps pending values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsparse import arguments
from gradsparse.sockets.ownership import is_local
from gradsparse.state import differences
from gradsparse.state.inspection import find
from gradsparse.state.inspection import is_masked
from gradsparse.state.inspection import is_scheme
from gradsparse.state.inspection import is_stacked
from gradsparse.state.scheme import AccumulateState
from gradsparse.state.scheme import DelayedState
from gradsparse.state.scheme import LocalGradientState
from gradsparse.state.scheme import OuterState
import jax
import jax.numpy as jnp
import numpy as np
import optax


def switch(
  tx_old: optax.GradientTransformation,
  tx_new: optax.GradientTransformation,
  state: Any,
  params: Any = None,
) -> Any:
  """Converts a state of `tx_old` to one with which `tx_new` continues.

  Pending values stay pending. The momentum of a momentum correction and the
  variance of a criterion are kept if both schemes have them. The exchange's own
  residual (`exchange='reduce_scatter'`) moves to the memory. The pending values
  of an estimate (EF21) are no sum of gradients: only another EF21 takes them
  over, with the estimates.
  Leaves that become dense must have no pending values, as dense leaves do not
  use their memory. Other state of these leaves is dropped, such as a momentum
  that is each worker's own. Inside jit their pending values are unknown, and
  such a switch is refused.
  State around the scheme (an optimizer's moments) is kept if its structure is
  the same in both transformations. A change of density alone needs no switch:
  states do not depend on it.
  An outer step (`gs.outer`) becomes another outer step with the same anchor,
  also if the outer optimizer or the fragments change. With `delay`, switch
  after the parameters have taken over the anchor.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> old = gs.gradient_dropping(0.5, axis_name=None)
  >>> new = gs.strom(0.1, axis_name=None)
  >>> grads = {'w': jnp.array([4.0, 1.0])}
  >>> _, state = jax.jit(old.update)(grads, old.init(grads))
  >>> print(gs.pending(gs.switch(old, new, state))['w'])
  [0. 1.]

  Args:
    tx_old: the transformation that `state` belongs to; a scheme or a chain.
    tx_new: the transformation to continue with.
    state: state of tx_old, with or without worker axes.
    params: parameters of one worker, or their shapes. Needed only if the scheme
      lacks some of them (frozen ones) that other transformations have.

  Returns:
    State of tx_new, with worker axes if `state` has them.

  Raises:
    TypeError: tx_old or tx_new is not an optax transformation.
    ValueError: values are pending and tx_new has no memory for them (run one
      step of a scheme with a residual at density 1 first), or keeps their leaf
      dense; or either transformation does not hold exactly one scheme; or the
      optimizer changes and its state differs between workers; or only one of
      the two is an outer step; or a gradient that `gs.delayed` has not sent, or
      an unfinished round of `gs.accumulate`, has no place in the new state; or
      the schemes have other parameters.
  """
  arguments.transformation('tx_old', tx_old)
  arguments.transformation('tx_new', tx_new)
  old = find(state)
  stacked = is_stacked(old)
  pending = old.pending()
  owes = old.owes()
  workers = old.stats.payload_bytes.shape[0] if stacked else 0
  if params is None:
    if any(map(is_masked, jax.tree.leaves(pending, is_leaf=is_masked))):
      raise ValueError(
        'params must be given: the scheme lacks some of them, the frozen ones'
      )
    params = pending
    if stacked and owes:
      params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), pending
      )
  params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
  if isinstance(state, OuterState):
    params = state.anchor  # another outer optimizer may begin at it
  difference = differences.tree_difference(
    state, jax.eval_shape(tx_old.init, params)
  )
  if difference:
    of_new = jax.eval_shape(tx_new.init, params)
    swapped = not differences.tree_difference(state, of_new)
    raise ValueError(
      f"state does not belong to tx_old: {difference}, which is tx_old's. "
      + ('It belongs to tx_new. ' * swapped)
      + 'The order is gs.switch(tx_old, tx_new, state, params); params are '
      'needed if no scheme has some of them (frozen ones)'
    )
  fresh_state = tx_new.init(params)
  _check_kind(state, fresh_state)
  _check_rounds(tx_old, tx_new, state)
  if stacked:
    fresh_state = jax.tree.map(
      lambda x, local: jnp.broadcast_to(x, (workers, *x.shape)) if local else x,
      fresh_state,
      is_local(fresh_state),
    )
  fresh = find(fresh_state, 'the state of tx_new')
  if owes and fresh.owes():
    _check_same_leaves(pending, fresh.pending())
  memory = fresh.memory
  if jax.tree.leaves(old.memory) and not hasattr(old.memory, 'with_pending'):
    owes = False  # an estimate's pending values are no sum of gradients
  dense = [n for n in fresh.dense_leaves if n not in old.dense_leaves]
  if type(memory) is type(old.memory) and not jax.tree.leaves(old.exchange):
    memory = _without(old.memory, pending, dense) if owes else old.memory
  elif owes and hasattr(memory, 'with_pending'):
    both = set(memory._fields) & set(old.memory._fields)
    kept = {name: getattr(old.memory, name) for name in both}
    memory = memory._replace(**kept).with_pending(pending)
    memory = _without(memory, pending, dense)
  elif owes and not _all_zero(pending):
    raise ValueError(
      'the new scheme keeps no sum of gradients, so pending values would be '
      'lost: switch to gs.gradient_dropping(1.0, ...), run one step, which '
      'delivers all of them, and switch from that'
    )
  if hasattr(memory, 'decay'):
    memory = memory._replace(decay=fresh.memory.decay)
  scheme = fresh._replace(steps=old.steps, memory=memory, stats=old.stats)
  new = _graft(fresh_state, state, scheme)
  if isinstance(state, OuterState):
    new = new._replace(step=state.step, anchor=state.anchor)
  return new


def _check_kind(old: Any, new: Any) -> None:
  """Refuses to turn pending gradients into pending progress, and back.

  Raises:
    ValueError: only one of the states is that of an outer step.
  """
  kinds = [isinstance(x, OuterState) for x in (old, new)]
  if kinds[0] != kinds[1]:
    raise ValueError(
      'tx_old and tx_new must both be outer steps (gs.outer), or neither: what '
      'is pending of an outer step is a distance of parameters, and elsewhere '
      'a gradient. Begin anew with gs.workers.init(tx_new, params, ...)'
    )


def _check_same_leaves(old: Any, new: Any) -> None:
  """Refuses schemes of other leaves, as where frozen parameters change.

  Args:
    old: pending values of the old scheme.
    new: those of the new one.

  Raises:
    ValueError: only one of the schemes has a leaf.
  """
  names = [
    {
      arguments.leaf_name(path)
      for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    }
    for tree in (old, new)
  ]
  if differ := sorted(names[0] ^ names[1]):
    raise ValueError(
      'the schemes of tx_old and tx_new must have the same parameters, but '
      f'only one has {", ".join(differ)}: frozen parameters cannot change in '
      'a switch. Begin anew with gs.workers.init(tx_new, params, ...)'
    )


def _without(memory: Any, pending: Any, dense: Sequence[str]) -> Any:
  """A memory without state of the leaves that become dense.

  Args:
    memory: a memory that does not keep an estimate.
    pending: the pending values of all leaves.
    dense: numbers of the leaves that become dense.

  Raises:
    ValueError: one of these leaves has pending values.
  """
  numbers = set(map(int, dense))
  leaves = jax.tree.leaves(pending)
  lost = [n for n in numbers if not _all_zero(leaves[n])]
  if lost:
    names = ', '.join(arguments.leaf_names(pending, lost))
    raise ValueError(
      f'the new scheme leaves {names} dense, so pending values would be '
      'lost: give it a smaller min_size (0 compresses every leaf that it can), '
      'or switch to gs.gradient_dropping(1.0, min_size=0, ...), run one step, '
      'which delivers all of them, and switch from that'
    )

  def one(tree):
    leaves, treedef = jax.tree.flatten(tree)
    kept = [
      jnp.zeros_like(x) if n in numbers else x for n, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, kept)

  return memory._replace(
    **{name: one(getattr(memory, name)) for name in memory._fields}
  )


def _all_zero(tree: Any) -> bool:
  """Whether all numbers are zero; False if a number is traced."""
  leaves = jax.tree.leaves(tree)
  traced = any(isinstance(x, jax.core.Tracer) for x in leaves)
  return not traced and not any(np.any(x) for x in leaves)


def _graft(fresh: Any, old: Any, scheme: Any) -> Any:
  """`fresh` with `scheme`, and the state around it from `old`."""
  treedef: Any
  nodes, treedef = jax.tree.flatten(fresh, is_leaf=is_scheme)
  old_nodes, old_treedef = jax.tree.flatten(old, is_leaf=is_scheme)
  if treedef == old_treedef:
    nodes = old_nodes
  elif is_stacked(scheme) and any(
    map(_is_local_gradient, jax.tree.leaves(old, is_leaf=_is_local_gradient))
  ):
    raise ValueError(
      'the optimizer after gs.local_gradient must not change: its state '
      'differs between workers, as the parameters do, and the state of another '
      'optimizer would begin without worker axes. Switch with the same '
      'optimizer, or start both anew by gs.workers.init'
    )
  new = jax.tree.unflatten(
    treedef, [scheme if is_scheme(x) else x for x in nodes]
  )
  for kind, inside in ((DelayedState, 'scheme'), (AccumulateState, 'inner')):
    for held in _of_kind(old, kind):
      new = _with_held(new, held, inside)
  return new


def _is_local_gradient(x: Any) -> bool:
  return isinstance(x, LocalGradientState)


def _of_kind(state: Any, kind: type) -> list[Any]:
  """The states of this class that a state holds, the outermost ones."""
  nodes = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, kind))
  return [x for x in nodes if isinstance(x, kind)]


def _gradients(held: Any) -> Any:
  """The gradients in a `DelayedState` or an `AccumulateState`."""
  first = held.gradient if isinstance(held, DelayedState) else held.mean
  return first, held.second_moment


def _with_held(new: Any, held: Any, inside: str) -> Any:
  """A new state with the gradients that a wrapper has not sent.

  Args:
    new: the new state.
    held: the wrapper's old state.
    inside: the field with the state of the transformation inside.

  Raises:
    ValueError: the new state has no place for the gradients.
  """
  kind, kept = type(held), _gradients(held)
  likes = [_gradients(x) for x in _of_kind(new, kind)]
  if [*map(jax.tree.structure, likes)] == [jax.tree.structure(kept)]:

    def one(x):
      if not isinstance(x, kind):
        return x
      return held._replace(**{inside: getattr(x, inside)})

    return jax.tree.map(one, new, is_leaf=lambda x: isinstance(x, kind))
  if not _all_zero(kept):
    raise ValueError(_NO_PLACE[kind])
  return new


_NO_PLACE = {
  DelayedState: (
    'tx_new has no place for the gradient that gs.delayed has not sent: send '
    'it by one more update with gradients of zeros, and switch then'
  ),
  AccumulateState: (
    'tx_new has no place for the gradients of an unfinished round of '
    'gs.accumulate: switch after a call that exchanges (mini_step is 0 then)'
  ),
}


def _check_rounds(
  old: optax.GradientTransformation,
  new: optax.GradientTransformation,
  state: Any,
) -> None:
  """Refuses another length of a round of `gs.accumulate` within a round.

  Only the length of an outermost `gs.accumulate` is known.

  Raises:
    ValueError: the state has the sum of an unfinished round, whose gradients
      were divided by another number of calls.
  """
  lengths = [
    getattr(tx, 'known', lambda name: None)('every') for tx in (old, new)
  ]
  rounds = _of_kind(state, AccumulateState)
  if None in lengths or lengths[0] == lengths[1]:
    return
  if not _all_zero([_gradients(x) for x in rounds]):
    raise ValueError(
      f'tx_new must have every={lengths[0]} as tx_old within a round of '
      f'gs.accumulate, got {lengths[1]}: switch after a call that exchanges '
      '(mini_step is 0 then)'
    )
