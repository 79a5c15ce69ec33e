"""Adapts the state of P workers to another number of workers, Q.

Residuals r_i of workers become an update of sum_i r_i / P, which must not
change. Divide a line into P equal intervals, one for each old worker, and the
same line into Q equal intervals for the new ones. A new worker takes the mean
over its interval:

  r'_j = sum_i w_ji r_i    w_ji: the fraction of interval j inside interval i
  sum_j r'_j / Q = sum_i r_i / P      because sum_j w_ji = Q / P

  4 -> 2   the mean of two         2 -> 4   each old one twice
  3 -> 2   2/3 and 1/3 of two      1 -> 8   eight copies

The mean of all residuals for every new worker would be simpler and conserve as
much. But all workers would then select the same coordinates, so that Q messages
would deliver no more than one. Here workers stay as different as possible. As
weights sum to 1, no number exceeds the largest old one, so it still fits codes
and thresholds. Copies of one old worker send the same message, until new
gradients make them differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
import warnings

from gradsparse import arguments
from gradsparse.sockets import ownership
from gradsparse.state import differences
from gradsparse.state.inspection import find_all
from gradsparse.state.inspection import is_masked
from gradsparse.state.inspection import is_scheme
from gradsparse.state.scheme import CompressedMeanState
import jax
import jax.numpy as jnp
import numpy as np
import optax


class Shares(NamedTuple):
  """The shares that new workers take of old ones.

  Attributes:
    sources: int[Q, m], numbers of old workers; some more than once.
    weights: float64[Q, m], the share of each; a row sums to 1.
  """

  sources: np.ndarray
  weights: np.ndarray


def shares(old: int, new: int) -> Shares:
  """The shares for these numbers of workers, by intervals as above."""
  # In units in which an old interval has length `new` and a new one `old`.
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
  """Converts a state to another number of workers.

  The mean over workers of pending values does not change, nor does the update
  that they become. The same holds for a worker's own momentum, the gradients
  that `accumulate` holds of an unfinished round, and other floating-point state
  that differs between workers. A second moment of the variance criterion
  becomes that of the new pending values. State that is equal on all workers is
  kept. An exchange's own residual (`exchange='reduce_scatter'`) moves to the
  memory. Measurements of the last update begin at zero.

    state = gs.workers.resize(tx, state, 2)      # of 4 workers before
    step = gs.workers.parallel(step, ..., num_workers=2)

  JAX chooses the devices of the new arrays; `gs.workers.shardings` has their
  shardings on a mesh. Parameters that differ between workers
  (`gs.local_gradient`) are not in the state: average them, and stack the mean.

  Random draws (of QSGD, TernGrad, random-k) depend on the step and the worker's
  number only, so no state is converted for them.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> tx = gs.gradient_dropping(0.01, axis_name='workers')
  >>> state = gs.workers.init(tx, {'w': jnp.zeros((5, 3))}, num_workers=4)
  >>> state = gs.workers.resize(tx, state, num_workers=2)
  >>> gs.pending(state)['w'].shape
  (2, 5, 3)

  Args:
    tx: the transformation of the state: any optax transformation with schemes
      inside.
    state: state as `gs.workers.init` makes it: worker-local leaves have a
      leading worker axis.
    num_workers: the new number of workers. With the old number, the state is
      returned unchanged.
    params: parameters of one worker, or their shapes. Needed only if some of
      them are in no scheme (frozen ones, `optax.set_to_zero`).

  Warns:
    UserWarning: state cannot be converted: an exchange's own residual, if the
      memory keeps nothing; or whole numbers or keys that differ between workers
      and have no rule, which are copied.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: num_workers is not positive, the state has no scheme or no
      worker axis, or it is not that of tx; or parameters are in no scheme and
      params is not given.
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
        ' workers and cannot be shared out: new workers get copies of the old'
        " workers' values"
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
  """The old number of workers.

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
  """The shapes of the parameters, from the schemes' pending values.

  Raises:
    ValueError: some parameters have no scheme.
  """

  def shapes_of(scheme):
    one = jax.tree.map(
      lambda x, own: jax.ShapeDtypeStruct(jnp.shape(x)[own:], x.dtype),
      scheme,
      ownership.is_local(scheme),
    )
    return jax.eval_shape(lambda s: s.pending(), one)

  params = shapes_of(schemes[0])
  for scheme in schemes[1:]:
    params = _overlaid(params, shapes_of(scheme))
  if any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked))):
    raise ValueError(
      'some parameters are in no scheme of this state, so their shapes are '
      'unknown: pass resize(tx, state, num_workers, params) the parameters of '
      'one worker'
    )
  return params


def _overlaid(a: Any, b: Any) -> Any:
  """Merges two trees; each has a MaskedNode where the other has a leaf."""
  if is_masked(a):
    return b
  if is_masked(b):
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
      f"state does not belong to tx: {difference}, which is tx's; "
      'gs.switch(tx_old, tx, state) converts the state of another scheme; of a '
      'larger tree give the state of tx alone'
    )

  def is_own(path, x, like):
    shape = jnp.shape(x)
    if shape in (like.shape, (workers, *like.shape)):
      return shape != like.shape
    raise ValueError(
      f'state does not belong to tx: {jax.tree_util.keystr(path)} must have '
      f'shape {like.shape}, or {(workers, *like.shape)} if it differs between '
      f'workers, got {shape}'
    )

  return jax.tree_util.tree_map_with_path(is_own, state, one)


def _without_exchange(
  scheme: CompressedMeanState, lost: list[str]
) -> CompressedMeanState:
  """The state with the exchange's own residual set to zero.

  Each worker has this residual for its part of the vector, and another number
  of workers has other parts.

  Args:
    scheme: the scheme's state.
    lost: gets a message if there is no memory that takes the residual over.
  """
  if not jax.tree.leaves(scheme.exchange):
    return scheme
  if hasattr(scheme.memory, 'with_pending'):
    return scheme.settled()
  lost.append(
    'the rounding error of the last mean, which the exchange would have added '
    "to the next, is not carried over: it belongs to workers' own parts of the "
    'vector, and this scheme has no memory for it'
  )
  return scheme.forgiven()


def _shared_out(x: jax.Array, table: Shares) -> jax.Array:
  """sum_i w_ji x_i; bit-identical to x_i where all are equal.

  The momentum of leaves that stay dense is equal on all workers, and must not
  differ by rounding afterwards.
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
  """The x of each new worker's first old worker."""
  return x[table.sources[:, 0]]


def _column(weights: np.ndarray, like: jax.Array) -> np.ndarray:
  """Reshapes workers' weights to broadcast against arrays of all workers."""
  return weights.astype(like.dtype).reshape(-1, *(1,) * (like.ndim - 1))


_HANDED = {'share': _shared_out, 'squares': _squares, 'copy': _copied}
