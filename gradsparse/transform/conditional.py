"""A branch of an update that all workers run, or none.

Collectives may be in a branch of a program if all workers take the same branch.
`if_due` and `changed_if` are such branches, for code that does not know the
axes over which the schemes inside communicate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse.backend import barriers
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
  seen: list[Any] = []

  def noted():
    out = fn()
    seen.extend(_kinds(out, axes))
    return out

  once = jax.jit(noted)  # traced here, and not again in the branch
  shapes = jax.eval_shape(once)
  kinds = [
    a | b for a, b in zip(seen, _kinds(otherwise(shapes), axes), strict=True)
  ]
  return jax.lax.cond(
    _equal(due, axes),
    lambda: _typed(once(), kinds, axes),
    lambda: _typed(otherwise(shapes), kinds, axes),
  )


def changed_if(due: jax.Array, fn: Callable[[Any], Any], state: Any) -> Any:
  """`fn(state)` if it is due; otherwise the state, and nothing is sent.

  On CPUs donated arrays are overwritten, see `barriers.in_place_if`.

  Args:
    due: as for `if_due`.
    fn: from a state to one of the same shapes and dtypes; it may communicate.
    state: a tree of arrays, typed varying where `fn` makes it so.
  """
  if counting.active() is not None:
    return fn(state)
  axes = _checked_axes()
  once = jax.jit(fn)  # traced once for each typing
  kinds, wider = _kinds(state, axes), None
  while axes and kinds != wider:
    # The state is typed varying where the result of `fn` is.
    seen: list[Any] = []

    def noted(state, seen=seen, kinds=kinds):
      out = once(_typed(state, kinds, axes))
      seen.extend(_kinds(out, axes))
      return out

    jax.eval_shape(noted, state)
    kinds, wider = [a | b for a, b in zip(kinds, seen, strict=True)], kinds

  return barriers.in_place_if(
    _equal(due, axes),
    lambda state: _typed(once(state), kinds, axes),
    _typed(state, kinds, axes),
    branch=True,
  )


def _kinds(tree: Any, axes: list[Comm]) -> list[set[Any]]:
  """The axes over which each leaf is typed varying."""
  return [
    {comm.axis_name for comm in axes if comm.varies(x)}
    for x in jax.tree.leaves(tree)
  ]


def _typed(tree: Any, kinds: list[set[Any]], axes: list[Comm]) -> Any:
  """The tree, with each leaf typed varying over its axes too."""
  leaves, treedef = jax.tree.flatten(tree)
  for comm in axes:
    leaves = [
      comm.local(x) if comm.axis_name in kind else x
      for x, kind in zip(leaves, kinds, strict=True)
    ]
  return jax.tree.unflatten(treedef, leaves)


def _equal(due: jax.Array, axes: list[Comm]) -> jax.Array:
  """A scalar typed as equal over all axes."""
  for comm in axes:
    due = comm.replicated(due)
  return due


def typed_equal_like(tree: Any, like: Any) -> Any:
  """Types each leaf as equal over each axis over which that of `like` is.

  The caller guarantees that the leaves are equal there. A barrier, for
  instance, types all its results as varying if one of its operands varies.
  """
  axes = _checked_axes()
  leaves, treedef = jax.tree.flatten(tree)
  for comm in axes:
    leaves = [
      x if comm.varies(y) else comm.replicated(x)
      for x, y in zip(leaves, jax.tree.leaves(like), strict=True)
    ]
  return jax.tree.unflatten(treedef, leaves)


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
