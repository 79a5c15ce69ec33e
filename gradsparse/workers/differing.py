"""Which of what a step makes differs between workers: its types tell."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.collectives import computed
from gradsparse.sockets import demands
from gradsparse.sockets import ownership
from gradsparse.state.inspection import has_local_params
from gradsparse.state.inspection import is_scheme
from gradsparse.workers import axis
from gradsparse.wrappers import local_gradient
import jax
from jax.sharding import PartitionSpec as P
import optax

_Axes = frozenset[str]  # over which something differs


def settled(
  params: Any,
  state: Any,
  axes: Mapping[str, int],
  update: Callable[[Any, Any, Any], Any],
) -> tuple[list[_Axes], list[tuple[str, str]]]:
  """Traces updates until no leaf comes to differ over one more axis.

  Args:
    params: as in `specs`.
    state: of the transformation.
    axes: how many workers there are along each.
    update: of the transformation, given what it asks for
      (`demands.update_of`).

  Returns:
    The axes over which each leaf differs in the end; and the name of each
    parameter whose update differs between workers, with an axis.
  """
  try:
    return _settled(params, state, axes, update, _at_first(state, axes))
  except TypeError:
    if len(axes) == 1:
      raise
    # A gradient that nobody averages over one of the axes meets a memory that
    # does not differ over it: JAX refuses that, in words of its own.
    everywhere = [
      _Axes(axes if own else ())
      for own in jax.tree.leaves(ownership.is_local(state))
    ]
    return _settled(params, state, axes, update, everywhere)


def _settled(params, state, axes, update, varies):
  """The same, from the axes over which each leaf differs at first."""
  flat, treedef = jax.tree.flatten(state)
  differ = has_local_params(state) and not local_gradient.means_wanted()
  while True:
    seen: dict[str, Any] = {}
    axis.trace(
      _observed(update, treedef, varies, differ, tuple(axes), seen),
      params,
      *flat,
      axes=axes,
      in_specs=(P(),) * (1 + len(flat)),
      out_specs=P(),
    )
    new = [a | b for a, b in zip(varies, seen['state'], strict=True)]
    new = jax.tree.leaves(_alike(jax.tree.unflatten(treedef, new)))
    if new == varies:
      return varies, seen['updates']
    varies = new


def _at_first(state: Any, names: Collection[str]) -> list[_Axes]:
  """The axes over which each leaf differs before any trace says so.

  Branches of a `cond` (optax.MultiSteps) must agree on it from the start.

  Raises:
    ValueError: optax.MultiSteps, and there are several axes, so that the class
      of a state cannot say over which of them it differs.
  """

  def is_multi_steps(x):
    return isinstance(x, optax.MultiStepsState)

  nodes = jax.tree.leaves(state, is_leaf=is_multi_steps)
  if len(names) > 1 and any(map(is_multi_steps, nodes)):
    raise ValueError(
      f'optax.MultiSteps around schemes over several axes, {tuple(names)}, is '
      'not supported; gs.accumulate(tx, every=k) is, and exchanges once'
    )

  def surely_local(state):
    def mark(x, says):
      if not is_multi_steps(x):
        return says
      return says._replace(
        acc_grads=ownership.is_local(x.acc_grads, default=True),
        inner_opt_state=surely_local(x.inner_opt_state),
      )

    says = ownership.is_local(state)
    return jax.tree.map(mark, state, says, is_leaf=is_multi_steps)

  own = _Axes(names if len(names) == 1 else ())
  return [own if x else _Axes() for x in jax.tree.leaves(surely_local(state))]


def _alike(varies: Any) -> Any:
  """Gives all that is a worker's own in one scheme the same axes.

  By its types a count that is a constant differs over fewer than a memory.
  """

  def alike(scheme):
    if not is_scheme(scheme):
      return scheme
    own = ownership.is_local(scheme)
    pairs = zip(jax.tree.leaves(scheme), jax.tree.leaves(own), strict=True)
    union = _Axes().union(*(axes for axes, is_own in pairs if is_own))
    return jax.tree.map(lambda a, o: union if o else a, scheme, own)

  return jax.tree.map(alike, varies, is_leaf=is_scheme)


def _observed(update, treedef, varies, differ, names, seen):
  """One update, which notes what of its results differs between workers."""

  def once(params, *leaves):
    comms = {name: Comm(name) for name in names}

    def local(x, own):
      for name in own:
        x = comms[name].local(x)
      return x

    state = jax.tree.unflatten(
      treedef, [local(x, own) for x, own in zip(leaves, varies, strict=True)]
    )
    own = jax.tree.map(lambda x: local(x, names), params)
    args = demands.gradients_of(own), state, own if differ else params
    updates, new = update(*args)
    over: list[set[str]] = [set() for _ in jax.tree.leaves((updates, new))]
    for name, comm in comms.items():
      for n in _differing(update, args, comm, updates, new):
        over[n].add(name)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(updates)]
    seen['state'] = [_Axes(names) for names in over[len(paths) :]]
    seen['updates'] = [
      (jax.tree_util.keystr(path) or 'the parameters', sorted(names)[0])
      for path, names in zip(paths, over, strict=False)
      if names
    ]
    return 0

  return once


def _differing(update, args, comm, updates, new):
  """Numbers of the leaves of (updates, new) that differ along an axis.

  What a scheme keeps is what its types say; of all else, types may say too
  much (an update of zeros, for a parameter that is frozen).
  """
  both = updates, new
  typed = {n for n, x in enumerate(jax.tree.leaves(both)) if comm.varies(x)}
  kept = jax.tree.leaves(ownership.is_local(both))
  unsure = {n for n in typed if not kept[n]}
  return typed - unsure | computed.differing(
    update, *args, axis_name=comm.axis_name, among=unsure
  )
