"""Skips a step that a scheme rejects, on all workers together."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import health
from gradsparse.sockets import ownership
from gradsparse.state.inspection import check_own
from gradsparse.state.inspection import is_scheme
from gradsparse.state.inspection import schemes_in
from gradsparse.state.scheme import AccumulateState
from gradsparse.state.scheme import DelayedState
from gradsparse.transform import guards
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
import jax
import jax.numpy as jnp
import optax


@ownership.resized(skipped='copy', consecutive='copy')
class SkipRejectedState(NamedTuple):
  """State of `skip_rejected`.

  The counters are equal on all workers. They have a worker axis only if updates
  are typed varying between workers (`gs.local_gradient`).

  Attributes:
    skipped: int32, rejected updates so far.
    consecutive: int32, rejected updates since the last accepted one.
    inner: state of the transformation inside.
  """

  skipped: jax.Array
  consecutive: jax.Array
  inner: Any


@described
def skip_rejected(
  inner: optax.GradientTransformation, *, max_consecutive: int | None = None
) -> Described:
  """Returns zeros for a rejected update, and keeps the optimizer's state.

  A scheme that rejects a step returns NaN on all workers. Without this wrapper,
  NaN gets into the optimizer's moments and the parameters, as after a dense
  mean. Put it around the optimizer after the scheme, or around the whole chain:

    optax.chain(gs.dgc(...), gs.skip_rejected(optax.sgd(lr)))
    gs.skip_rejected(optax.chain(gs.dgc(...), optax.sgd(lr)))

  An update with an element that is not finite is rejected. The update that is
  checked is the input of `inner`, or its output if the state of `inner` holds a
  scheme. Local gradients are not checked, so all workers come to the same
  verdict, without communication across the scheme's axis.

  If `optax.partition` gives parts of the parameters schemes of their own, give
  each part a `skip_rejected` of its own, too: one scheme may reject a step in
  which another delivers. If the optimizer makes a number that is not finite of
  a finite mean, that mean is lost: the scheme has delivered it.

  Around a whole chain, all workers exchange in every step. The scheme keeps its
  state after a rejected step (`steps` and `rejected_steps` increase, nothing is
  delivered), a round of `gs.accumulate` ends, and `gs.delayed` goes on to its
  next gradient. All other state does not change, including that of
  transformations before the scheme. An `optax.MultiSteps` inside does not see a
  rejected call. (One outside keeps a NaN in its sum for ever: prefer
  `gs.accumulate`.)

  Do not put it before a scheme, where it would check a worker's own gradient.

  >>> import gradsparse as gs
  >>> tx = optax.chain(
  ...   gs.dense(axis_name=None), gs.skip_rejected(optax.sgd(0.1, 0.9))
  ... )
  >>> params = {'w': jnp.ones((2, 2))}
  >>> spoiled = {'w': jnp.full((2, 2), jnp.nan)}
  >>> updates, state = tx.update(spoiled, tx.init(params))
  >>> updates['w'].tolist(), int(state[1].skipped)
  ([[0.0, 0.0], [0.0, 0.0]], 1)

  Args:
    inner: an optimizer, or schemes and optimizer. Its update may take keyword
      arguments.
    max_consecutive: the most rejected updates in a row that become zeros, at
      least 1. A compiled step cannot raise, so further ones are NaN, for the
      program's own check of its parameters or its loss. The optimizer's state
      stays finite even then. None: no limit.

  Raises:
    TypeError: inner is not an optax transformation, or max_consecutive is not a
      whole number.
    ValueError: max_consecutive is not positive; from init: inner has several
      schemes side by side; from update: the state is another transformation's.
  """
  guards.check_optimizer('inner', inner, 'gs.skip_rejected')
  if max_consecutive is not None:
    max_consecutive = arguments.whole_number(
      'max_consecutive', max_consecutive, 1
    )
  inner = optax.with_extra_args_support(inner)

  def init(params):
    within = inner.init(params)
    if _are_side_by_side(within):
      raise ValueError(_ONE_VERDICT)
    return SkipRejectedState(jnp.int32(0), jnp.int32(0), within)

  def update(updates, state, params=None, **extra):
    check_own('skip_rejected', state, SkipRejectedState)
    out, new = inner.update(updates, state.inner, params, **extra)
    around = bool(schemes_in(new))
    accepted = health.all_finite(jax.tree.leaves(out if around else updates))
    # Zeros within a round of accumulate do not end a row of rejections.
    goes_on = _within_a_round(new) if around else False
    row = state.consecutive
    row = jnp.where(accepted, jnp.where(goes_on, row, 0), row + 1)
    instead = jnp.float32(0)
    if max_consecutive is not None:
      instead = jnp.where(row > max_consecutive, jnp.nan, instead)
    return (
      jax.tree.map(
        lambda u: jnp.where(accepted, u, instead.astype(u.dtype)), out
      ),
      SkipRejectedState(
        skipped=state.skipped + jnp.where(accepted, 0, 1),
        consecutive=row,
        inner=_chosen(accepted, new, state.inner),
      ),
    )

  return Described.of(init, update)


_ONE_VERDICT = (
  'gs.skip_rejected must not judge several schemes of optax.partition '
  'together: one may reject a step in which another delivers, and what it '
  'delivered would be lost. Give each part its own: optax.partition({"a": '
  'optax.chain(gs.dgc(...), gs.skip_rejected(optimizer)), "b": ...}, labels)'
)


def check_verdicts(state: Any) -> None:
  """Refuses a `skip_rejected` after several schemes of `optax.partition`.

  Args:
    state: of a whole chain.

  Raises:
    ValueError: see above.
  """
  judges = jax.tree.leaves(state, is_leaf=_is_skip)
  after = any(_is_skip(x) and not schemes_in(x.inner) for x in judges)
  if after and _are_side_by_side(state):
    raise ValueError(_ONE_VERDICT)


def _is_skip(x: Any) -> bool:
  return isinstance(x, SkipRejectedState)


def _are_side_by_side(state: Any) -> bool:
  """Whether parts of the parameters have schemes without their own verdict.

  Nothing can be lost if none of these schemes has a memory.
  """

  def unjudged(part):
    judged = any(map(_is_skip, jax.tree.leaves(part, is_leaf=_is_skip)))
    return [] if judged else schemes_in(part)

  def is_partition(x):
    return isinstance(x, optax.PartitionState) or _is_skip(x)

  for node in jax.tree.leaves(state, is_leaf=is_partition):
    if isinstance(node, optax.PartitionState):
      parts = [own for x in node.inner_states.values() if (own := unjudged(x))]
      if len(parts) > 1 and any(x.owes() for own in parts for x in own):
        return True
  return False


def _is_accumulate(x: Any) -> bool:
  return isinstance(x, AccumulateState)


def _within_a_round(state: Any) -> jax.Array:
  """Whether an accumulate inside has returned zeros, bool scalar."""
  found = jnp.bool_(False)
  for x in jax.tree.leaves(state, is_leaf=_is_accumulate):
    if _is_accumulate(x):
      found |= (x.mini_step != 0) | _within_a_round(x.inner)
  return found


def _chosen(accepted: jax.Array, new: Any, old: Any) -> Any:
  """The new state if the step was accepted, else that of a rejected step."""

  def is_node(x):
    # State inside MultiSteps does not change, even a scheme's.
    kinds = (AccumulateState, DelayedState, optax.MultiStepsState)
    return is_scheme(x) or isinstance(x, kinds)

  def chosen(new, old):
    # The gradient that `delayed` holds is the next one, not the rejected one.
    if is_scheme(new) or isinstance(new, DelayedState):
      return new
    if _is_accumulate(new):
      return new._replace(inner=_chosen(accepted, new.inner, old.inner))
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  return jax.tree.map(chosen, new, old, is_leaf=is_node)
