"""Value codes of sparse messages: how the values of the entries travel.

  name           bits each
  'float32'      32
  'bfloat16'     16
  'exponent4'    4, and 8 a leaf (sign and power of two)
  'qsgd4'        4, and 32 a leaf (QSGD's rounding to 7 levels, unbiased)
  'ternary'      1, and 32 a leaf (TernGrad's rounding, unbiased)
  'sign2'        1, and 64 a leaf (one magnitude for each sign)
  `constant`     1 (sign of a magnitude known to all)

`round` comes first and is the lossy one: an entry that a format cannot say
becomes an empty slot, and stays in the sender's memory. On what was rounded,
`unpack` is the exact inverse of `pack`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradsparse import arguments
from gradsparse import draws
from gradsparse import traced
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import exponent
from gradsparse.wire import fixed_width
from gradsparse.wire import floats
import jax
import jax.numpy as jnp

_BFLOAT16_MAX = float(jnp.finfo(jnp.bfloat16).max)


class ValueCode(NamedTuple):
  """Rounds values, and packs what is rounded.

  Attributes:
    round: (Sparse, PRNG key) -> Sparse.
    pack: rounded Sparse -> uint32 words.
    unpack: (words, indices, space) -> float32 values; in empty slots they may
      be anything.
    exact: whether `round` changes nothing.
    sendable: (values of one leaf, which are wanted) -> which of those `round`
      will keep; only they need room. None: that cannot be told beforehand.
  """

  round: Callable[[Sparse, jax.Array], Sparse]
  pack: Callable[[Sparse], jax.Array]
  unpack: Callable[[jax.Array, jax.Array, Space], jax.Array]
  exact: bool = False
  sendable: Callable[[jax.Array, jax.Array], jax.Array] | None = None


def float32() -> ValueCode:
  """As they are."""
  return ValueCode(
    round=lambda s, key: s,
    pack=lambda s: floats.pack(s.values),
    unpack=lambda words, indices, space: floats.unpack(words),
    exact=True,
  )


def bfloat16() -> ValueCode:
  """Rounded to nearest even; the upper half of a float32."""

  def rounded(s, key):
    del key
    # Not through astype(bfloat16) and back: XLA may elide the pair.
    clipped = jnp.clip(s.values, -_BFLOAT16_MAX, _BFLOAT16_MAX)
    values = jax.lax.reduce_precision(clipped, exponent_bits=8, mantissa_bits=7)
    return Sparse(values, s.indices, s.space)

  def pack(s):
    return floats.pack_bfloat16(s.values)

  def unpack(words, indices, space):
    del space
    return floats.unpack_bfloat16(words, indices.shape[0])

  return ValueCode(rounded, pack, unpack)


def top_words(space: Space) -> int:
  """Words that the leaves' largest exponents take."""
  return fixed_width.words(len(space.shapes), 8)


def exponent4() -> ValueCode:
  """Sign and 3-bit distance from the leaf's largest power of two."""

  def rounded(s, key):
    del key
    values, kept, _ = exponent.round_values(
      s.values, s.valid, s.space.leaf_of(s.indices), len(s.space.shapes)
    )
    return Sparse(values, s.indices, s.space).keep(kept)

  def pack(s):
    tops, codes = exponent_codes(s)
    return jnp.concatenate(
      [
        fixed_width.pack(tops.astype(jnp.uint32), 8),
        fixed_width.pack(codes, 4),
      ]
    )

  def unpack(words, indices, space):
    head = top_words(space)
    tops = fixed_width.unpack(words[:head], len(space.shapes), 8)
    codes = fixed_width.unpack(words[head:], indices.shape[0], 4)
    return exponent.decode(
      codes, space.leaf_of(indices), tops.astype(jnp.int32)
    )

  return ValueCode(rounded, pack, unpack, sendable=exponent.sendable)


def exponent_codes(s: Sparse) -> tuple[jax.Array, jax.Array]:
  """(biased top exponent of each leaf int32[L], 4-bit codes uint32[k])."""
  segments = s.space.leaf_of(s.indices)
  _, _, tops = exponent.round_values(
    s.values, s.valid, segments, len(s.space.shapes)
  )
  return tops, exponent.encode(s.values, segments, tops)


