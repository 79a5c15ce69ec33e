"""QSGD's selection for full gradients: the fewest that sum to the norm."""

from __future__ import annotations

import math

from gradsparse import selection
from gradsparse.codes.norm_buckets import buckets
from gradsparse.codes.rounding import two_norms
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Leaves
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax.numpy as jnp


def norm_top_k(code: Code) -> Compressor:
  """QSGD for full gradients: sends ||v|| sign(v_i) of the fewest coordinates.

  The coordinates are the smallest set with sum |v_i| >= ||v||_2, at most
  ceil(sqrt(n)) of all leaves together. The selection is deterministic.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([3.0, 4.0, 0.0, 0.0])
  >>> compressor = extend.compressors.norm_top_k(extend.codes.sparse())
  >>> ctx = extend.Context(extend.MessageLeaves((x.shape,)), 1, 0, None, None)
  >>> sent = jax.jit(lambda: compressor.select([extend.Signal(x, x)], ctx))()
  >>> print(sent.values, sent.indices)
  [5. 5.] [0 1]

  Args:
    code: the code of the entries.

  References:
    Alistarh et al., arXiv 1610.02132, end of section 3.3.
  """

  def select(signals, ctx):
    joined = Leaves([s.value for s in signals]).joined()
    size = joined.shape[0]
    slots = min(size, math.isqrt(size - 1) + 1)
    values, indices = selection.top_k(joined, slots, ranked=True)
    whole = buckets(joined.shape, size)
    norm = two_norms(joined, whole, jnp.abs(values[:1]))
    # Chosen: the elements before the sum reaches the norm, and the next one.
    before = jnp.pad(jnp.cumsum(jnp.abs(values))[:-1], (1, 0))
    chosen = (before < norm) & (values != 0)
    return Sparse.of(
      jnp.where(chosen, jnp.sign(values) * norm, 0.0),
      jnp.where(chosen, indices, size),
      Space.at_most(slots, ctx.shapes),
    )

  return Compressor('qsgd_descent', select, code, selects_globally=True)
