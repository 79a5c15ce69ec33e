"""One computation for all leaves of one shape.

A model of many layers has many leaves and few shapes. What is written out for
each leaf makes a program, and the time to compile it, grow with the number of
leaves; a loop over the leaves of one shape does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# From so many leaves of one shape on there is a loop. It copies each leaf,
# which takes about as long as reading it once more.
MANY = 8


def classes(shapes: Sequence[Any]) -> list[list[int]]:
  """Numbers of the leaves that are computed together, in the order of that.

  Args:
    shapes: of the leaves; or anything else in which they must agree.
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
  """What fn gives for each of some leaves of one shape.

  Args:
    fn: (leaf, one row of each array in beside) -> tree of arrays.
    leaves: one, or many: several are looped over.
    beside: arrays with one row for each leaf.

  Returns:
    The results, with a leading axis of so many.
  """
  if len(leaves) == 1:
    out = fn(leaves[0], *(rows[0] for rows in beside))
    return jax.tree.map(lambda x: x[None], out)

  def one(turn):
    place, *rows = turn
    # Not a stack of all leaves: that would need their memory once more.
    return fn(jax.lax.switch(place, [lambda x=x: x for x in leaves]), *rows)

  places = jnp.arange(len(leaves), dtype=jnp.int32)
  return jax.lax.map(one, (places, *beside))
