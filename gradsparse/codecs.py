"""How a sparse vector becomes 32-bit words: an index code and a value code.

Rounding and packing are apart: `quantise` rounds the entries to what the
format can say (what it cannot say becomes an empty slot and stays in the
sender's memory), and `pack` / `unpack` are exact inverses on its result. So
"what I delivered" is known without decoding one's own message.

  indices        bits each                     empty slots
  'elias_fano'   about 2 + log2(N / k)         yes
  'run_length'   16 (DGC; escapes take slots)  yes
  'word28'       28, and 4 for the value       yes

  values         bits each
  'float32'      32
  'bfloat16'     16
  'exponent4'    4, and 8 a leaf (sign and power of two)
  'qsgd4'        4, and 32 a leaf (QSGD's rounding to 7 levels, unbiased)
  'ternary'      1, and 32 a leaf (TernGrad's rounding, unbiased)
  'sign2'        1, and 64 a leaf (one magnitude for each sign)
  ('constant')   1 (sign of a magnitude known to all), see `constant`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradsparse import arguments
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.wire import elias_fano
from gradsparse.wire import exponent
from gradsparse.wire import fixed_width
from gradsparse.wire import run_length
from gradsparse.wire import word28
import jax
import jax.numpy as jnp

INDICES = ('elias_fano', 'run_length', 'word28')
VALUES = ('float32', 'bfloat16', 'exponent4', 'qsgd4', 'ternary')

_BFLOAT16_MAX = float(jnp.finfo(jnp.bfloat16).max)


class _Values(NamedTuple):
  """A value code: rounding, and packing of already rounded values."""

  round: Callable[[Sparse, jax.Array], Sparse]
  pack: Callable[[Sparse], jax.Array]
  unpack: Callable[[jax.Array, jax.Array, Space], jax.Array]
  words: Callable[[int, Space], int]
  exact: bool = False
  sendable: Callable[[jax.Array, jax.Array], jax.Array] | None = None


def _bits(x: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(x, jnp.uint32)


def _floats(words: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(words, jnp.float32)


def _float32() -> _Values:
  return _Values(
    round=lambda s, key: s,
    pack=lambda s: _bits(s.values),
    unpack=lambda words, indices, space: _floats(words),
    words=lambda count, space: count,
    exact=True,
  )


def _bfloat16() -> _Values:
  """Rounded to nearest even; the upper half of a float32."""

  def rounded(s, key):
    del key
    # Not through astype(bfloat16) and back: XLA may elide the pair.
    clipped = jnp.clip(s.values, -_BFLOAT16_MAX, _BFLOAT16_MAX)
    values = jax.lax.reduce_precision(clipped, exponent_bits=8, mantissa_bits=7)
    return Sparse(values, s.indices, s.space)

  def pack(s):
    return fixed_width.pack(_bits(s.values) >> 16, 16)

  def unpack(words, indices, space):
    del space
    return _floats(fixed_width.unpack(words, indices.shape[0], 16) << 16)

  return _Values(
    rounded, pack, unpack, lambda count, space: fixed_width.words(count, 16)
  )


def _tops(space: Space) -> int:
  return fixed_width.words(len(space.shapes), 8)


def _exponent4() -> _Values:
  """Sign and 3-bit distance from the leaf's largest power of two."""

  def rounded(s, key):
    del key
    values, kept, _ = exponent.round_values(
      s.values, s.valid, s.space.leaf_of(s.indices), len(s.space.shapes)
    )
    return Sparse(values, s.indices, s.space).keep(kept)

  def pack(s):
    tops, codes = _exponent_codes(s)
    return jnp.concatenate(
      [
        fixed_width.pack(tops.astype(jnp.uint32), 8),
        fixed_width.pack(codes, 4),
      ]
    )

  def unpack(words, indices, space):
    head = _tops(space)
    tops = fixed_width.unpack(words[:head], len(space.shapes), 8)
    codes = fixed_width.unpack(words[head:], indices.shape[0], 4)
    return exponent.decode(
      codes, space.leaf_of(indices), tops.astype(jnp.int32)
    )

  return _Values(
    rounded,
    pack,
    unpack,
    lambda count, space: _tops(space) + fixed_width.words(count, 4),
    sendable=exponent.sendable,
  )


