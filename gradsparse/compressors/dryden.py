"""Dryden's compressor: the largest entries of each sign, sent as their mean."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse import selection
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp
import numpy as np


def dryden(density: float, code: Code) -> Compressor:
  """The k largest positive and k largest negative entries of each leaf.

  k = ceil(density n) for each sign, or as many as there are. The entries of a
  sign are decoded as their mean, so an entry is sent as a sign and an index.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([3.0, -1.0, 0.5, -4.0])
  >>> code = extend.codes.sparse(values='sign2')
  >>> compressor = extend.compressors.dryden(0.25, code)
  >>> ctx = extend.Context(extend.MessageLeaves((x.shape,)), 1, 0, None, None)
  >>> sent = jax.jit(lambda: compressor.select([extend.Signal(x, x)], ctx))()
  >>> print(sent.values, sent.indices)
  [ 3. -4.] [0 3]

  Args:
    density: fraction of a leaf's elements, for each sign, in (0, 1].
    code: the code of the entries; its values must be signs with two magnitudes.

  Raises:
    TypeError: density is not a number.
    ValueError: density is out of range.

  References:
    Dryden et al., MLHPC 2016, section III.
  """
  density = arguments.number('density', density, arguments.FRACTION)

  def select(signals, ctx):
    leaves = [s.value.reshape(-1) for s in signals]
    counts = [selection.count(density, x.shape[0]) for x in leaves]
    space = Space(ctx.shapes, tuple(2 * k for k in counts))
    leaf = np.repeat(np.arange(len(counts)), counts)

    def largest(sign):
      side, where = selection.top_k_of_each(
        [jnp.maximum(sign * x, 0.0) for x in leaves], counts
      )

      def total(x):
        return jax.ops.segment_sum(
          x, leaf, len(counts), indices_are_sorted=True
        )[leaf]

      held = side > 0
      # Divided first: a sum could overflow.
      mean = total(side / jnp.maximum(total(held.astype(jnp.float32)), 1))
      return (
        jnp.where(held, sign * mean, 0.0),
        jnp.where(held, where, space.size),
      )

    sides = zip(largest(1.0), largest(-1.0), strict=True)
    values, indices = map(jnp.concatenate, sides)
    return Sparse.of(values, indices, space)

  return Compressor('dryden', select, code)