def _per_leaf_max(s: Sparse, x: jax.Array) -> jax.Array:
  """float32[L]: the largest x of each leaf's entries, at least 0."""
  leaves = len(s.space.shapes)
  segments = jnp.where(s.valid, s.space.leaf_of(s.indices), leaves)
  top = jax.ops.segment_max(x, segments, leaves + 1)[:leaves]
  return jnp.where(jnp.isfinite(top), jnp.maximum(top, 0.0), 0.0)


def stochastic(levels: int) -> ValueCode:
  """QSGD's rounding of the entries to levels of their leaf's largest.

  Unbiased; an entry that falls to level 0 is not sent. One level is TernGrad's
  code: the sign, with probability |r| / max.
  """
  width = 1 + (levels - 1).bit_length()  # a sign and a level of 1..s

  def size(level, tops):
    # One product of a looked-up number: the compiler has nothing to reorder,
    # so the receiver gets the bits that the sender takes off its memory.
    shares = jnp.asarray([i / levels for i in range(levels + 1)], jnp.float32)
    return shares[level] * tops

  def rounded(s, key):
    tops = _per_leaf_max(s, jnp.abs(s.values))[s.space.leaf_of(s.indices)]
    scaled = jnp.abs(s.values) / jnp.where(tops > 0, tops, 1.0) * levels
    low = jnp.floor(scaled)
    up = draws.uniform(key, scaled.shape) < scaled - low
    level = jnp.minimum(low + up, levels).astype(jnp.int32)
    values = jnp.sign(s.values) * size(level, tops)
    return Sparse(values, s.indices, s.space).keep(s.valid & (level > 0))

  # The largest entry of a leaf is exactly at the top level, so `pack` can read
  # the scale off the rounded values.
  def pack(s):
    tops = _per_leaf_max(s, jnp.abs(s.values))
    unit = tops[s.space.leaf_of(s.indices)]
    level = jnp.abs(s.values) / jnp.where(unit > 0, unit, 1.0) * levels
    level = jnp.maximum(jnp.round(level).astype(jnp.uint32), 1) - 1
    negative = (s.values < 0).astype(jnp.uint32)
    codes = level | (negative << (width - 1))
    return jnp.concatenate([floats.pack(tops), fixed_width.pack(codes, width)])

  def unpack(words, indices, space):
    leaves = len(space.shapes)
    tops = floats.unpack(words[:leaves])[space.leaf_of(indices)]
    codes = fixed_width.unpack(words[leaves:], indices.shape[0], width)
    level = (codes & ((1 << (width - 1)) - 1)) + 1
    magnitude = size(level, tops)
    return jnp.where(codes >> (width - 1) == 1, -magnitude, magnitude)

  return ValueCode(rounded, pack, unpack)


def _signs(s: Sparse) -> jax.Array:
  return fixed_width.pack((s.values < 0).astype(jnp.uint32), 1)


def sign2() -> ValueCode:
  """One bit each, and two magnitudes a leaf: one for each sign."""

  def pack(s):
    tops = [_per_leaf_max(s, s.values), _per_leaf_max(s, -s.values)]
    return jnp.concatenate([floats.pack(jnp.concatenate(tops)), _signs(s)])

  def unpack(words, indices, space):
    leaves = len(space.shapes)
    tops = floats.unpack(words[: 2 * leaves]).reshape(2, leaves)
    negative = fixed_width.unpack(words[2 * leaves :], indices.shape[0], 1)
    leaf = space.leaf_of(indices)
    return jnp.where(negative == 1, -tops[1][leaf], tops[0][leaf])

  return ValueCode(
    round=lambda s, key: s,
    pack=pack,
    unpack=unpack,
    exact=True,
  )


def constant(magnitude: float) -> ValueCode:
  """One bit each: the sign of a magnitude that everybody knows.

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  magnitude = arguments.number(
    'magnitude', magnitude, arguments.POSITIVE, traced=True
  )

  def unpack(words, indices, space):
    del space
    negative = fixed_width.unpack(words, indices.shape[0], 1)
    size = traced.here(magnitude)
    return jnp.where(negative == 1, -size, size).astype(jnp.float32)

  return ValueCode(
    round=lambda s, key: s,
    pack=_signs,
    unpack=unpack,
    exact=True,
  )


BY_NAME: dict[str, Callable[[], ValueCode]] = {
  'float32': float32,
  'bfloat16': bfloat16,
  'exponent4': exponent4,
  'qsgd4': lambda: stochastic(7),
  'ternary': lambda: stochastic(1),
  'sign2': sign2,
}
