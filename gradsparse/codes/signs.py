"""Signs: one bit an element, of one magnitude that everybody knows."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import Space
from gradsparse.wire import bitmap
import jax.numpy as jnp


def signs(scale: float) -> Code:
  """+scale or -scale; zero counts as positive.

  Args:
    scale: magnitude that a sign stands for, > 0, in units of the gradient.

  Raises:
    TypeError: scale is not a number.
    ValueError: scale is not positive and finite.

  References:
    Bernstein et al., arXiv 1802.04434 (signSGD with majority vote).
  """
  scale = arguments.number('scale', scale, arguments.POSITIVE)

  def round(selected, ctx):
    del ctx
    # Compared before they are joined: bits are fewer bytes to copy.
    return Leaves([x >= 0 for x in selected.arrays]).joined()

  def pack(positive, ctx):
    del ctx
    return bitmap.pack(positive)

  def unpack(words, like, ctx):
    del ctx
    return bitmap.unpack(words, like.size)

  def decode(positive, ctx, summands):
    del summands
    space = Space.whole(ctx.shapes)
    values = jnp.where(positive, scale, -scale).astype(jnp.float32)
    return Leaves(space.split(values))

  return Code(pack, unpack, round, decode, takes=Leaves, combines='votes')
