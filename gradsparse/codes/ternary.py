"""TernGrad's code: -1, 0 or 1 times a scale of all workers, to be summed."""

from __future__ import annotations

from gradsparse import draws
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import Space
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
    codes = []
    for number, g in enumerate(selected.arrays):
      scale = ctx.agreed[number]
      key = jax.random.fold_in(ctx.key, number)
      chance = jnp.abs(g) / jnp.where(scale > 0, scale, 1.0)
      kept = draws.uniform(key, g.shape) < chance
      ternary = jnp.where(kept, jnp.sign(g), 0.0).astype(jnp.int32)
      codes.append((ternary + 1).astype(jnp.uint32).reshape(-1))
    return jnp.concatenate(codes)

  def pack(codes, ctx):
    return _pack(codes, field_width(ctx.workers))

  def unpack(words, like, ctx):
    return _unpack(words, like.shape[0], field_width(ctx.workers))

  def decode(codes, ctx, summands):
    space = Space.whole(ctx.shapes)
    total = codes.astype(jnp.int32) - summands
    leaves = space.split(total.astype(jnp.float32))
    return Leaves([x * ctx.agreed[i] for i, x in enumerate(leaves)])

  return Code(
    pack, unpack, round, decode, name='ternary', takes=Leaves, adds=True
  )
