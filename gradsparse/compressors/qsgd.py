"""QSGD: stochastic rounding to a few levels of each bucket's norm."""

from __future__ import annotations

import math

from gradsparse import selection
from gradsparse.compressors import level_codes
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.interfaces import Compressor
from gradsparse.interfaces import Shape
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
  tops = jnp.max(jnp.abs(rows), axis=1)
  if norm == 'max':
    return tops
  # Of the bucket over its largest number, whose squares cannot overflow.
  shares = rows / jnp.where(tops > 0, tops, 1.0)[:, None]
  return tops * jnp.sqrt(jnp.sum(shares * shares, axis=1))


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


def _field(shape: Shape) -> int:
  """Elements of a receptive field: the taps of a convolution kernel."""
  return math.prod(shape[:-2]) if len(shape) >= 3 else 1


def bucket_length(shape: Shape, bucket_size: int) -> int:
  """Elements a bucket of this leaf holds: whole receptive fields only."""
  field = _field(shape)
  return max(field, bucket_size // field * field)


def _flat(x: jax.Array) -> jax.Array:
  """A leaf with the taps of each receptive field side by side."""
  field = _field(x.shape)
  return x.reshape(field, -1).T.reshape(-1) if field > 1 else x.reshape(-1)


def _unflat(flat: jax.Array, shape: Shape) -> jax.Array:
  field = _field(shape)
  return flat.reshape(-1, field).T.reshape(shape)


def qsgd(
  levels: int,
  *,
  bucket_size: int = 512,
  norm: str = 'max',
  code: str = 'fixed',
  elias: str = 'omega',
  min_size: int = 10_000,
) -> Compressor:
  """Levels of each bucket's norm, and 32 bits a bucket for the norm.

  Args:
    levels: s, in 1..255; b bits with the sign are s = 2^(b-1) - 1.
    bucket_size: d, elements of a leaf that share a norm. Buckets hold whole
      receptive fields (the taps of a convolution kernel, whose leaves are
      (..., in, out)): d is rounded down to a multiple of those.
    norm: 'max' (as in the paper's experiments) or 'l2' (as in its theory).
    code: one of `level_codes.CODES`.
    elias: 'omega' (the paper's), 'gamma', 'delta' or 'unary'.
    min_size: leaves with fewer elements stay dense (section 5).

  Raises:
    ValueError: an argument out of range.
  """
  check(levels, bucket_size, norm)
  stream = level_codes.level_code(code, levels, bucket_size, elias)

  def total(shapes):
    return sum(math.prod(shape) for shape in shapes)

  def quantised(signals, ctx):
    norms, signed = [], []
    for number, signal in enumerate(signals):
      x = signal.value
      rows = selection.rows(_flat(x), bucket_length(x.shape, bucket_size))
      scale = scales(rows, norm)
      key = jax.random.fold_in(ctx.key, number)
      level = quantise(rows, scale, levels, key)
      norms.append(scale)
      signed.append(level.reshape(-1)[: x.size])
    return jnp.concatenate(norms), jnp.concatenate(signed)

  def choose(signals, shared, ctx):
    del shared
    assert stream.words is not None
    _, signed = quantised(signals, ctx)
    sizes = jnp.asarray(stream.rungs(total(ctx.shapes))[:-1])
    return jnp.sum(sizes < stream.words(signed)).astype(jnp.int32)

  def encode(signals, shared, ctx):
    del shared
    norms, signed = quantised(signals, ctx)
    return {'levels': stream.encode(signed, ctx.rung), 'norms': norms}

  def decode(payload, shared, ctx, summands):
    del shared, summands
    signed = stream.decode(payload['levels'], total(ctx.shapes), ctx.rung)
    out, start, first = [], 0, 0
    for shape in ctx.shapes:
      size, length = math.prod(shape), bucket_length(shape, bucket_size)
      leaf = selection.rows(
        signed[start : start + size].astype(jnp.float32), length
      )
      norms = payload['norms'][first : first + leaf.shape[0]] / levels
      flat = (leaf * norms[:, None]).reshape(-1)[:size]
      out.append(_unflat(flat, shape))
      start, first = start + size, first + leaf.shape[0]
    return out

  return Compressor(
    name='qsgd',
    encode=encode,
    decode=decode,
    rungs=lambda shapes: stream.rungs(total(shapes)),
    choose=choose if stream.words else None,
    agreed=False,
    min_size=min_size,
    unbiased=True,
  )


def gradient_descent(codec: Codec) -> Compressor:
  """QSGD for full gradients: ||v|| sign(v_i) on the fewest coordinates.

  The set is the smallest with sum |v_i| >= ||v||_2; it has at most
  ceil(sqrt(n)) elements. Deterministic, over all leaves together.

  Args:
    codec: how they travel.

  References:
    Alistarh et al., arXiv 1610.02132, end of section 3.3.
  """

  def encode(signals, shared, ctx):
    del shared
    joined = jnp.concatenate([s.value.reshape(-1) for s in signals])
    size = joined.shape[0]
    slots = min(size, math.isqrt(size - 1) + 1)
    values, indices = selection.top_k(joined, slots)
    norm = scales(joined[None], 'l2')
    # Those before the sum reaches the norm, and the one that reaches it.
    before = jnp.pad(jnp.cumsum(jnp.abs(values))[:-1], (1, 0))
    chosen = (before < norm) & (values != 0)
    limits = tuple(min(slots, math.prod(s)) for s in ctx.shapes)
    space = Space(ctx.shapes, limits)
    return Sparse(jnp.sign(values) * norm, indices, space).keep(chosen)

  return Compressor('qsgd_descent', encode, codec=codec, joined=True)
