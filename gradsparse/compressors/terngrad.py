"""TernGrad: signs scaled by the largest gradient, kept with probability."""

from __future__ import annotations

import math

from gradsparse import arguments
from gradsparse.interfaces import Agreement
from gradsparse.interfaces import Compressor
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


def terngrad(clip: float = 2.5, min_size: int = 10_000) -> Compressor:
  """s sign(g) b with P(b = 1) = |g| / s, and one s for all workers.

  Each leaf is clipped at `clip` standard deviations first. Unbiased about the
  clipped gradient. Workers agree on s = max |g| (scaler sharing), so a sum of
  small integers is meaningful: that is what the all-reduce adds up, packed in
  fields wide enough for P of them.

  Args:
    clip: in standard deviations of a leaf, > 0; infinity does not clip.
    min_size: leaves with fewer elements stay dense.

  Raises:
    TypeError: clip is not a number.
    ValueError: clip is not positive.

  References:
    Wen et al., arXiv 1705.07878, eq. 2, section 3.3 and 4.
  """
  clip = arguments.number('clip', clip, arguments.POSITIVE_OR_INFINITE)

  def clipped(signal):
    g = signal.value
    # A leaf of equal numbers has no deviation to clip at; it would vanish.
    # Of the leaf over its largest number, whose squares cannot overflow.
    top = jnp.max(jnp.abs(g))
    limit = clip * top * jnp.std(g / jnp.where(top > 0, top, 1.0))
    limit = jnp.where(limit > 0, limit, jnp.inf)
    return jnp.clip(g, -limit, limit)

  def propose(signals, ctx):
    del ctx
    return jnp.stack([jnp.max(jnp.abs(clipped(s))) for s in signals])

  def encode(signals, shared, ctx):
    codes = []
    for number, signal in enumerate(signals):
      g, scale = clipped(signal), shared[number]
      key = jax.random.fold_in(ctx.key, number)
      chance = jnp.abs(g) / jnp.where(scale > 0, scale, 1.0)
      kept = jax.random.uniform(key, g.shape) < chance
      ternary = jnp.where(kept, jnp.sign(g), 0.0).astype(jnp.int32)
      codes.append((ternary + 1).astype(jnp.uint32).reshape(-1))
    return _pack(jnp.concatenate(codes), field_width(ctx.workers))

  def decode(words, shared, ctx, summands):
    sizes = [math.prod(shape) for shape in ctx.shapes]
    fields = _unpack(words, sum(sizes), field_width(ctx.workers))
    total = fields.astype(jnp.int32) - summands
    out, start = [], 0
    for number, (shape, size) in enumerate(zip(ctx.shapes, sizes, strict=True)):
      leaf = total[start : start + size].astype(jnp.float32)
      out.append((leaf * shared[number]).reshape(shape))
      start += size
    return out

  return Compressor(
    'terngrad',
    encode,
    decode,
    linear=True,
    agreement=Agreement('max', propose),
    min_size=min_size,
    unbiased=True,
  )
