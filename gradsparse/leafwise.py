"""One computation for all leaves of one shape.

A model of many layers has many leaves and few shapes. Code that is unrolled
over leaves makes the program and its compile time grow with their number. A
loop over the leaves of one shape does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# From this many leaves of one shape on, a loop is used. It copies each leaf,
# which takes about as long as reading it once more.
MANY = 8


def classes(shapes: Sequence[Any]) -> list[list[int]]:
  """Groups the numbers of leaves that are computed together, in leaf order.

  Args:
    shapes: the leaves' shapes, or any other key on which a group must agree.
  """
  same: dict[Any, list[int]] = {}
  for number, shape in enumerate(shapes):
    same.setdefault(shape, []).append(number)
  out = []
  for number, shape in enumerate(shapes):
    if len(same[shape]) < MANY:
      out.append([number])
    elif number == same[shape][0]:
      out.append(same[shape])
  return out


def stacked(
  fn: Callable[..., Any], leaves: Sequence[jax.Array], *beside: jax.Array
) -> Any:
  """Applies fn to each of several leaves of one shape.

  Args:
    fn: (leaf, one row of each array in beside) -> tree of arrays.
    leaves: one leaf, or several, which are looped over.
    beside: arrays with one row for each leaf.

  Returns:
    The results, stacked along a leading axis.
  """
  if len(leaves) == 1:
    out = fn(leaves[0], *(rows[0] for rows in beside))
    return jax.tree.map(lambda x: x[None], out)

  def one(turn):
    place, *rows = turn
    # Not a stack of all leaves: that would double their memory.
    return fn(jax.lax.switch(place, [lambda x=x: x for x in leaves]), *rows)

  places = jnp.arange(len(leaves), dtype=jnp.int32)
  return jax.lax.map(one, (places, *beside))
