"""Codes of float32 rows: what the parts of a reduce-scatter travel as."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import NamedTuple

from gradsparse import arguments
from gradsparse.compressors import level_codes
from gradsparse.compressors.one_bit import halves
from gradsparse.compressors.qsgd import checked
from gradsparse.compressors.qsgd import quantise
from gradsparse.compressors.qsgd import scales
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


class RowCode(NamedTuple):
  """A code of float32 rows.

  Attributes:
    name: for tables.
    encode: (float32[rows, n], int32[rows], PRNG key) -> uint32[rows, words].
      The integers say how many elements at the beginning of each row count;
      the rest is padding, of any finite value. n is a multiple of `unit`.
    decode: (uint32[rows, words], n) -> float32[rows, n]; anything where there
      was padding.
    unit: parts are padded to multiples of it.
    feedback: whether what a row loses may be added to the next one: it is
      smaller, in some norm, than what was encoded, so that it cannot pile up.
  """

  name: str
  encode: Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
  decode: Callable[[jax.Array, int], jax.Array]
  unit: int = 1
  feedback: bool = False


def bfloat16_words() -> RowCode:
  """The upper half of each float32, rounded to nearest even; two a word."""

  def encode(rows, counts, key):
    del counts, key
    bits = jax.lax.bitcast_convert_type(
      rows.astype(jnp.bfloat16), jnp.uint16
    ).astype(jnp.uint32)
    return jax.vmap(lambda row: fixed_width.pack(row, 16))(bits)

  def decode(words, n):
    bits = jax.vmap(lambda row: fixed_width.unpack(row, n, 16))(words)
    return jax.lax.bitcast_convert_type(bits << 16, jnp.float32)

  return RowCode('bfloat16', encode, decode)


def _from_words(words: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(words, jnp.float32)


def _to_words(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)


def qsgd_words(
  levels: int, *, bucket_size: int = 512, norm: str = 'max'
) -> RowCode:
  """QSGD: the norm of each bucket, then a level an element, of fixed width.

  A row of n elements takes n / d words of norms (float32) and
  ceil(n b / 32) words of levels, b = ceil(log2(2 s + 1)).

  An element loses less than norm / s. With 'max' and at least two levels that
  is less than the bucket had, and so with 'l2' and s > sqrt(d); the loss may
  then be fed back. Otherwise it could grow from step to step (for 'l2' by the
  factor sqrt(sqrt(d) / s), roughly), and the rounding is unbiased without.

  Args:
    levels: s, in 1..65534.
    bucket_size: d, consecutive elements of a row that share a norm.
    norm: 'max' or 'l2'.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.1.
  """
  levels, bucket_size, norm = checked(levels, bucket_size, norm)

  def encode(rows, counts, key):
    del counts  # padding is zeros, which change no norm
    count, n = rows.shape
    buckets = rows.reshape(-1, bucket_size)
    norms = scales(buckets, norm)
    signed = quantise(buckets, norms, levels, key).reshape(count, n)
    packed = jax.vmap(lambda row: level_codes.pack(row, levels))(signed)
    return jnp.concatenate(
      [_to_words(norms).reshape(count, -1), packed], axis=1
    )

  def decode(words, n):
    held = n // bucket_size
    norms = _from_words(words[:, :held]) / levels
    signed = jax.vmap(lambda row: level_codes.unpack(row, n, levels))(
      words[:, held:]
    )
    buckets = signed.astype(jnp.float32).reshape(-1, held, bucket_size)
    return (buckets * norms[:, :, None]).reshape(-1, n)

  shrinks = levels >= 2 if norm == 'max' else levels > math.sqrt(bucket_size)
  return RowCode('qsgd', encode, decode, bucket_size, feedback=shrinks)


def one_bit_words(bucket_size: int = 512) -> RowCode:
  """A bit an element, and for each bucket the means of its two halves.

  A row of n elements takes 2 n / d words of means (float32: those of the
  elements >= 0, then those of the elements < 0) and ceil(n / 32) words of
  signs. Means are over what is no padding. What is lost is orthogonal to
  what is kept, and so smaller than the bucket.

  Args:
    bucket_size: d, consecutive elements of a row that share their means.

  Raises:
    TypeError: bucket_size is not a whole number.
    ValueError: bucket_size is not positive.

  References:
    Seide et al., Interspeech 2014; there a bucket is a matrix column.
  """
  bucket_size = arguments.whole_number('bucket_size', bucket_size, 1)

  def encode(rows, counts, key):
    del key
    count, n = rows.shape
    form = (count, n // bucket_size, bucket_size)
    valid = jnp.arange(n) < counts[:, None]
    positive, above, below = halves(
      rows.reshape(form), axis=2, valid=valid.reshape(form)
    )
    signs = positive.reshape(count, n).astype(jnp.uint32)
    packed = jax.vmap(lambda row: fixed_width.pack(row, 1))(signs)
    return jnp.concatenate([_to_words(above), _to_words(below), packed], axis=1)

  def decode(words, n):
    held = n // bucket_size
    above = _from_words(words[:, :held])[:, :, None]
    below = _from_words(words[:, held : 2 * held])[:, :, None]
    signs = jax.vmap(lambda row: fixed_width.unpack(row, n, 1))(
      words[:, 2 * held :]
    )
    positive = signs.reshape(-1, held, bucket_size) == 1
    return jnp.where(positive, above, below).reshape(-1, n)

  return RowCode('1-bit', encode, decode, bucket_size, feedback=True)