def _exponent_codes(s: Sparse) -> tuple[jax.Array, jax.Array]:
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


def _stochastic(levels: int) -> _Values:
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
    up = jax.random.uniform(key, scaled.shape) < scaled - low
    level = jnp.minimum(low + up, levels).astype(jnp.int32)
    values = jnp.sign(s.values) * size(level, tops)
    return Sparse(values, s.indices, s.space).keep(s.valid & (level > 0))

  # The largest entry of a leaf is exactly at the top level, so the values
  # alone tell what their levels were levels of.
  def pack(s):
    tops = _per_leaf_max(s, jnp.abs(s.values))
    unit = tops[s.space.leaf_of(s.indices)]
    level = jnp.abs(s.values) / jnp.where(unit > 0, unit, 1.0) * levels
    level = jnp.maximum(jnp.round(level).astype(jnp.uint32), 1) - 1
    negative = (s.values < 0).astype(jnp.uint32)
    codes = level | (negative << (width - 1))
    return jnp.concatenate([_bits(tops), fixed_width.pack(codes, width)])

  def unpack(words, indices, space):
    leaves = len(space.shapes)
    tops = _floats(words[:leaves])[space.leaf_of(indices)]
    codes = fixed_width.unpack(words[leaves:], indices.shape[0], width)
    level = (codes & ((1 << (width - 1)) - 1)) + 1
    magnitude = size(level, tops)
    return jnp.where(codes >> (width - 1) == 1, -magnitude, magnitude)

  def words(count, space):
    return len(space.shapes) + fixed_width.words(count, width)

  return _Values(rounded, pack, unpack, words)


def _signs(s: Sparse) -> jax.Array:
  return fixed_width.pack((s.values < 0).astype(jnp.uint32), 1)


def _sign2() -> _Values:
  """One bit each; a magnitude a leaf and sign (all entries of it share it)."""

  def pack(s):
    tops = [_per_leaf_max(s, s.values), _per_leaf_max(s, -s.values)]
    return jnp.concatenate([_bits(jnp.concatenate(tops)), _signs(s)])

  def unpack(words, indices, space):
    leaves = len(space.shapes)
    tops = _floats(words[: 2 * leaves]).reshape(2, leaves)
    negative = fixed_width.unpack(words[2 * leaves :], indices.shape[0], 1)
    leaf = space.leaf_of(indices)
    return jnp.where(negative == 1, -tops[1][leaf], tops[0][leaf])

  return _Values(
    round=lambda s, key: s,
    pack=pack,
    unpack=unpack,
    words=lambda count, space: (
      2 * len(space.shapes) + fixed_width.words(count, 1)
    ),
    exact=True,
  )


def _constant(magnitude: float) -> _Values:
  """One bit each: the sign of a magnitude that everybody knows."""

  def unpack(words, indices, space):
    del space
    negative = fixed_width.unpack(words, indices.shape[0], 1)
    return jnp.where(negative == 1, -magnitude, magnitude).astype(jnp.float32)

  return _Values(
    round=lambda s, key: s,
    pack=_signs,
    unpack=unpack,
    words=lambda count, space: fixed_width.words(count, 1),
    exact=True,
  )


_VALUES: dict[str, Callable[[], _Values]] = {
  'float32': _float32,
  'bfloat16': _bfloat16,
  'exponent4': _exponent4,
  'qsgd4': lambda: _stochastic(7),
  'ternary': lambda: _stochastic(1),
  'sign2': _sign2,
}


