"""QSGD: stochastic rounding to a few levels of each bucket's norm."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from gradsparse import arguments
from gradsparse import selection
from gradsparse.compressors import level_codes
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.interfaces import Compressor
from gradsparse.interfaces import Shape
from gradsparse.interfaces import Stream
import jax
import jax.numpy as jnp

NORMS = ('max', 'l2')
# With it every code of a level and its sign fits in 32 bits, and float32 holds
# |v| / norm * s to 1/256 of a level, which is how well the chance of rounding
# up is kept (2^-24 of the norm, as in any float32). s = sqrt(n) stays below it
# for every n that an int32 can count.
MAX_LEVELS = 2**16 - 2


def checked(levels: Any, bucket_size: Any, norm: Any) -> tuple[int, int, str]:
  """The arguments of the quantiser.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.
  """
  return (
    arguments.whole_number('levels', levels, 1, MAX_LEVELS),
    arguments.whole_number('bucket_size', bucket_size, 1),
    arguments.one_of('norm', norm, NORMS),
  )


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


@dataclasses.dataclass(frozen=True)
class Buckets:
  """How a leaf is cut into buckets of at most `bucket_size` elements.

  A leaf (..., in, out) of three and more dimensions is a kernel: the leading
  ones are the taps of a receptive field, one for each input and output. A
  bucket holds as many whole fields as fit, in the order of (in, out). A field
  that is larger than a bucket is split into the fewest parts that fit, equally
  long but for the last, which may be shorter. Matrices and vectors have fields
  of one element.

  Attributes:
    shape: of the leaf.
    taps: elements of a field.
    runs: stretches of the leaf, fields side by side, that are cut on their
      own: the whole leaf, or each field.
    length: elements of a bucket; the last one of a run may be shorter.
  """

  shape: Shape
  taps: int
  runs: int
  length: int

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  @property
  def count(self) -> int:
    """How many buckets it has."""
    return self.runs * -(-(self.size // self.runs) // self.length)

  def ordered(self, leaf: jax.Array) -> jax.Array:
    """A leaf as a vector, the taps of each field side by side."""
    return leaf.reshape(self.taps, -1).T.reshape(-1)

  def leaf(self, ordered: jax.Array) -> jax.Array:
    """The inverse of `ordered`."""
    return ordered.reshape(-1, self.taps).T.reshape(self.shape)

  def rows(self, ordered: jax.Array) -> jax.Array:
    """Such a vector as (count, length), zeros where a bucket is shorter."""
    runs = ordered.reshape(self.runs, -1)
    missing = -runs.shape[1] % self.length
    if missing:
      runs = jnp.pad(runs, ((0, 0), (0, missing)))
    return runs.reshape(-1, self.length)

  def flat(self, rows: jax.Array) -> jax.Array:
    """The inverse of `rows`."""
    runs = rows.reshape(self.runs, -1)[:, : self.size // self.runs]
    return runs.reshape(-1)


def buckets(shape: Shape, bucket_size: int) -> Buckets:
  """How a leaf of this shape is cut."""
  taps = max(math.prod(shape[:-2]), 1)
  if taps <= bucket_size:
    return Buckets(shape, taps, 1, bucket_size // taps * taps)
  parts = -(-taps // bucket_size)
  return Buckets(shape, taps, math.prod(shape[-2:]), -(-taps // parts))


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
    levels: s, in 1..65534; b bits with the sign are s = 2^(b-1) - 1.
    bucket_size: d, the most elements of a leaf that share a norm (see
      `Buckets`).
    norm: 'max' (as in the paper's experiments) or 'l2' (as in its theory).
    code: one of `level_codes.CODES`.
    elias: 'omega' (the paper's), 'gamma', 'delta' or 'unary'.
    min_size: leaves with fewer elements stay dense (section 5).

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.
  """
  levels, bucket_size, norm = checked(levels, bucket_size, norm)
  stream = level_codes.level_code(code, levels, bucket_size, elias)

  def cut(shapes):
    return [buckets(shape, bucket_size) for shape in shapes]

  def sizes(shapes):
    return stream.sizes(sum(math.prod(shape) for shape in shapes))

  def encode(signals, shared, ctx):
    del shared
    norms, signed = [], []
    for number, how in enumerate(cut(ctx.shapes)):
      rows = how.rows(how.ordered(signals[number].value))
      scale = scales(rows, norm)
      key = jax.random.fold_in(ctx.key, number)
      level = quantise(rows, scale, levels, key)
      norms.append(scale)
      signed.append(how.flat(level))
    words, used = stream.encode(jnp.concatenate(signed))
    return Stream(jnp.concatenate(norms), words, used, sizes(ctx.shapes))

  def decode(payload, shared, ctx, summands):
    del shared, summands
    hows = cut(ctx.shapes)
    signed = stream.decode(payload.words, sum(how.size for how in hows))
    out, start, first = [], 0, 0
    for how in hows:
      rows = how.rows(signed[start : start + how.size].astype(jnp.float32))
      norms = payload.head[first : first + how.count] / levels
      out.append(how.leaf(how.flat(rows * norms[:, None])))
      start, first = start + how.size, first + how.count
    return out

  return Compressor(
    name='qsgd',
    encode=encode,
    decode=decode,
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
