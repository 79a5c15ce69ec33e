"""Transformations of a worker's own gradient.

`clip_local_norm` clips it before the scheme accumulates it. `local_gradient`
combines it with the mean over workers. Parameters then differ between workers,
and `periodic_average` averages them at intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import contextvars
import math
from typing import Any, Literal, get_args

from gradsparse import arguments
from gradsparse import health
from gradsparse import traced
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import ownership
from gradsparse.state.inspection import check_own
from gradsparse.state.inspection import is_scheme
from gradsparse.state.scheme import LocalGradientState
from gradsparse.transform import inputs
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.described import Described
from gradsparse.transform.described import described
import jax
import jax.numpy as jnp
import optax

Mode = Literal['sum', 'partial', 'error']
MODES = get_args(Mode)

_ONLY_MEANS: contextvars.ContextVar[bool] = contextvars.ContextVar(
  'gradsparse_only_means', default=False
)


@described
def clip_local_norm(
  threshold: float, *, axis_name: AxisName | None
) -> Described:
  """Rescales the local gradient when its norm exceeds threshold * sqrt(P).

  The norm is that of the whole tree. `threshold` is the one for a single worker
  (or for clipping after the exchange): if workers' gradients are independent,
  the gradient of the mean loss over 1/P of the batch has a norm about sqrt(P)
  times that of the whole batch.

  Do not use it before a variance-based scheme: its `second_moment` is that of
  the unclipped gradient, and a chain cannot scale it. The clipped gradient
  would seem more ambiguous than it is, and less would be sent.

  Differs from the paper in notation only: its local gradient has the factor
  1/P, so it clips at threshold / sqrt(P).

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> clip = gs.clip_local_norm(2.5, axis_name=None)
  >>> grads = {'w': jnp.array([3.0, 4.0])}
  >>> updates, _ = jax.jit(clip.update)(grads, clip.init(grads))
  >>> print(updates['w'])
  [1.5 2. ]

  Args:
    threshold: in units of the gradient, > 0. If it is traced and out of range,
      the gradient becomes NaN, and the scheme rejects the step.
    axis_name: mapped axis of the workers; None is one worker.

  Raises:
    TypeError: an argument is of the wrong kind; from update: a leaf is not
      floating-point.
    ValueError: threshold is not positive and finite; from update: leaves are
      shards over another mesh axis.

  References:
    Lin et al., arXiv 1712.01887, section 3.2 and appendix C.
  """
  threshold = arguments.number(
    'threshold', threshold, arguments.POSITIVE, traced=True, float64=True
  )
  axis_name = arguments.axis_name(axis_name)

  def update(updates, state, params=None, **extra):
    del params, extra
    inputs.check_floating(updates, 'gradients')
    updates = jax.tree.map(jnp.asarray, updates)
    comm = Comm(axis_name)
    comm.check_unsharded(updates, 'clip_local_norm')
    limit = threshold * math.sqrt(comm.size)
    top, norm = health.norm(jax.tree.leaves(updates))
    # A gradient that is not finite stays so, for the scheme that follows. In
    # units of the largest, as the norm may overflow float32.
    over = norm * top > limit
    usable = traced.in_range((threshold, arguments.POSITIVE))

    def clipped(g):
      own = g.astype(top.dtype)
      out = jnp.where(over, own / top * (limit / norm), own).astype(g.dtype)
      return out if usable is True else jnp.where(usable, out, jnp.nan)

    return jax.tree.map(clipped, updates), state

  return Described.of(lambda _: optax.EmptyState(), update)


@contextlib.contextmanager
def only_means() -> Iterator[None]:
  """A context in which updates are the means, without the local gradient.

  Updates that still differ between workers are not averaged by any scheme.
  """
  token = _ONLY_MEANS.set(True)
  try:
    yield
  finally:
    _ONLY_MEANS.reset(token)


def means_wanted() -> bool:
  """Whether this code runs inside `only_means`."""
  return _ONLY_MEANS.get()


@described
def local_gradient(inner: CompressedMean, mode: Mode = 'sum') -> Described:
  """Combines this worker's own gradient with the mean over workers.

  With G the mean of the sent gradients, L this worker's gradient, S the part
  that it sent, E its residual after that, and P workers:

    'sum'      C = (G + L / P) / 2
    'partial'  C = G + (L - S) / P
    'error'    C = G + E / P, and E <- 0

  (the paper sums over workers; here all is divided by P). C goes to the
  optimizer, normally Adam. It differs between workers, and so do the
  parameters: average them with `periodic_average`.

  Leaves that stay dense have S = L and E = 0.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> from jax.sharding import PartitionSpec as P
  >>> scheme = gs.gradient_dropping(0.01, axis_name='workers')
  >>> tx = gs.local_gradient(scheme, 'partial')
  >>> gs.workers.params_spec(tx, {'w': jnp.zeros(2)}) == P('workers')
  True

  Args:
    inner: a gradsparse scheme, not a chain around it, as S must be known.
    mode: 'sum', 'partial' or 'error'.

  Raises:
    TypeError: inner is not a scheme, or mode is not text.
    ValueError: mode is unknown, inner does not send parts of the gradient
      (EF21), or has no residual with 'error'; from update: the state is another
      transformation's.

  References:
    Aji, Heafield & Bogoychev, "Combining global sparse gradients with local
    gradients", section 3.
  """
  arguments.one_of('mode', mode, MODES)
  if not isinstance(inner, CompressedMean):
    raise TypeError(
      'inner must be a gradsparse scheme such as gs.gradient_dropping(...), '
      'whose sent values are known, got '
      f'{type(inner).__name__}. Chain other transformations around it: '
      'optax.chain(gs.local_gradient(gs.gradient_dropping(...)), optax.adam())'
    )
  memory = inner.scheme.memory
  if memory.floats and not memory.sums:
    raise ValueError(
      f'local_gradient needs a scheme that sends parts of the gradient, but '
      f'{inner.scheme.compressor.name} sends corrections of an estimate'
    )
  if mode == 'error' and not memory.sums:
    raise ValueError(
      "mode='error' uses the residual, but "
      f'{inner.scheme.compressor.name} keeps none'
    )

  def init(params):
    return LocalGradientState(inner.init(params))

  def update(updates, state, params=None, **extra):
    check_own('local_gradient', state, LocalGradientState)
    comm = Comm(inner.scheme.axis_name)
    mean, new, sent = inner.step(updates, state.inner, params, **extra)
    share = 1.0 / comm.size

    def combined(g, local, s, e):
      kind = health.wide(g.dtype)
      local, s, e = (x.astype(kind) for x in (local, s, e))
      if mode == 'sum':
        out = (g.astype(kind) + share * local) / 2
      elif mode == 'partial':
        out = g.astype(kind) + share * (local - s)
      else:
        out = g.astype(kind) + share * e
      return out.astype(g.dtype)

    if means_wanted():
      return mean, LocalGradientState(new)
    pending = new.memory.pending()
    out = jax.tree.map(combined, mean, updates, sent, pending)
    if mode == 'error':
      # In a rejected step the update is NaN, and the residual is kept.
      earlier = state.inner.stats.rejected_steps
      taken = new.stats.rejected_steps == earlier
      memory = jax.tree.map(
        lambda empty, kept: jnp.where(taken, empty, kept),
        _emptied(new.memory),
        new.memory,
      )
      new = new._replace(memory=memory)
    return comm.local(out), LocalGradientState(new)

  return Described.of(init, update)


def _emptied(memory: Any) -> Any:
  """A memory without pending values."""
  if hasattr(memory, 'emptied'):
    return memory.emptied()
  return memory.with_pending(jax.tree.map(jnp.zeros_like, memory.pending()))


def may_be_averaged(both: Any) -> list[int]:
  """The leaves that `periodic_average` averages if they differ.

  Args:
    both: parameters and the optimizer's state.

  Returns:
    Numbers of leaves, where each scheme's state counts as one.
  """
  leaves = jax.tree.leaves(both, is_leaf=is_scheme)
  # Fields that a class marks as a worker's own hold pending values.
  local = jax.tree.leaves(ownership.is_local(both), is_leaf=is_scheme)

  def floating(x):
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)

  return [
    i
    for i, x in enumerate(leaves)
    if not is_scheme(x) and floating(x) and not local[i]
  ]


def periodic_average(
  params: Any,
  opt_state: Any,
  step: jax.Array | int,
  *,
  every: int = 500,
  axis_name: AxisName | None,
) -> tuple[Any, Any]:
  """Averages parameters over workers once in `every` steps.

  Call it after `optax.apply_updates`, inside the mapped step. The optimizer's
  floating-point state that differs between workers (Adam's moments) is averaged
  too. A scheme's memory and the gradients that `gs.accumulate` holds are not:
  they stay each worker's own.

  `gs.plan` and `gs.metrics` do not count the bytes of averages;
  `gs.workers.plan_average` does.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> def step(params):
  ...   return gs.periodic_average(params, (), 500, axis_name='workers')
  >>> run = jax.jit(jax.vmap(step, axis_name='workers'))
  >>> print(run(jnp.array([1.0, 3.0]))[0])
  [2. 2.]

  Args:
    params: this worker's parameters.
    opt_state: this worker's optimizer state.
    step: steps done, equal on all workers; averages if `every` divides it.
    every: in steps, at least 1.
    axis_name: mapped axis of the workers, or None.

  Returns:
    (params, opt_state).

  Raises:
    TypeError: every or step is not a whole number, axis_name is not text, or a
      leaf is not an array.
    ValueError: every is not positive, or step is negative.

  References:
    Aji, Heafield & Bogoychev, section 5 (every 500 steps).
  """
  every = arguments.whole_number('every', every, 1)
  step = arguments.whole_number('step', step, 0, traced=True)
  arguments.arrays('params', params)
  arguments.arrays('opt_state', opt_state)
  comm = Comm(arguments.axis_name(axis_name))
  both = params, opt_state
  leaves, treedef = jax.tree.flatten(both, is_leaf=is_scheme)
  chosen = [i for i in may_be_averaged(both) if comm.may_differ(leaves[i])]
  own = [leaves[i] for i in chosen]

  def averaged(own):
    means = comm.mean([x.astype(health.wide(x.dtype)) for x in own])
    return comm.local(
      [m.astype(x.dtype) for m, x in zip(means, own, strict=True)]
    )

  if not chosen:
    return params, opt_state
  due = comm.uniform(jnp.asarray(step) % every == 0)
  new = jax.lax.cond(due, averaged, lambda own: own, own)
  for i, x in zip(chosen, new, strict=True):
    leaves[i] = x
  return jax.tree.unflatten(treedef, leaves)