def codec(indices: str = 'elias_fano', values: str = 'float32') -> Codec:
  """A codec by the names of its two halves.

  Args:
    indices: 'elias_fano', 'run_length' (float32 values only) or 'word28'
      (exponent4 values only).
    values: 'float32', 'bfloat16', 'exponent4', 'qsgd4', 'ternary' or 'sign2'
      (for schemes whose values are signs already).

  Raises:
    TypeError: a name that is not text.
    ValueError: an unknown name, or two halves that do not go together.
  """
  arguments.one_of('indices', indices, INDICES)
  arguments.one_of('values', values, tuple(_VALUES))
  if indices == 'run_length':
    if values != 'float32':
      raise ValueError(
        "indices='run_length' marks its escapes by the value 0.0, so it "
        f"needs values='float32', got {values!r}"
      )
    return _run_length()
  if indices == 'word28':
    if values != 'exponent4':
      raise ValueError(
        "indices='word28' has 4 bits for a value, so it needs "
        f"values='exponent4', got {values!r}"
      )
    return _word28()
  return _elias_fano(_VALUES[values]())


def constant(magnitude: float) -> Codec:
  """Elias-Fano indices and signs, of one magnitude known to all workers.

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  magnitude = arguments.number(
    'magnitude', magnitude, arguments.POSITIVE, traced=True
  )
  return _elias_fano(_constant(magnitude))


def _elias_fano(values: _Values) -> Codec:
  def quantise(s, key):
    return values.round(s, key).sort()

  def index_words(count, space):
    return elias_fano.words(count, space.size)

  def pack(s):
    return jnp.concatenate(
      [elias_fano.encode(s.indices, s.space.size), values.pack(s)]
    )

  def unpack(words, count, space):
    head = index_words(count, space)
    indices = elias_fano.decode(words[:head], count, space.size)
    decoded = values.unpack(words[head:], indices, space)
    decoded = jnp.where(indices < space.size, decoded, 0.0)
    return Sparse(decoded, indices, space)

  def words(count, space):
    return index_words(count, space) + values.words(count, space)

  return Codec(
    quantise, pack, unpack, words, values.exact, sendable=values.sendable
  )


def _run_length() -> Codec:
  """DGC's Encode(): 32-bit values and 16-bit runs of zeros (section 3.1)."""

  def quantise(s, key):
    del key
    s = s.sort()
    return s.keep(run_length.fits(s.indices, s.space.size)).sort()

  def pack(s):
    values, runs = run_length.encode(s.values, s.indices, s.space.size)
    return jnp.concatenate([_bits(values), runs])

  def unpack(words, count, space):
    values, indices = run_length.decode(
      _floats(words[:count]), words[count:], space.size
    )
    return Sparse(values, indices, space)

  def words(count, space):
    del space
    return count + run_length.words(count)

  return Codec(quantise, pack, unpack, words, exact=False, bounded=True)


def _word28() -> Codec:
  """The variance paper's words: 28 bits of index, 4 of value (section 4.2)."""
  values = _exponent4()

  def quantise(s, key):
    word28.check_size(s.space.size)
    return values.round(s, key).sort()

  def pack(s):
    tops, codes = _exponent_codes(s)
    head = fixed_width.pack(tops.astype(jnp.uint32), 8)
    return jnp.concatenate([head, word28.pack(s.indices, codes)])

  def unpack(words, count, space):
    del count
    head = _tops(space)
    indices, codes = word28.unpack(words[head:])
    tops = fixed_width.unpack(words[:head], len(space.shapes), 8)
    decoded = exponent.decode(
      codes, space.leaf_of(indices), tops.astype(jnp.int32)
    )
    return Sparse(jnp.where(indices < space.size, decoded, 0.0), indices, space)

  return Codec(
    quantise,
    pack,
    unpack,
    lambda count, space: _tops(space) + count,
    exact=False,
    sendable=values.sendable,
  )
