"""Which results of a function differ between workers, by what they come from.

A type says that a value may differ, and errs on the safe side: zeros in the
shape of a gradient are typed as the gradient is. What a value is computed from
tells more. It is the same on all workers if all that it is computed from is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from gradsparse.collectives import types
import jax
from jax.interpreters import partial_eval

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
  closed = jax.make_jaxpr(fn)(*args)
  consts = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
  inputs = jax.tree.leaves(args)

  def may_differ(numbers):
    wanted = [n in numbers for n in range(len(closed.out_avals))]
    kept, used = partial_eval.dce_jaxpr(closed.jaxpr, wanted)
    operands = [*kept.outvars, *(v for eqn in kept.eqns for v in eqn.invars)]
    read = [v for v in consts if any(v is x for x in operands)]
    needed = [x for x, u in zip(inputs, used, strict=True) if u]
    needed += [consts[v] for v in read]
    return any(types.varies(x, axis_name) for x in needed) or (
      not _SOURCES.isdisjoint(_primitives(kept))
    )

  # Mostly none of them does.
  if not among or not may_differ(set(among)):
    return set()
  return {n for n in among if may_differ({n})}


def _primitives(jaxpr: Any) -> Iterator[str]:
  """Names of all primitives in a jaxpr, those of its parts too."""
  for eqn in jaxpr.eqns:
    yield eqn.primitive.name
    for param in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'eqns')
    ):
      inner = getattr(param, 'jaxpr', param)
      if hasattr(inner, 'eqns'):
        yield from _primitives(inner)
