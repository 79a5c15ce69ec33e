"""Which results of a function differ between workers, by what they come from.

A type says that a value may differ, and errs on the safe side: zeros in the
shape of a gradient are typed as the gradient is. What a value is computed from
tells more. It is the same on all workers if all that it is computed from is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gradsparse.collectives import mesh_axes
import jax

# What they return may differ between workers though their operands do not.
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
# They call one function with their operands, each by a name of its own.
_CALLS = ('jaxpr', 'call_jaxpr', 'fun_jaxpr')


def differing(
  fn: Callable[..., Any],
  *args: Any,
  axis_name: str,
  among: Collection[int],
) -> set[int]:
  """Which leaves of a result may differ along an axis. It traces fn.

  Args:
    fn: a function of arrays, inside of `shard_map(check_vma=True)`.
    *args: of fn; their types say which of them differ.
    axis_name: of the axis.
    among: numbers of the leaves that are asked for.
  """
  if not among:
    return set()
  closed = jax.make_jaxpr(fn)(*args)
  found = _follow(
    closed.jaxpr,
    [mesh_axes.varies(x, axis_name) for x in closed.consts],
    [mesh_axes.varies(x, axis_name) for x in jax.tree.leaves(args)],
    axis_name,
  )
  return {n for n in among if found[n]}


def _follow(
  jaxpr: Any, consts: Sequence[bool], inputs: Sequence[bool], axis_name: str
) -> list[bool]:
  """Which results of a jaxpr may differ, from which of its operands do."""
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
  """Which results of an operation may differ, whatever their types say."""
  every = [any(operands)] * len(eqn.outvars)
  if eqn.primitive.name in _SOURCES:
    return [True] * len(eqn.outvars)
  if eqn.primitive.name == 'cond':
    index, *rest = operands
    if index:
      return [True] * len(eqn.outvars)
    branches = [
      _follow(branch.jaxpr, [False] * len(branch.consts), rest, axis_name)
      for branch in eqn.params['branches']
    ]
    return [any(each) for each in zip(*branches, strict=True)]
  for name in _CALLS:
    called = eqn.params.get(name)
    inner = getattr(called, 'jaxpr', called)
    if getattr(inner, 'eqns', None) is None:
      continue
    if len(inner.invars) == len(operands) and not inner.constvars:
      if eqn.primitive.name not in ('scan', 'shard_map'):
        return _follow(inner, [], operands, axis_name)
    if _has_source(inner):
      return [True] * len(eqn.outvars)
  loops = [eqn.params.get(name) for name in ('cond_jaxpr', 'body_jaxpr')]
  if any(loop is not None and _has_source(loop.jaxpr) for loop in loops):
    return [True] * len(eqn.outvars)
  return every


def _has_source(jaxpr: Any) -> bool:
  """Whether anything in a jaxpr differs by itself, in its parts too."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name in _SOURCES:
      return True
    for part in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      inner = getattr(part, 'jaxpr', part)
      if hasattr(inner, 'eqns') and _has_source(inner):
        return True
  return False
