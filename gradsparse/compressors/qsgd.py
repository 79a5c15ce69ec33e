"""QSGD: stochastic rounding to a few levels of each bucket's norm."""

from __future__ import annotations

import math

from gradsparse import selection
from gradsparse.interfaces import Compressor
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

NORMS = ('max', 'l2')


def check(levels: int, bucket_size: int, norm: str) -> None:
  """Raises ValueError for arguments out of range."""
  if not isinstance(levels, int) or not 1 <= levels <= 255:
    raise ValueError(f'levels must be in 1..255, got {levels!r}')
  if not isinstance(bucket_size, int) or bucket_size < 1:
    raise ValueError(f'bucket_size must be at least 1, got {bucket_size!r}')
  if norm not in NORMS:
    raise ValueError(f'norm must be one of {NORMS}, got {norm!r}')


def scales(rows: jax.Array, norm: str) -> jax.Array:
  """float32[rows]: the largest magnitude or the 2-norm of each bucket."""
  if norm == 'max':
    return jnp.max(jnp.abs(rows), axis=1)
  return jnp.sqrt(jnp.sum(rows * rows, axis=1))


def quantise(
  rows: jax.Array, norms: jax.Array, levels: int, key: jax.Array
) -> jax.Array:
  """Signed levels, int32 in [-s, s], of the rows' shape.

  With a = |v_i| / norm and l = floor(a s): l with probability 1 - (a s - l),
  else l + 1. Unbiased: the expectation of norm * level / s is v.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.1.
  """
  safe = jnp.where(norms > 0, norms, 1.0)[:, None]
  scaled = jnp.minimum(jnp.abs(rows) / safe * levels, levels)
  low = jnp.floor(scaled)
  up = jax.random.uniform(key, rows.shape) < scaled - low
  level = low.astype(jnp.int32) + up
  return jnp.where(rows < 0, -level, level)


def qsgd(
  levels: int,
  *,
  bucket_size: int = 512,
  norm: str = 'max',
  min_size: int = 10_000,
) -> Compressor:
  """Fixed-width QSGD: ceil(log2(2 s + 1)) bits an element, 32 a bucket.

  Args:
    levels: s, in 1..255; b bits with the sign are s = 2^(b-1) - 1.
    bucket_size: d, consecutive elements of a leaf that share a norm.
    norm: 'max' (as in the paper's experiments) or 'l2' (as in its theory).
    min_size: leaves with fewer elements stay dense (section 5).

  Raises:
    ValueError: an argument out of range.
  """
  check(levels, bucket_size, norm)
  width = math.ceil(math.log2(2 * levels + 1))

  def encode(signals, shared, ctx):
    del shared
    norms, codes = [], []
    for number, signal in enumerate(signals):
      rows = selection.rows(signal.value, bucket_size)
      scale = scales(rows, norm)
      key = jax.random.fold_in(ctx.key, number)
      level = quantise(rows, scale, levels, key).reshape(-1)
      norms.append(scale)
      codes.append((level[: signal.value.size] + levels).astype(jnp.uint32))
    return {
      'codes': fixed_width.pack(jnp.concatenate(codes), width),
      'norms': jnp.concatenate(norms),
    }

  def decode(payload, shared, ctx, summands):
    del shared, summands
    sizes = [math.prod(shape) for shape in ctx.shapes]
    codes = fixed_width.unpack(payload['codes'], sum(sizes), width)
    level = codes.astype(jnp.int32) - levels
    out, start, first = [], 0, 0
    for shape, size in zip(ctx.shapes, sizes, strict=True):
      rows = -(-size // bucket_size)
      norms = payload['norms'][first : first + rows] / levels
      leaf = selection.rows(
        level[start : start + size].astype(jnp.float32), bucket_size
      )
      leaf = (leaf * norms[:, None]).reshape(-1)[:size]
      out.append(leaf.reshape(shape))
      start, first = start + size, first + rows
    return out

  return Compressor(
    name='qsgd',
    encode=encode,
    decode=decode,
    min_size=min_size,
    unbiased=True,
  )
