"""A step that a scheme rejects, passed over on all workers together."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import health
from gradsparse.sockets import ownership
from gradsparse.state.inspection import check_own
from gradsparse.state.inspection import is_scheme
from gradsparse.state.inspection import schemes_in
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
from gradsparse.wrappers.accumulate import AccumulateState
import jax
import jax.numpy as jnp
import optax


@ownership.resized(skipped='copy', consecutive='copy')
class SkipRejectedState(NamedTuple):
  """State of `skip_rejected`.

  The counters are the same on all workers. Only where updates differ between
  workers by type (`gs.local_gradient`) the counters have a worker axis, too.

  Attributes:
    skipped: int32, rejected updates so far.
    consecutive: int32, rejected updates since the last one that was not.
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

  A scheme that rejects a step returns NaN on all workers. Without this, NaN
  gets into the optimizer's moments and the parameters, as after a dense mean.
  Put it around what follows the scheme, or around the whole chain:

    optax.chain(gs.dgc(...), gs.skip_rejected(optax.sgd(lr)))
    gs.skip_rejected(optax.chain(gs.dgc(...), optax.sgd(lr)))

  Which of the two it is, the state of `inner` tells. Without a scheme in
  there, the verdict is that of the update that comes in: not finite in any
  element is rejected. With one, the verdict is that of the update that comes
  out. A local gradient is never judged, so all workers come to the same
  verdict, and nothing is sent for it across the scheme's axis.

  Around a whole chain all workers exchange in every step. The scheme's state
  moves on as a rejected step leaves it (`steps` and `rejected_steps` go up,
  nothing was delivered), and a round of `gs.accumulate` ends. All other state
  stays what it was, that of links before the scheme too. For an
  `optax.MultiSteps` inside, a rejected call never happened. (One outside keeps
  a NaN in its sum for good: prefer `gs.accumulate`.)

  Not before a scheme: there it would judge a worker's own gradient.

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
    max_consecutive: how many rejected updates in a row become zeros, at least
      1. A compiled step cannot raise, so the next update of that row is NaN
      again, and the program's own check of its parameters or its loss stops
      it. The optimizer's state stays finite even then. None: any number.

  Raises:
    TypeError: inner is no optax transformation, or max_consecutive no whole
      number.
    ValueError: max_consecutive is not positive; from update: the state is not
      this one's.
  """
  arguments.instance('inner', inner, optax.GradientTransformation)
  if max_consecutive is not None:
    max_consecutive = arguments.whole_number(
      'max_consecutive', max_consecutive, 1
    )
  inner = optax.with_extra_args_support(inner)

  def init(params):
    return SkipRejectedState(jnp.int32(0), jnp.int32(0), inner.init(params))

  def update(updates, state, params=None, **extra):
    check_own('skip_rejected', state, SkipRejectedState)
    out, new = inner.update(updates, state.inner, params, **extra)
    around = bool(schemes_in(new))
    accepted = health.all_finite(jax.tree.leaves(out if around else updates))
    # The zeros within a round of accumulate end no row of rejections.
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


def _is_accumulate(x: Any) -> bool:
  return isinstance(x, AccumulateState)


def _within_a_round(state: Any) -> jax.Array:
  """Whether some accumulate inside has returned zeros, bool scalar."""
  found = jnp.bool_(False)
  for x in jax.tree.leaves(state, is_leaf=_is_accumulate):
    if _is_accumulate(x):
      found |= (x.mini_step != 0) | _within_a_round(x.inner)
  return found


def _chosen(accepted: jax.Array, new: Any, old: Any) -> Any:
  """The new state if the step was accepted, else what a rejected one leaves."""

  def is_node(x):
    # What is inside of MultiSteps stays what it was, a scheme's state too.
    kinds = (AccumulateState, optax.MultiStepsState)
    return is_scheme(x) or isinstance(x, kinds)

  def chosen(new, old):
    if is_scheme(new):
      return new
    if _is_accumulate(new):
      return new._replace(inner=_chosen(accepted, new.inner, old.inner))
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  return jax.tree.map(chosen, new, old, is_leaf=is_node)
