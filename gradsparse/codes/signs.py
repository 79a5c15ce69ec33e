"""Signs: one bit for each element, of one magnitude or one a bucket."""

from __future__ import annotations

import functools

from gradsparse import arguments
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
import jax
import jax.numpy as jnp


def signs(scale: float) -> Code:
  """Rounds each element to +scale or -scale; zero counts as positive.

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
    return planar.pack_each(positive, 1)

  def unpack(words, like, ctx):
    del ctx
    bits = planar.unpack_each(words, [x.shape for x in like], 1)
    return [x != 0 for x in bits]

  def decode(positive, ctx, summands):
    del ctx, summands
    size = jnp.float32(scale)
    return Leaves([jnp.where(x, size, -size) for x in positive])

  return Code(pack, unpack, round, decode, takes=Leaves, combines='votes')


def norm_signs(bucket_size: int) -> Code:
  """A sign for each element of a bucket of `Parts`, and one magnitude.

  The magnitude is the bucket's 2-norm over the square root of its length, so
  that the decoded bucket has the norm of the bucket. Zero counts as positive,
  and padding does not enter the norm. A part of n elements takes one word for
  each bucket and ceil(n / 32) words of signs.

  Args:
    bucket_size: consecutive elements that share a magnitude.

  Raises:
    TypeError: bucket_size is not a whole number.
    ValueError: bucket_size is not positive.

  References:
    Tang et al., "1-bit Adam", arXiv 2102.02888, where a bucket is a tensor.
  """
  bucket_size = arguments.whole_number('bucket_size', bucket_size, 1)

  def shaped(rows):
    return rows.reshape(rows.shape[0], -1, bucket_size)

  def round(parts, ctx):
    del ctx
    x, valid = shaped(parts.rows), shaped(parts.valid)
    x = jnp.where(valid, x, 0)
    # In units of the largest, as a plain sum of squares may overflow.
    top = jnp.max(jnp.abs(x), axis=2)
    unit = jnp.where(top > 0, top, 1)
    squares = jnp.sum(jnp.square(x / unit[:, :, None]), axis=2)
    length = jnp.maximum(jnp.sum(valid, axis=2), 1)
    return parts.rows >= 0, top * jnp.sqrt(squares / length)

  def pack(rounded, ctx):
    del ctx
    positive, sizes = rounded
    signs = jax.vmap(bitmap.pack)(positive)
    return jnp.concatenate([fixed_width.of_floats(sizes), signs], axis=1)

  def unpack(words, like, ctx):
    del ctx
    length, buckets = (x.shape[1] for x in like)
    sizes = fixed_width.floats_of(words[:, :buckets])
    unpack = functools.partial(bitmap.unpack, size=length)
    return jax.vmap(unpack)(words[:, buckets:]), sizes

  def decode(rounded, ctx, summands):
    del summands
    positive, sizes = rounded[0], rounded[1][:, :, None]
    rows = jnp.where(shaped(positive), sizes, -sizes)
    return Parts.of(rows.reshape(positive.shape), ctx.shapes)

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    # The paper keeps the second rounding's error too.
    combines=OfParts(bucket_size, is_contraction=True),
  )
