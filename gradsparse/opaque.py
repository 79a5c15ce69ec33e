"""Numbers that XLA computes once, and of which it does not know the value.

On CPUs XLA compiles each loop by itself, in 20 to 30 ms. A step has several for
each leaf of a model, so two things make it slow to compile:

- A loop that reads a small part of something computes that again by itself,
  with all that leads to it.
- Loops that differ in nothing but a constant, such as where a leaf begins, are
  compiled one by one; equal ones only once.

What passes through a loop of one turn or none, which nobody can tell before the
program runs, is neither computed again nor known. `optimization_barrier` does
not help: on CPUs it is gone before loops are formed.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

_Tree = TypeVar('_Tree')

# For fewer readers the loop that hides a number takes longer to compile than
# what it saves.
_MANY = 4


def computed_once(tree: _Tree, readers: int) -> _Tree:
  """The same arrays, each computed once if many loops read them.

  Args:
    tree: of small arrays: they are copied.
    readers: about how many loops read them.
  """
  return apart(tree) if readers >= _MANY else tree


def apart(tree: _Tree) -> _Tree:
  """The same arrays, computed before any loop that reads them."""
  leaves, treedef = jax.tree.flatten(tree)
  if not any(x.size for x in leaves):
    return tree
  first = next(x for x in leaves if x.size).reshape(-1)[0]
  return jax.tree.unflatten(
    treedef, _passed(first > jnp.zeros_like(first), leaves)
  )


def numbers(values: Sequence[int], beside: jax.Array) -> list[jax.Array]:
  """int32 scalars of these values, which XLA does not know if they are many.

  Args:
    values: of them.
    beside: any array that the program computes. Empty: XLA knows them.
  """
  scalars = [jnp.int32(value) for value in values]
  if len(values) < _MANY or not beside.size:
    return scalars
  first = beside.reshape(-1)[0]
  return _passed(first > jnp.zeros_like(first), scalars)


def begins(
  shapes: Sequence[tuple[int, ...]], beside: jax.Array
) -> list[jax.Array]:
  """Where arrays begin that lie one after the other; see `numbers`."""
  sizes = [math.prod(shape) for shape in shapes]
  return numbers(np.cumsum([0, *sizes])[:-1].tolist(), beside)


def cut(
  joined: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  at: Sequence[jax.Array] | None = None,
) -> list[jax.Array]:
  """Arrays that lie one after the other in a vector.

  Args:
    joined: of as many elements as all have, or more.
    shapes: of the arrays.
    at: their `begins`, if several vectors are cut alike.
  """
  if at is None:
    at = begins(shapes, joined)
  return [
    jax.lax.dynamic_slice(
      joined, (begin,), (math.prod(shape),), allow_negative_indices=False
    ).reshape(shape)
    for begin, shape in zip(at, shapes, strict=True)
  ]


def _passed(turn: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
  """The leaves, out of a loop of one turn or none, as `turn` says."""

  def same(kept, x):
    return jax.lax.select(kept, x, jnp.zeros_like(x))

  # Typed like what comes out: as differing between workers, where the turn or
  # the leaf does.
  begin = [same(turn | jnp.bool_(True), x) for x in leaves]
  _, out = jax.lax.while_loop(
    lambda carry: carry[0],
    # The turn is taken where carry[0] holds, but XLA does not know that.
    lambda carry: (
      carry[0] & jnp.bool_(False),
      [same(carry[0], x) for x in carry[1]],
    ),
    (turn, begin),
  )
  return out
