"""The state of P workers, handed to another number of them.

What workers owe becomes an update of sum_i r_i / P, so this is what must stay.
Lay the old workers side by side on a line, P stretches of 1 / P, and the new
ones along the same line. A new worker takes the mean of what lies along its
stretch:

  r'_j = sum_i w_ji r_i      w_ji: the part of stretch j that is in stretch i
  sum_j r'_j / Q = sum_i r_i / P      because sum_j w_ji = Q / P

  4 -> 2   the mean of two         2 -> 4   each old one twice
  3 -> 2   2/3 and 1/3 of two      1 -> 8   eight copies

Why not the mean of all to everyone, which conserves as much and is simpler: all
would hold the same, and choose the same coordinates to send, so that Q messages
would deliver what one does. Here workers stay as different as their numbers
allow. As weights add up to 1, no number grows beyond the largest there was: it
still fits what a code or a threshold was made for. Several copies of one old
worker send what that one would have sent, and part with the next gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
import warnings

from gradsparse import arguments
from gradsparse.sockets import ownership
from gradsparse.state import differences
from gradsparse.state.inspection import find_all
from gradsparse.state.inspection import is_scheme
from gradsparse.state.scheme import CompressedMeanState
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Shares(NamedTuple):
  """What new workers take of old ones.

  Attributes:
    sources: int[Q, m], numbers of old workers; some more than once.
    weights: float64[Q, m], the share of each; a row adds up to 1.
  """

  sources: np.ndarray
  weights: np.ndarray


def shares(old: int, new: int) -> Shares:
  """Who takes how much of whom; see the top of this file."""
  # In units in which an old worker is `new` long and a new one `old`.
  begin = np.arange(new)[:, None] * old
  end = begin + old
  first = begin // new
  most = int(np.max((end - 1) // new - first)) + 1
  sources = first + np.arange(most)
  common = np.minimum(end, (sources + 1) * new)
  common = common - np.maximum(begin, sources * new)
  return Shares(np.minimum(sources, old - 1), np.maximum(common, 0) / old)


def resize(
  tx: optax.GradientTransformation,
  state: Any,
  num_workers: int,
  params: Any = None,
) -> Any:
  """The state with which another number of workers goes on.

  What is pending stays what it is as the update that it will become, its mean
  over workers; so does momentum that was not exchanged yet, what `accumulate`
  holds of an unfinished round, and any other floating-point state that differs
  between workers. A second moment of the variance criterion becomes that of
  what is pending now. What is equal on all workers stays. What an exchange owes
  (`exchange='reduce_scatter'`) goes to the memory. Measurements of the last
  update, sizes and counts, begin at zero.

    state = gs.workers.resize(tx, state, 2)      # of 4 workers before
    step = gs.workers.parallel(step, ..., num_workers=2)

  The state comes back as arrays wherever JAX put them; `gs.workers.shardings`
  says where they belong on a mesh. Parameters that differ between workers
  (`gs.local_gradient`) are not in the state: average them, and stack the mean.

  Draws (of QSGD, TernGrad, random-k) come of the step and the worker's number,
  so there is nothing to carry, and new workers have draws of their own.

  Args:
    tx: what the state belongs to: any optax transformation with schemes
      inside.
    state: as `gs.workers.init` makes it: what is a worker's own has a leading
      worker axis.
    num_workers: how many go on; the number before is in the state. The same
      number gets the state as it is.
    params: of one worker, or their shapes. Needed only if no scheme has some
      of them (frozen ones, `optax.set_to_zero`).

  Warns:
    UserWarning: something cannot be carried over, and what: what the exchange
      owes beside a memory that keeps nothing; whole numbers or keys that
      differ between workers and of which nothing is known, which are copied.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: num_workers is not positive, the state has no scheme or no
      worker axis, or it is not that of tx; or some parameters are in no scheme
      and params is not given.
  """
  arguments.instance('tx', tx, optax.GradientTransformation)
  num_workers = arguments.num_workers(num_workers)
  schemes = find_all(state)
  old = _num_workers(schemes)
  if params is None:
    params = _shapes_of_params(schemes)
  own = _own(tx, params, state, old)
  if num_workers == old:
    return state
  lost: list[str] = []
  state = jax.tree.map(
    lambda x: (
      _without_exchange(x, lost).idle().unnumbered() if is_scheme(x) else x
    ),
    state,
    is_leaf=is_scheme,
  )
  table = shares(old, num_workers)

  def handed(path, x, own, rule):
    if not own:
      return x
    x = jnp.asarray(x)
    if rule != 'copy' and not jnp.issubdtype(x.dtype, jnp.inexact):
      lost.append(
        f'{jax.tree_util.keystr(path)} of the state ({x.dtype}) differs between'
        ' workers and cannot be shared out: new workers have copies of what'
        ' old ones had'
      )
      rule = 'copy'
    return _HANDED[rule](x, table)

  state = jax.tree_util.tree_map_with_path(
    handed, state, own, ownership.resize_rules(state)
  )
  for message in lost:
    warnings.warn(message, UserWarning, stacklevel=2)
  return state


def _num_workers(schemes: Sequence[CompressedMeanState]) -> int:
  """How many workers there were.

  Raises:
    ValueError: there is no worker axis, or there are several.
  """
  shapes = {jnp.shape(scheme.stats.payload_bytes) for scheme in schemes}
  if len(shapes) > 1 or len(min(shapes)) != 1:
    raise ValueError(
      'state must have one worker axis, the same for all schemes, as '
      'gs.workers.init(tx, params, num_workers) makes it; its schemes have '
      f'worker axes of {", ".join(map(str, sorted(shapes)))}'
    )
  ((workers,),) = shapes
  return workers


def _shapes_of_params(schemes: Sequence[CompressedMeanState]) -> Any:
  """Parameters as schemes know them: what they owe is shaped like those.

  Raises:
    ValueError: some parameters have no scheme.
  """

  def owed(scheme):
    one = jax.tree.map(
      lambda x, own: jax.ShapeDtypeStruct(jnp.shape(x)[own:], x.dtype),
      scheme,
      ownership.is_local(scheme),
    )
    return jax.eval_shape(lambda s: s.pending(), one)

  params = owed(schemes[0])
  for scheme in schemes[1:]:
    params = _overlaid(params, owed(scheme))
  if any(map(_is_masked, jax.tree.leaves(params, is_leaf=_is_masked))):
    raise ValueError(
      'some parameters are in no scheme of this state, which does not tell '
      'their shapes: give resize(tx, state, num_workers, params) the '
      'parameters of one worker'
    )
  return params


def _is_masked(x: Any) -> bool:
  return isinstance(x, optax.MaskedNode)


def _overlaid(a: Any, b: Any) -> Any:
  """A tree with what either of two has, where the other has a MaskedNode."""
  if _is_masked(a):
    return b
  if _is_masked(b):
    return a
  children, treedef = jax.tree.flatten(a, is_leaf=lambda x: x is not a)
  if jax.tree_util.treedef_is_leaf(treedef):
    return a
  others = jax.tree.leaves(b, is_leaf=lambda x: x is not b)
  return jax.tree.unflatten(
    treedef, [_overlaid(*pair) for pair in zip(children, others, strict=True)]
  )


def _own(tx: Any, params: Any, state: Any, workers: int) -> Any:
  """Tree of bools: which leaves have a worker axis.

  Raises:
    ValueError: the state is not that of tx, or of other parameters.
  """
  one = jax.eval_shape(tx.init, params)
  difference = differences.tree_difference(state, one)
  if difference:
    raise ValueError(
      f"state does not belong to tx: {difference}, which is tx's"
    )

  def is_own(path, x, like):
    shape = jnp.shape(x)
    if shape in (like.shape, (workers, *like.shape)):
      return shape != like.shape
    raise ValueError(
      f'state does not belong to tx: {jax.tree_util.keystr(path)} has shape '
      f'{shape}, and must have {like.shape}, or {(workers, *like.shape)} if '
      'it is of each worker'
    )

  return jax.tree_util.tree_map_with_path(is_own, state, one)


def _without_exchange(
  scheme: CompressedMeanState, lost: list[str]
) -> CompressedMeanState:
  """The state with nothing left at the exchange.

  Each worker owes there for its own part of the vector, and other numbers of
  workers cut it into other parts.

  Args:
    scheme: its state.
    lost: gets a message, where there is no memory for what was left there.
  """
  if not jax.tree.leaves(scheme.exchange):
    return scheme
  if hasattr(scheme.memory, 'with_pending'):
    return scheme.settled()
  lost.append(
    'what the exchange lost by rounding the last mean, and would have added to '
    'the next, is not carried over: workers owe it for their own parts of the '
    'vector, and this scheme has no memory to put it into'
  )
  return scheme.forgiven()


def _shared_out(x: jax.Array, table: Shares) -> jax.Array:
  """sum_i w_ji x_i; where all have the same, that, to the bit.

  The momentum of leaves that stay dense is the same on all workers, and must
  not differ by rounding afterwards.
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  base = out = wide[table.sources[:, 0]]
  for source, weight in zip(
    table.sources.T[1:], table.weights.T[1:], strict=True
  ):
    out = out + _column(weight, wide) * (wide[source] - base)
  return out.astype(x.dtype)


def _squares(x: jax.Array, table: Shares) -> jax.Array:
  """sum_i w_ji^2 x_i."""
  out = jnp.zeros((len(table.sources), *x.shape[1:]), x.dtype)
  for source, weight in zip(table.sources.T, table.weights.T, strict=True):
    out = out + _column(weight**2, x) * x[source]
  return out


def _copied(x: jax.Array, table: Shares) -> jax.Array:
  """That of the first old worker of each."""
  return x[table.sources[:, 0]]


def _column(weights: np.ndarray, like: jax.Array) -> np.ndarray:
  """Numbers of workers, to multiply arrays of all of them with."""
  return weights.astype(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))


_HANDED = {'share': _shared_out, 'squares': _squares, 'copy': _copied}
