"""Which results of a step differ between workers.

JAX types a value as varying along an axis, or as equal. The types are
conservative: zeros in the shape of a gradient are typed like the gradient. The
operands tell more: a value is equal on all workers if all its operands are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import re
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.collectives import ReplicationError
from gradsparse.collectives import mesh_axes
from gradsparse.sockets import ownership
from gradsparse.state.inspection import has_local_params
from gradsparse.state.inspection import is_scheme
from gradsparse.traffic import demands
from gradsparse.workers import axis
from gradsparse.wrappers import local_gradient
import jax
from jax.extend import core as jex_core
from jax.sharding import PartitionSpec as P
import optax

_Axes = frozenset[str]  # axes over which a value differs

# Operations whose results may differ between workers, from equal operands.
_SOURCES = frozenset(
  {
    'all_to_all',
    'axis_index',
    'io_callback',
    'ppermute',
    'pure_callback',
    'ragged_all_to_all',
    'reduce_scatter',
  }
)


def differing(
  fn: Callable[..., Any],
  args: Sequence[Any],
  results: Any,
  axis_name: str,
  sure: Collection[int] = (),
) -> set[int]:
  """Numbers of the leaves of a result that differ along an axis.

  If types alone are not enough, it traces fn once more.

  Args:
    fn: a function of arrays, inside `shard_map`. Without checked types, no leaf
      counts as differing.
    args: arguments of fn; their types say which of them differ.
    results: results of fn.
    axis_name: name of the axis.
    sure: numbers of leaves whose types are exact.
  """
  leaves = jax.tree.leaves(results)
  typed = {n for n, x in enumerate(leaves) if mesh_axes.varies(x, axis_name)}
  if typed <= set(sure):
    return typed
  inputs = [mesh_axes.varies(x, axis_name) for x in jax.tree.leaves(args)]
  found = _follow(jax.make_jaxpr(fn)(*args), inputs, axis_name)
  return {n for n in typed if n in sure or found[n]}


def _follow(jaxpr: Any, inputs: Sequence[bool], axis_name: str) -> list[bool]:
  """Which results of a jaxpr may differ, given which operands differ."""
  consts = [mesh_axes.varies(x, axis_name) for x in jaxpr.consts]
  jaxpr = jaxpr.jaxpr
  known = dict(zip(jaxpr.constvars, consts, strict=True))
  known |= zip(jaxpr.invars, inputs, strict=True)

  def differs(operand):
    return not hasattr(operand, 'val') and known[operand]  # a literal has one

  for eqn in jaxpr.eqns:
    results = _results(eqn, [differs(v) for v in eqn.invars], axis_name)
    for result, may in zip(eqn.outvars, results, strict=True):
      known[result] = may and axis_name in mesh_axes.varying_axes(result.aval)
  return [differs(v) for v in jaxpr.outvars]


def _results(eqn: Any, operands: list[bool], axis_name: str) -> list[bool]:
  """Which results of an operation may differ, regardless of their types."""
  name, inner = eqn.primitive.name, _inside(eqn)
  if name == 'optimization_barrier':  # each result is its operand
    return operands
  if name == 'cond' and not operands[0]:
    branches = [_follow(branch, operands[1:], axis_name) for branch in inner]
    return [any(each) for each in zip(*branches, strict=True)]
  # A call of one function with the same operands.
  if len(inner) == 1 and name not in ('cond', 'scan', 'shard_map'):
    if len(inner[0].jaxpr.invars) == len(operands):
      return _follow(inner[0], operands, axis_name)
  return [any(operands) or _has_source(eqn)] * len(eqn.outvars)


def _has_source(eqn: Any) -> bool:
  """Whether an operation, or one in its parts, has results that differ."""
  return eqn.primitive.name in _SOURCES or any(
    _has_source(each) for inner in _inside(eqn) for each in inner.eqns
  )


def _inside(eqn: Any) -> list[Any]:
  """The functions that an operation calls."""
  params = jax.tree.leaves(list(eqn.params.values()))
  return [
    x if hasattr(x, 'consts') else jex_core.ClosedJaxpr(x, ())
    for x in params
    if hasattr(x, 'eqns')
  ]


def typed_by(
  specs: Any, step: Callable[..., Any], args: Any, axes: Sequence[str]
) -> Any:
  """Runs a step and types its results as their specs say.

  Args:
    specs: prefix tree of specs of the results.
    step: the step of one worker.
    args: arguments of the step.
    axes: names of the workers' axes.

  Raises:
    ReplicationError: a result differs between workers although its spec says
      otherwise; the message names the first one. Only if types are checked.
  """
  with _explained(axes):
    out = step(*args)
  leaves, treedef = jax.tree.flatten(out)
  told = list(axis.with_paths(specs, out))
  for name in axes:
    comm = Comm(name)
    own = {n for n, (_, spec, _) in enumerate(told) if name in axis.named(spec)}
    wrong = differing(step, args, out, name, sure=own) - own
    if wrong:
      path, spec, _ = told[min(wrong)]
      better = P(*(a for a in axes if a in axis.named(spec) or a == name))
      raise ReplicationError(
        f'output{jax.tree_util.keystr(path)} differs between workers, but its '
        f'spec {axis.text_of(spec)} says that it is the same on all of axis '
        f"{name!r}: only one worker's would be returned. Average it with "
        'gs.workers.mean, let a gradsparse scheme average the gradients that '
        f'it depends on, or give it {axis.text_of(better)} to get that of each '
        'worker.'
      )
    leaves = [
      x if n in own else comm.replicated(x) for n, x in enumerate(leaves)
    ]
  return jax.tree.unflatten(treedef, leaves)


@contextlib.contextmanager
def _explained(axes: Collection[str]) -> Iterator[None]:
  """Explains JAX's refusal of a sharding constraint in a step.

  JAX has no error type for it, so its message is matched.

  Args:
    axes: names of the workers' axes.

  Raises:
    ValueError: a constraint names a workers' axis, or a mesh on which that axis
      is automatic.
  """
  try:
    yield
  except ValueError as e:
    spec = re.search(
      'can only refer to Auto axes.*? spec=(.*?) and mesh', f'{e}'
    )
    named = [a for a in axes if spec and repr(a) in spec[1]]
    if not named and 'should be of type `Manual`' not in f'{e}':
      raise
    workers = ', '.join(map(repr, named or axes))
    mesh = jax.sharding.get_abstract_mesh()
    others = [name for name in mesh.axis_names if name not in axes]
    cure = (
      f' Over other axes of the mesh, {", ".join(others)}, write the '
      'spec alone: jax.lax.with_sharding_constraint(x, '
      f'P(None, {others[0]!r})); or use the mesh inside the step, '
      'jax.sharding.get_abstract_mesh()'
      if others
      else ''
    )
    raise ValueError(
      f'a sharding constraint inside the step names {workers}, or a mesh on '
      'which that axis is automatic. That is the axis of the workers, each of '
      f'which already has its own block: remove the constraint.{cure}'
    ) from e


def settled(
  params: Any,
  state: Any,
  axes: Mapping[str, int],
  update: Callable[[Any, Any, Any], Any],
) -> tuple[list[_Axes], list[tuple[str, str]]]:
  """Traces updates until no leaf differs over a further axis.

  Args:
    params: as in `specs`.
    state: state of the transformation.
    axes: axis name -> number of workers.
    update: the transformation's update, from `demands.update_of`.

  Returns:
    (the axes over which each leaf differs; (name, axis) of each parameter whose
    update differs between workers).
  """
  flat, treedef = jax.tree.flatten(state)
  has_own_params = has_local_params(state) and not local_gradient.means_wanted()

  def observed(varies):
    """Traces one update: which leaves of its state and updates differ."""
    seen: list[tuple[Any, _Axes]] = []

    def once(params, *leaves):
      state = jax.tree.unflatten(treedef, map(_local, leaves, varies))
      own = _local(params, axes)
      args = (
        demands.gradients_of(own),
        state,
        own if has_own_params else params,
      )
      both = update(*args)
      # The types of a scheme's own state are exact.
      kept = jax.tree.leaves(ownership.is_local(both))
      sure = {n for n, is_own in enumerate(kept) if is_own}
      over = {name: differing(update, args, both, name, sure) for name in axes}
      seen.extend(
        (path, _Axes(name for name in axes if n in over[name]))
        for n, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(both))
      )
      return 0

    axis.trace(
      once,
      params,
      *flat,
      axes=axes,
      in_specs=(P(),) * (1 + len(flat)),
      out_specs=P(),
    )
    updates = len(seen) - len(flat)
    return [over for _, over in seen[updates:]], [
      (jax.tree_util.keystr(path[1:]) or 'the parameters', min(over))
      for path, over in seen[:updates]
      if over
    ]

  def settle(varies):
    while True:
      new, updates = observed(varies)
      new = [a | b for a, b in zip(varies, new, strict=True)]
      new = jax.tree.leaves(_alike(jax.tree.unflatten(treedef, new)))
      if new == varies:
        return varies, updates
      varies = new

  try:
    return settle(_at_first(state, axes))
  except TypeError:
    if len(axes) == 1:
      raise
    # JAX refuses to add a gradient that is not averaged over an axis to a
    # memory that does not differ over it.
    own = jax.tree.leaves(ownership.is_local(state))
    return settle([_Axes(axes if is_own else ()) for is_own in own])


def _local(tree: Any, axes: Collection[str]) -> Any:
  """Types values as a worker's own, along these axes."""
  for name in axes:
    tree = Comm(name).local(tree)
  return tree


def _at_first(state: Any, names: Collection[str]) -> list[_Axes]:
  """The axes over which each leaf differs, before any trace.

  Branches of a `cond` (optax.MultiSteps) must agree on them from the start.

  Raises:
    ValueError: there are optax.MultiSteps and several axes; the class of a
      state does not tell over which of them it differs.
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
  """Gives all of a scheme's own fields the same axes.

  By type, a constant count would differ over fewer axes than a memory.
  """

  def alike(scheme):
    if not is_scheme(scheme):
      return scheme
    own = ownership.is_local(scheme)
    pairs = zip(jax.tree.leaves(scheme), jax.tree.leaves(own), strict=True)
    union = _Axes().union(*(axes for axes, is_own in pairs if is_own))
    return jax.tree.map(lambda a, o: union if o else a, scheme, own)

  return jax.tree.map(alike, varies, is_leaf=is_scheme)
