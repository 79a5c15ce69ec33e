"""Signs: one bit for each element, of one magnitude known to all workers."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.wire import planar
import jax.numpy as jnp


def signs(scale: float) -> Code:
  """Rounds each element to +scale or -scale; zero counts as positive.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> code = gs.extend.codes.signs(0.5)
  >>> rounded = code.round(gs.extend.Leaves([jnp.array([3.0, -1.0])]), None)
  >>> print(*code.decode(rounded, None, 1).arrays)
  [ 0.5 -0.5]

  Args:
    scale: the magnitude, > 0, in units of the gradient.

  Raises:
    TypeError: scale is not a number.
    ValueError: scale is not positive and finite.

  References:
    Bernstein et al., arXiv 1802.04434 (signSGD with majority vote).
  """
  scale = arguments.number('scale', scale, arguments.POSITIVE)

  def round(selected, ctx):
    del ctx
    return [x >= 0 for x in selected.arrays]

  def pack(positive, ctx):
    del ctx
    return planar.pack_each(planar.matrices(positive), 1)

  def unpack(words, like, ctx):
    del ctx
    shapes = [planar.matrix(x.shape) for x in like]
    bits = planar.unpack_each(words, shapes, 1)
    return [x.reshape(y.shape) != 0 for x, y in zip(bits, like, strict=True)]

  def decode(positive, ctx, summands):
    del ctx, summands
    size = jnp.float32(scale)
    return Leaves([jnp.where(x, size, -size) for x in positive])

  return Code(pack, unpack, round, decode, takes=Leaves, combines='votes')
