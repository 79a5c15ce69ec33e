"""TernGrad's code: -1, 0 or 1 times a scale of all workers, to be summed."""

from __future__ import annotations

import math

from gradsparse import draws
from gradsparse import folding
from gradsparse import opaque
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def field_width(workers: int) -> int:
  """Bits that hold a sum of P codes in {0, 1, 2}."""
  return max(2, (2 * workers).bit_length())


def _pack(codes: jax.Array, width: int) -> jax.Array:
  """Fields that never cross a word, so that words may be added up."""
  lanes = 32 // width
  codes = jnp.pad(codes, (0, -codes.shape[0] % lanes)).reshape(-1, lanes)
  shifts = jnp.arange(lanes, dtype=jnp.uint32) * width
  return jnp.sum(codes << shifts, axis=1, dtype=jnp.uint32)


def _unpack(words: jax.Array, count: int, width: int) -> jax.Array:
  lanes = 32 // width
  shifts = jnp.arange(lanes, dtype=jnp.uint32) * width
  fields = (words[:, None] >> shifts) & ((1 << width) - 1)
  return fields.reshape(-1)[:count]


def ternary() -> Code:
  """s sign(g) b with P(b = 1) = |g| / s, where the workers agreed on s.

  A number travels as 0, 1 or 2, in a field that is wide enough for the sum of
  P of them. `Context.agreed` is float32[leaves], s of each leaf.

  References:
    Wen et al., arXiv 1705.07878, eq. 2 and section 3.3.
  """

  def round(selected, ctx):
    sizes = [(x.size,) for x in selected.arrays]
    scales = opaque.cut(
      opaque.computed_once(ctx.agreed, len(sizes)), [()] * len(sizes)
    )
    uniforms = draws.uniform_of_each(ctx.key, sizes)

    def one(leaf, scale, uniform):
      g = leaf.reshape(-1)
      kept = uniform < jnp.abs(g) / jnp.where(scale > 0, scale, 1.0)
      ternary = jnp.where(kept, jnp.sign(g), 0.0).astype(jnp.int32)
      return (ternary + 1).astype(fixed_width.narrowest(0, 2 * ctx.workers))

    codes = list(map(one, selected.arrays, scales, uniforms))
    return folding.joined(codes)

  def pack(codes, ctx):
    return _pack(codes.astype(jnp.uint32), field_width(ctx.workers))

  def unpack(words, like, ctx):
    fields = _unpack(words, like.shape[0], field_width(ctx.workers))
    return fields.astype(like.dtype)

  def decode(codes, ctx, summands):
    shapes = ctx.shapes
    scales = opaque.cut(
      opaque.computed_once(ctx.agreed, len(shapes)), [()] * len(shapes)
    )
    parts = opaque.cut(codes, [(math.prod(shape),) for shape in shapes])

    def one(part, scale, shape):
      total = part.astype(jnp.int32) - summands
      return (total.astype(jnp.float32) * scale).reshape(shape)

    return Leaves(list(map(one, parts, scales, shapes)))

  return Code(
    pack,
    unpack,
    round,
    decode,
    name='ternary',
    takes=Leaves,
    adds=True,
    bounds=lambda codes, ctx: ctx.agreed,
  )
