"""QSGD's streams: signed integer levels in the dense and in the sparse code.

Dense, for many levels (about one nonzero in two and more): for each element

    Elias(|level| + 1), then a sign bit where level != 0.

Sparse, for few: for each nonzero element

    Elias(gap), sign, Elias(|level|),

where the gap is the distance to the nonzero before it (for the first one its
index + 1). The norm and, for the sparse code, the number of nonzeros travel
beside the stream.

The length depends on the data. A caller computes `dense_bits` or
`sparse_bits`, agrees on a capacity with the other workers, and encodes into
that; nothing is ever written past it, and `total_bits` says whether it was
enough.

Gaussian vectors with the 2-norm and s = sqrt(n) levels measure 2.94 bits an
element in the dense omega code, block offsets (0.0625) apart.

References:
  Alistarh et al., QSGD, arXiv 1610.02132, section 3.1, theorem 3.2 (sparse)
  and corollary 3.3 (dense).
"""

from __future__ import annotations

from typing import NamedTuple

from gradsparse.wire import bitmap
from gradsparse.wire import elias
from gradsparse.wire import streams
import jax
import jax.numpy as jnp
import numpy as np

# Gap, sign and level take at least one bit each.
_MIN_NONZERO_BITS = 3
_TOO_LONG = np.uint32(2**32 - 1)


class DensePayload(NamedTuple):
  """The dense code of n levels.

  Attributes:
    words: uint32[capacity_words], the stream.
    offsets: uint32[streams.offset_words(n, block)], the blocks' lengths.
    total_bits: uint32[], what the stream needs; not needed to decode.
  """

  words: jax.Array
  offsets: jax.Array
  total_bits: jax.Array


class SparsePayload(NamedTuple):
  """The sparse code of n levels.

  Attributes:
    words: uint32[capacity_words], the stream.
    offsets: uint32[streams.offset_words(max_nonzeros, block)], the blocks'
      lengths.
    total_bits: uint32[], what the stream needs, 2**32 - 1 where there are more
      than `max_nonzeros` nonzeros; not needed to decode.
    nonzeros: uint32[], how many there are.
  """

  words: jax.Array
  offsets: jax.Array
  total_bits: jax.Array
  nonzeros: jax.Array


