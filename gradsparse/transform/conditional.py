"""A branch of an update that all workers run, or none.

Collectives may be in a branch of a program if all workers take the same branch.
`if_due` is such a branch, for code that does not know the axes over which the
schemes inside communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.traffic import counting
import jax


def _checked_axes() -> list[Comm]:
  """The surrounding axes over which values are typed varying or equal."""
  manual = jax.sharding.get_abstract_mesh().manual_axes
  comms = [Comm(axis) for axis in manual]
  return [comm for comm in comms if comm.mode == 'checked']


def if_due(
  due: jax.Array, fn: Callable[[], Any], otherwise: Callable[[Any], Any]
) -> Any:
  """`fn()` if it is due; otherwise `fn` neither runs nor sends.

  A result is typed varying if that of either branch is. While a plan is made,
  `fn` is traced.

  Args:
    due: bool scalar, equal on all workers. `jax.vmap` over it makes both
      branches run, and selects from their results.
    fn: a function that may communicate.
    otherwise: takes the shapes and dtypes of `fn`'s result, and returns such a
      tree, without communication.
  """
  if counting.active() is not None:
    return fn()
  axes = _checked_axes()

  def differs_over(tree):
    return [
      {comm.axis_name for comm in axes if comm.varies(x)}
      for x in jax.tree.leaves(tree)
    ]

  seen: list[Any] = []

  def noted():
    out = fn()
    seen.extend(differs_over(out))
    return out

  once = jax.jit(noted)  # traced here, and not again in the branch
  shapes = jax.eval_shape(once)
  kinds = [
    a | b for a, b in zip(seen, differs_over(otherwise(shapes)), strict=True)
  ]

  def typed(tree):
    leaves, treedef = jax.tree.flatten(tree)
    for comm in axes:
      leaves = [
        comm.local(x) if comm.axis_name in kind else x
        for x, kind in zip(leaves, kinds, strict=True)
      ]
    return jax.tree.unflatten(treedef, leaves)

  for comm in axes:
    due = comm.replicated(due)
  return jax.lax.cond(
    due, lambda: typed(once()), lambda: typed(otherwise(shapes))
  )


def check_local_like(tree: Any, like: Any) -> None:
  """Refuses gradients that were averaged before they are accumulated.

  Args:
    tree: gradients.
    like: the tree that they are added to, which is typed varying over the axes
      over which they must vary.

  Raises:
    ReplicationError: see `Comm.check_local`.
  """
  for comm in _checked_axes():
    comm.check_local(
      jax.tree.map(
        lambda g, x, comm=comm: g if comm.varies(x) else None, tree, like
      )
    )
