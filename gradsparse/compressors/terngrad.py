"""TernGrad: signs scaled by the largest gradient, kept at random."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse import codes
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import reductions
from gradsparse.sockets import Compressor
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Leaves
from gradsparse.sockets import PreReduce
import jax
import jax.numpy as jnp

_TINY = jnp.finfo(jnp.float32).tiny  # its reciprocal is finite
# Numbers whose deviation over the largest magnitude is smaller are equal up to
# rounding. One nonzero number among 10^12 zeros has a larger one.
_ALIKE = 2.0**-21


def _deviation(x: jax.Array, per_unit: jax.Array) -> jax.Array:
  """The standard deviation of numbers in a unit; 0 if all are equal.

  Args:
    x: float32, of any shape, at least one number.
    per_unit: float32 scalar, one over a unit near the largest number. XLA fuses
      products into the loops that read them, but writes out quotients.
  """
  count = max(x.size, 1)
  apart = (x - x[(0,) * x.ndim]) * per_unit
  mean = reductions.total(apart) / count
  return jnp.sqrt(reductions.total(jnp.square(apart - mean)) / count)


def terngrad(clip: float = 2.5, min_size: int = 10_000) -> Compressor:
  """s sign(g) b with P(b = 1) = |g| / s, and one s for all workers.

  Each leaf is clipped at `clip` standard deviations first. The expectation is
  the clipped gradient. Workers agree on s = max |g| (scaler sharing), so that
  an all-reduce can sum small integers, packed in fields wide enough for P of
  them.

  >>> import gradsparse as gs
  >>> compressor = gs.extend.compressors.terngrad()
  >>> compressor.pre_reduce.reduce, compressor.leaves.min_size
  ('max', 10000)

  Args:
    clip: in standard deviations of a leaf, > 0; infinity does not clip. Leaves
      whose elements are equal up to rounding are not clipped.
    min_size: leaves with fewer elements stay dense.

  Raises:
    TypeError: clip is not a number.
    ValueError: clip is not positive.

  References:
    Wen et al., arXiv 1705.07878, eq. 2, section 3.3 and 4.
  """
  clip = arguments.number('clip', clip, arguments.POSITIVE_OR_INFINITE)

  def top_and_limit(g):
    """The largest magnitude of a leaf, and the limit at which it is clipped."""
    # In units of the largest number, so that no square overflows.
    top = reductions.top(jnp.abs(g))
    deviation = _deviation(g, 1 / jnp.maximum(top, _TINY))
    return top, jnp.where(deviation > _ALIKE, clip * (top * deviation), jnp.inf)

  def of_each(signals):
    return [top_and_limit(s.value) for s in signals]

  def operands(signals, ctx):
    del ctx
    tops = [jnp.minimum(*both) for both in of_each(signals)]
    return jnp.stack(tops) if tops else jnp.zeros(0, jnp.float32)

  def select(signals, ctx):
    del ctx
    if not signals:
      return Leaves([])
    limits = barriers.barrier_if_shared(
      jnp.stack([limit for _, limit in of_each(signals)]), len(signals)
    )
    each = joining.split(limits, [()] * len(signals))
    return Leaves(
      [
        jnp.clip(s.value, -limit, limit)
        for s, limit in zip(signals, each, strict=True)
      ]
    )

  return Compressor(
    'terngrad',
    select,
    codes.ternary(),
    # A scalar's code and scale would be larger than the scalar.
    leaves=LeafRule(lambda shape: math.prod(shape) > 1, min_size=min_size),
    pre_reduce=PreReduce('max', operands),
    unbiased=True,
  )