def dense_words(n: int, max_level: int, kind: str = 'omega') -> int:
  """Capacity that the dense code of any n levels fits in.

  Args:
    n: number of elements.
    max_level: the largest |level|, >= 1.
    kind: one of elias.KINDS.

  Returns:
    The number of 32-bit words, block offsets apart.

  Raises:
    ValueError: for an unknown kind.
  """
  return -(-n * (elias.max_length(max_level + 1, kind) + 1) // 32)


def dense_bits(levels: jax.Array, kind: str = 'omega') -> jax.Array:
  """Bits of the dense code, block offsets apart.

  Args:
    levels: int32[n].
    kind: one of elias.KINDS.

  Returns:
    uint32[].

  Raises:
    ValueError: for an unknown kind.
  """
  lengths = elias.length(jnp.abs(levels) + 1, kind) + (levels != 0)
  return jnp.sum(lengths.astype(jnp.uint32), dtype=jnp.uint32)


def encode_dense(
  levels: jax.Array,
  capacity_words: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = streams.BLOCK,
) -> DensePayload:
  """Encodes levels in the dense code.

  Args:
    levels: int32[n] in [-max_level, max_level].
    capacity_words: words of the stream; it is complete if and only if
      `total_bits <= 32 capacity_words`.
    max_level: the largest |level|, >= 1.
    kind: one of elias.KINDS.
    block: symbols a block.

  Returns:
    The payload.

  Raises:
    ValueError: for levels whose code has more than 32 bits, for an unknown
      kind, or for sizes out of range.
  """
  longest = _signed_length(max_level, 1, kind)
  bits, lengths = elias.code(jnp.abs(levels) + 1, kind)
  signed = levels != 0
  negative = (levels < 0).astype(jnp.uint32)
  bits = jnp.where(signed, (bits << 1) | negative, bits)
  words, offsets, total_bits = streams.encode(
    bits, lengths + signed, capacity_words, block, max_length=longest
  )
  return DensePayload(words, offsets, total_bits)


def decode_dense(
  payload: DensePayload,
  n: int,
  *,
  kind: str = 'omega',
  block: int = streams.BLOCK,
) -> jax.Array:
  """The levels that `encode_dense` encoded.

  Args:
    payload: from `encode_dense`; only `words` and `offsets` are read.
    n: number of elements.
    kind: as encoded.
    block: as encoded.

  Returns:
    int32[n]; arbitrary from where the capacity was not enough.

  Raises:
    ValueError: for an unknown kind, or the wrong number of offsets.
  """
  elias.check_kind(kind)

  def reader(
    words: jax.Array, positions: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    window = streams.window(words, positions)
    value, length = elias.read(window, kind)
    level = value.astype(jnp.int32) - 1
    signed = level != 0
    # Of a zero this is a bit of the next code, and changes nothing.
    negative = (window << (length & 31).astype(jnp.uint32)) >> 31 == 1
    positions = positions + (length + signed).astype(jnp.uint32)
    return jnp.where(negative, -level, level), positions

  return streams.parse(payload.words, payload.offsets, n, reader, block)


def sparse_bits(levels: jax.Array, kind: str = 'omega') -> jax.Array:
  """Bits of the sparse code, block offsets apart.

  Args:
    levels: int32[n].
    kind: one of elias.KINDS.

  Returns:
    uint32[].

  Raises:
    ValueError: for an unknown kind.
  """
  (n,) = levels.shape
  index = jnp.arange(n, dtype=jnp.int32)
  last = jax.lax.cummax(jnp.where(levels != 0, index, -1))
  before = jnp.concatenate([jnp.full(1, -1, jnp.int32), last])[:-1]
  lengths = elias.length(index - before, kind) + 1
  lengths = lengths + elias.length(jnp.abs(levels), kind)
  lengths = jnp.where(levels != 0, lengths, 0)
  return jnp.sum(lengths.astype(jnp.uint32), dtype=jnp.uint32)


def nonzero_limit(n: int, capacity_words: int) -> int:
  """The most nonzeros that the sparse code can hold in a capacity.

  Args:
    n: number of elements.
    capacity_words: words of the stream.

  Returns:
    `min(n, floor(32 capacity_words / 3))`: gap, sign and level take three bits
    at least.
  """
  return min(n, 32 * capacity_words // _MIN_NONZERO_BITS)


def encode_sparse(
  levels: jax.Array,
  capacity_words: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = streams.BLOCK,
  max_nonzeros: int | None = None,
) -> SparsePayload:
  """Encodes levels in the sparse code.

  Args:
    levels: int32[n] in [-max_level, max_level].
    capacity_words: words of the stream; it is complete if and only if
      `total_bits <= 32 capacity_words`.
    max_level: the largest |level|, >= 1.
    kind: one of elias.KINDS; unary only for n <= 32.
    block: nonzeros a block.
    max_nonzeros: the most nonzeros that are sent, which sets the number of
      blocks; None for `nonzero_limit(n, capacity_words)`.

  Returns:
    The payload.

  Raises:
    ValueError: for levels whose code with the sign has more than 32 bits, for
      gaps that the kind cannot express, for an unknown kind, or for sizes out
      of range.
  """
  (n,) = levels.shape
  _signed_length(max_level, 0, kind)
  limit = _limit(n, capacity_words, max_nonzeros)
  wide = _wide(n, kind)
  present = bitmap.pack(levels != 0)
  count = bitmap.count(present)
  index = bitmap.positions(present, limit)
  level = levels.at[index].get(mode='fill', fill_value=0)
  valid = jnp.arange(limit) < count
  before = jnp.concatenate([jnp.full(1, -1, jnp.int32), index])[:-1]
  gap = jnp.where(valid, index - before, 0)
  bits, length = elias.code(jnp.abs(level), kind)
  negative = (level < 0).astype(jnp.uint32)
  bits = bits | (negative << (length & 31).astype(jnp.uint32))
  pieces = [(bits, length + valid)]
  if wide:
    head, head_length, tail, tail_length = elias.parts(gap, kind)
    pieces = [(head, head_length), (tail, tail_length), *pieces]
  else:
    pieces = [elias.code(gap, kind), *pieces]
  words, offsets, total_bits = streams.encode(
    jnp.stack([b for b, _ in pieces], axis=1),
    jnp.stack([x for _, x in pieces], axis=1),
    capacity_words,
    block,
  )
  total_bits = jnp.where(count > limit, _TOO_LONG, total_bits)
  return SparsePayload(words, offsets, total_bits, count.astype(jnp.uint32))


def decode_sparse(
  payload: SparsePayload,
  n: int,
  *,
  kind: str = 'omega',
  block: int = streams.BLOCK,
  max_nonzeros: int | None = None,
) -> jax.Array:
  """The levels that `encode_sparse` encoded.

  Args:
    payload: from `encode_sparse`; `total_bits` is not read.
    n: number of elements.
    kind: as encoded.
    block: as encoded.
    max_nonzeros: as encoded.

  Returns:
    int32[n]; arbitrary where the capacity was not enough.

  Raises:
    ValueError: for an unknown kind, gaps that it cannot express, or the wrong
      number of offsets.
  """
  limit = _limit(n, payload.words.shape[0], max_nonzeros)
  wide = _wide(n, kind)

  def reader(
    words: jax.Array, positions: jax.Array
  ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    window = streams.window(words, positions)
    following = streams.window(words, positions + 32) if wide else None
    gap, length = elias.read(window, kind, following)
    positions = positions + length.astype(jnp.uint32)
    window = streams.window(words, positions)
    level, length = elias.read(window << 1, kind)
    level = level.astype(jnp.int32)
    level = jnp.where(window >> 31 == 1, -level, level)
    positions = positions + (length + 1).astype(jnp.uint32)
    return (gap.astype(jnp.int32), level), positions

  gap, level = streams.parse(
    payload.words, payload.offsets, limit, reader, block
  )
  valid = jnp.arange(limit) < payload.nonzeros.astype(jnp.int32)
  index = jnp.cumsum(jnp.where(valid, gap, 0), dtype=jnp.int32) - 1
  index = jnp.where(valid & (index >= 0), index, n)  # out of bounds: dropped
  return jnp.zeros(n, jnp.int32).at[index].set(level, mode='drop')


def _signed_length(max_level: int, offset: int, kind: str) -> int:
  """Bits of the longest Elias(|level| + offset) and a sign; at most 32."""
  if max_level < 1:
    raise ValueError(f'max_level must be >= 1, got {max_level}')
  longest = elias.max_length(max_level + offset, kind) + 1
  if longest > 32:
    raise ValueError(
      f'max_level must have a code of at most 31 bits, got {max_level} with '
      f'{longest - 1} bits in {kind}'
    )
  return longest


def _limit(n: int, capacity_words: int, max_nonzeros: int | None) -> int:
  if max_nonzeros is None:
    return nonzero_limit(n, capacity_words)
  if max_nonzeros < 0:
    raise ValueError(f'max_nonzeros must be >= 0, got {max_nonzeros}')
  return min(n, max_nonzeros)


def _wide(n: int, kind: str) -> bool:
  """Whether gaps up to n need two parts."""
  limit = elias.max_value(kind, parts=True)
  if n > limit:
    raise ValueError(
      f'gaps must be at most {limit} in {kind}, got {n} elements'
    )
  return n > elias.max_value(kind)
