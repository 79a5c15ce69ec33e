"""Dryden: the largest of each sign, each side sent as its mean."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import selection
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Space
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
    total = sum(math.prod(shape) for shape in ctx.shapes)
    values, indices, limits, offset = [], [], [], 0
    for signal in signals:
      x = signal.value.reshape(-1)
      k = selection.count(density, x.shape[0])
      for sign in (1.0, -1.0):
        side, where = selection.top_k(jnp.maximum(sign * x, 0.0), k)
        held = side > 0
        # Divided first: a sum could overflow.
        mean = jnp.sum(side / jnp.maximum(jnp.sum(held), 1))
        values.append(jnp.where(held, sign * mean, 0.0))
        indices.append(jnp.where(held, where + offset, total))
      limits.append(min(2 * k, x.shape[0]))
      offset += x.shape[0]
    return Sparse.of(
      jnp.concatenate(values),
      jnp.concatenate(indices),
      Space(ctx.shapes, tuple(limits)),
    )

  return Compressor('dryden', select, code)
