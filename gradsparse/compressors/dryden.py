"""Dryden: the largest of each sign, each side sent as its mean."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import leafwise
from gradsparse import selection
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Sparse
import jax.numpy as jnp


def dryden(density: float, code: Code) -> Compressor:
  """The k largest positive and k largest negative entries of each leaf.

  k = ceil(density n) for each sign, or as many as there are. Each side is
  reconstructed by its mean, so a sign and an index travel for each entry.

  Args:
    density: fraction of a leaf's elements, for each sign, in (0, 1].
    code: how they travel; its values must be signs with two magnitudes.

  Raises:
    TypeError: density is not a number.
    ValueError: density out of range.

  References:
    Dryden et al., MLHPC 2016, section III.
  """
  density = arguments.number('density', density, arguments.FRACTION)

  def select(signals, ctx):
    def largest(x, sign):
      k = selection.count(density, x.shape[0])
      side, where = selection.top_k(jnp.maximum(sign * x, 0.0), k)
      held = side > 0
      # Divided first: a sum could overflow.
      mean = jnp.sum(side / jnp.maximum(jnp.sum(held), 1))
      return (
        jnp.where(held, sign * mean, 0.0),
        jnp.where(held, where, x.shape[0]),
      )

    def both(x, number):
      del number
      sides = zip(largest(x, 1.0), largest(x, -1.0), strict=True)
      return tuple(map(jnp.concatenate, sides))

    leaves = [s.value.reshape(-1) for s in signals]
    return Sparse.of_leaves(leafwise.by_shape(both, leaves), ctx.shapes)

  return Compressor('dryden', select, code)
