"""Combines the global sparse gradient with what a worker did not send.

Parameters then differ between workers, and are averaged now and then by
`periodic_average`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import ownership
from gradsparse.state.inspection import is_scheme
from gradsparse.transform.compressed_mean import CompressedMean
from gradsparse.transform.described import Described
from gradsparse.transform.described import call
import jax
import jax.numpy as jnp
import optax

Mode = Literal['sum', 'partial', 'error']
MODES = get_args(Mode)


class LocalGradientState(NamedTuple):
  """State of `local_gradient`.

  Attributes:
    inner: the scheme's state.
  """

  inner: Any


def local_gradient(
  inner: CompressedMean, mode: Mode = 'sum'
) -> optax.GradientTransformationExtraArgs:
  """Adds this worker's own gradient to the mean of what all have sent.

  With G the mean of what was sent, L this worker's gradient, S what it sent
  and E its residual after that, and P workers:

    'sum'      C = (G + L / P) / 2
    'partial'  C = G + (L - S) / P
    'error'    C = G + E / P, and E <- 0

  (the paper sums over workers; here all is divided by P). C goes to the
  optimizer, normally Adam. It differs between workers, and so do the
  parameters: average them with `periodic_average`.

  Leaves that stay dense have S = L and E = 0.

  Args:
    inner: a gradsparse scheme itself, not a chain around it: what it sent
      must be known.
    mode: 'sum', 'partial' or 'error'.

  Raises:
    TypeError: inner is not a scheme, or mode not text.
    ValueError: unknown mode, a scheme that sends no parts of the gradient
      (EF21), or 'error' with one that keeps nothing; from update: a state that
      is not this one's.

  References:
    Aji, Heafield & Bogoychev, "Combining global sparse gradients with local
    gradients", section 3.
  """
  arguments.one_of('mode', mode, MODES)
  if not isinstance(inner, CompressedMean):
    raise TypeError(
      'local_gradient needs a gradsparse scheme such as '
      'gs.gradient_dropping(...), to know what it sent; got '
      f'{type(inner).__name__}. Chain other transformations around it: '
      'optax.chain(gs.local_gradient(gs.gradient_dropping(...)), optax.adam())'
    )
  memory = inner.scheme.memory
  if memory.floats and not memory.sums:
    raise ValueError(
      f'local_gradient needs a scheme that sends parts of the gradient, and '
      f'{inner.scheme.compressor.name} sends corrections of an estimate'
    )
  if mode == 'error' and not memory.sums:
    raise ValueError(
      "mode='error' takes back the residual, and "
      f'{inner.scheme.compressor.name} keeps none'
    )

  def init(params):
    return LocalGradientState(inner.init(params))

  def update(updates, state, params=None, **extra):
    if not isinstance(state, LocalGradientState):
      raise ValueError(
        'local_gradient needs the state that its own init returned, a '
        f'LocalGradientState, got {type(state).__name__}'
      )
    comm = Comm(inner.scheme.axis_name)
    mean, new, sent = inner.step(updates, state.inner, params, **extra)
    share = 1.0 / comm.size

    def combined(g, local, s, e):
      local = local.astype(jnp.float32)
      if mode == 'sum':
        out = (g + share * local) / 2
      elif mode == 'partial':
        out = g + share * (local - s)
      else:
        out = g + share * e
      return out.astype(g.dtype)

    owed = new.memory.pending()
    out = jax.tree.map(combined, mean, updates, sent, owed)
    if mode == 'error':
      # In a rejected step the update is NaN, and nothing was taken.
      earlier = state.inner.stats.rejected_steps
      taken = new.stats.rejected_steps == earlier
      left = jax.tree.map(lambda e: jnp.where(taken, 0.0, e), owed)
      new = new._replace(memory=new.memory.with_pending(left))
    return comm.local(out), LocalGradientState(new)

  text = call('local_gradient', {'inner': inner, 'mode': mode})
  return Described(init, update, text)


def is_local(state: Any) -> bool:
  """Whether an optimizer state belongs to parameters that differ by worker."""

  def found(x):
    return isinstance(x, LocalGradientState)

  return any(map(found, jax.tree.leaves(state, is_leaf=found)))


def periodic_average(
  params: Any,
  opt_state: Any,
  step: jax.Array | int,
  *,
  every: int = 500,
  axis_name: AxisName | None,
) -> tuple[Any, Any]:
  """Averages parameters over workers, every so many steps.

  Call it after `optax.apply_updates`, inside of the mapped step. The
  optimizer's floating-point state that differs between workers (Adam's
  moments) is averaged too; a scheme's memory never is, nor the gradients that
  `gs.accumulate` holds: what a worker owes stays its own.

  Args:
    params: this worker's parameters.
    opt_state: this worker's optimizer state.
    step: steps done, equal on all workers; averages where every divides it.
    every: in steps, at least 1.
    axis_name: mapped axis of the workers, or None.

  Returns:
    (params, opt_state).

  Raises:
    TypeError: every or step is not a whole number, axis_name not text, or a
      leaf no array.
    ValueError: every is not positive, or step negative.

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
  # What the class of a state calls a worker's own is what the worker owes.
  owed = jax.tree.leaves(ownership.is_local(both), is_leaf=is_scheme)

  def differs(x):
    floating = not is_scheme(x) and jnp.issubdtype(
      jnp.result_type(x), jnp.floating
    )
    return floating and comm.may_differ(x)

  chosen = [i for i, x in enumerate(leaves) if differs(x) and not owed[i]]
  own = [leaves[i] for i in chosen]

  def averaged(own):
    means = comm.mean([x.astype(jnp.float32) for x in own])
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
