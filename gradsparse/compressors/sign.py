"""Signs: one bit an element, to be put to the vote."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse.interfaces import Compressor
from gradsparse.wire import fixed_width
import jax.numpy as jnp


def sign(scale: float = 1.0) -> Compressor:
  """One bit an element: +scale or -scale; zero counts as positive.

  Args:
    scale: magnitude that a sign stands for, > 0, in units of the gradient.

  Raises:
    TypeError: scale is not a number.
    ValueError: scale is not positive and finite.

  References:
    Bernstein et al., arXiv 1802.04434 (signSGD with majority vote).
  """
  scale = arguments.number('scale', scale, arguments.POSITIVE)

  def encode(signals, shared, ctx):
    del shared, ctx
    positive = jnp.concatenate([(s.value >= 0).reshape(-1) for s in signals])
    return fixed_width.pack(positive.astype(jnp.uint32), 1)

  def decode(words, shared, ctx, summands):
    del shared, summands
    sizes = [math.prod(shape) for shape in ctx.shapes]
    positive = fixed_width.unpack(words, sum(sizes), 1) == 1
    signs = jnp.where(positive, scale, -scale).astype(jnp.float32)
    out, start = [], 0
    for shape, size in zip(ctx.shapes, sizes, strict=True):
      out.append(signs[start : start + size].reshape(shape))
      start += size
    return out

  return Compressor('sign_majority', encode, decode)
