"""QSGD's streams: signed integer levels in the dense and in the sparse code.

The dense code suits many levels (about one nonzero in two or more). It has for
each element

    Elias(|level| + 1), then a sign bit where level != 0.

The sparse code suits few levels. It has for each nonzero element

    Elias(gap), sign, Elias(|level|),

where the gap is the distance to the nonzero before it (for the first one its
index + 1). The number of nonzeros is the first word of a sparse stream.

A stream begins with the lengths of its blocks (see `streams`). The number of
its words depends on the data, and is returned with it.

On Gaussian vectors with the 2-norm and s = sqrt(n) levels, the dense code takes
2.94 bits an element in omega and 2.43 in unary; the lengths of the blocks add
0.05. Corollary 3.3 derives 2.8 from idealised lengths of its codes.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> levels = jnp.array([0, 3, 0, -1])
>>> words, used = wire.qsgd_codes.encode_dense(levels, 4, max_level=7)
>>> print(used, wire.qsgd_codes.decode_dense(words, 4, max_level=7))
1 [ 0  3  0 -1]

References:
  Alistarh et al., QSGD, arXiv 1610.02132, section 3.1, theorem 3.2 (sparse)
  and corollary 3.3 (dense).
"""

from __future__ import annotations

from gradsparse.backend import reductions
from gradsparse.wire import bitmap
from gradsparse.wire import elias
from gradsparse.wire import streams
import jax
import jax.numpy as jnp

# Nonzeros of a block: fewer than elements of a dense block.
SPARSE_BLOCK = 128
# Gap, sign and level take at least one bit each.
_MIN_NONZERO_BITS = 3
# The most levels of a vector, whose indices are int32.
_MOST = 2**31 - 1
# Nonzeros are written and read in at most this many passes, which stop after
# the last nonzero. A pass has enough blocks for a processor's vector units.
_PASSES = 16
_MIN_BLOCKS = 64


def encode_dense(
  levels: jax.Array,
  capacity_words: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = streams.BLOCK,
) -> tuple[jax.Array, jax.Array]:
  """Encodes levels in the dense code.

  Args:
    levels: int32[n] in [-max_level, max_level].
    capacity_words: words to write to.
    max_level: the largest |level|, >= 1.
    kind: a key of elias.KINDS.
    block: symbols of a block.

  Returns:
    words: uint32[capacity_words], the stream, and zeros.
    used: int32[], words that the stream needs; it is complete if and only if
      they are at most `capacity_words`.

  Raises:
    ValueError: a level's code has more than 32 bits, kind is unknown, or a
      size is out of range.
  """
  longest = longest_code(max_level, 1, kind)
  bits, lengths = elias.code(jnp.abs(levels) + 1, kind)
  signed = levels != 0
  negative = (levels < 0).astype(jnp.uint32)
  bits = jnp.where(signed, (bits << 1) | negative, bits)
  return streams.encode(
    bits,
    lengths + signed.astype(lengths.dtype),
    capacity_words,
    block,
    max_length=longest,
  )


def decode_dense(
  words: jax.Array,
  n: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = streams.BLOCK,
) -> jax.Array:
  """The levels that `encode_dense` encoded.

  Args:
    words: the stream; what comes after it is not read.
    n: number of elements.
    max_level: as encoded.
    kind: as encoded.
    block: as encoded.

  Returns:
    int32[n]; arbitrary from where the capacity was not enough.

  Raises:
    ValueError: kind is unknown, or a size is out of range.
  """
  longest = longest_code(max_level, 1, kind)

  def reader(
    words: jax.Array, positions: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    window = streams.window(words, positions)
    value, length = elias.read(window, kind)
    level = value.astype(jnp.int32) - 1
    signed = level != 0
    # For a zero, this is a bit of the next code, and has no effect.
    negative = (window << (length & 31).astype(jnp.uint32)) >> 31 == 1
    length += signed.astype(length.dtype)
    positions = positions + length.astype(jnp.uint32)
    return jnp.where(negative, -level, level), positions

  return streams.decode(words, n, reader, block, max_length=longest)


def dense_least(n: int, max_level: int, kind: str) -> int:
  """The words of the shortest dense stream, with one bit for each element."""
  longest = longest_code(max_level, 1, kind)
  return streams.length_words(n, longest) + -(-n // 32)


def dense_words(levels: jax.Array, max_level: int, kind: str) -> jax.Array:
  """int32[], the words that `encode_dense` needs, without writing them."""
  front = streams.length_words(
    levels.shape[0], longest_code(max_level, 1, kind)
  )
  bits = elias.length(jnp.abs(levels) + 1, kind, max_level + 1)
  bits += jnp.minimum(jnp.abs(levels), 1)
  return front + streams.words_of(_total(bits))


def encode_sparse(
  levels: jax.Array,
  capacity_words: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = SPARSE_BLOCK,
) -> tuple[jax.Array, jax.Array]:
  """Encodes levels in the sparse code, in time that grows with the nonzeros.

  Args:
    levels: int32[n] in [-max_level, max_level].
    capacity_words: words to write to.
    max_level: the largest |level|, >= 1.
    kind: a key of elias.KINDS.
    block: nonzeros of a block.

  Returns:
    words: uint32[capacity_words], the stream, and zeros; arbitrary where it
      is not complete.
    used: int32[], words that the stream needs; it is complete if and only if
      they are at most `capacity_words`.

  Raises:
    ValueError: a level's code with its sign has more than 32 bits, kind is
      unknown, or a size is out of range.
  """
  (n,) = levels.shape
  streams.check_capacity(capacity_words)
  if not n:
    return jnp.zeros(capacity_words, jnp.uint32), jnp.int32(1)
  level_bits = longest_code(max_level, 0, kind)
  limit = _nonzero_limit(n, capacity_words)
  symbol_bits = _nonzero_bits(n, max_level, kind)
  streams.check_total(limit, symbol_bits)
  wide = n > elias.max_value(kind)
  gap_bits = 32 if wide else elias.max_length(n, kind)
  rows, passes = _passes(limit, block)
  width = streams.length_width(symbol_bits, block)
  find, count = bitmap.finder(bitmap.pack(levels != 0))
  used_blocks = _ceil_div(count, block)
  front = 1 + streams.words_told(used_blocks, width)

  def codes(first):
    """The codes of a pass, of the nonzeros first, first + 1, ..."""
    rank = first + jnp.arange(-1, rows * block)
    index = jnp.where(rank < 0, -1, find(rank))
    valid = rank[1:] < count
    level = levels.at[index[1:]].get(mode='fill', fill_value=0)
    gap = jnp.where(valid, index[1:] - index[:-1], 0)
    bits, length = elias.code(jnp.abs(level), kind)
    negative = (level < 0).astype(jnp.uint32)
    bits = bits | (negative << (length & 31).astype(jnp.uint32))
    last = bits, length + valid.astype(length.dtype)
    if not wide:
      return [elias.code(gap, kind), last]
    head, head_length, tail, tail_length = elias.parts(gap, kind)
    return [(head, head_length), (tail, tail_length), last]

  def write(number, carry):
    words, block_bits, position = carry
    pieces = codes(number * rows * block)
    words, new = streams.append(
      words,
      position,
      jnp.stack([bits for bits, _ in pieces], axis=1),
      jnp.stack([lengths for _, lengths in pieces], axis=1),
      block,
      max_length=max(gap_bits, level_bits),
    )
    at = (number * rows,)
    block_bits = jax.lax.dynamic_update_slice(block_bits, new, at)
    return words, block_bits, position + jnp.sum(new, dtype=jnp.uint32)

  # Typed like the data, as a loop's carry must keep its type.
  start = (
    jnp.zeros_like(levels, jnp.uint32, shape=(capacity_words,)),
    jnp.zeros_like(levels, jnp.uint32, shape=(passes * rows,)),
    32 * front.astype(jnp.uint32),
  )
  needed = _ceil_div(jnp.minimum(count, limit), rows * block)
  words, block_bits, end = jax.lax.fori_loop(0, needed, write, start)
  words = streams.with_lengths(words, block_bits, 1, used_blocks, width)
  if capacity_words:
    words = words.at[0].set(count.astype(jnp.uint32))
  fits = count <= limit
  return words, jnp.where(fits, streams.words_of(end), capacity_words + 1)


def sparse_words(levels: jax.Array, max_level: int, kind: str) -> jax.Array:
  """int32[], the words that `encode_sparse` needs, without writing them."""
  (n,) = levels.shape
  if not n:
    return jnp.int32(1)
  marked = levels != 0
  gap = jnp.where(marked, bitmap.gaps(bitmap.pack(marked))[:n], 0)
  bits = elias.length(gap, kind)
  bits += elias.length(jnp.abs(levels), kind, max_level)
  count = jnp.sum(marked, dtype=jnp.int32)
  width = streams.length_width(_nonzero_bits(n, max_level, kind), SPARSE_BLOCK)
  front = 1 + streams.words_told(_ceil_div(count, SPARSE_BLOCK), width)
  return front + streams.words_of(_total(bits + marked.astype(bits.dtype)))


def decode_sparse(
  words: jax.Array,
  n: int,
  *,
  max_level: int,
  kind: str = 'omega',
  block: int = SPARSE_BLOCK,
) -> jax.Array:
  """The levels that `encode_sparse` encoded.

  Args:
    words: all words of the capacity; what comes after the stream is not read.
    n: number of elements.
    max_level: as encoded.
    kind: as encoded.
    block: as encoded.

  Returns:
    int32[n]; arbitrary where the capacity was not enough.

  Raises:
    ValueError: kind is unknown, or a size is out of range.
  """
  (capacity_words,) = words.shape
  limit = _nonzero_limit(n, capacity_words)
  levels = jnp.zeros_like(words, jnp.int32, shape=(n,))
  if not limit:
    return levels
  wide = n > elias.max_value(kind)
  rows, passes = _passes(limit, block)
  width = streams.length_width(_nonzero_bits(n, max_level, kind), block)
  count = jnp.minimum(words[0], jnp.uint32(limit)).astype(jnp.int32)
  starts = streams.starts_of(
    words, 1, passes * rows, _ceil_div(count, block), width
  )

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

  def read(number, carry):
    levels, last = carry
    begin = jax.lax.dynamic_slice(starts, (number * rows,), (rows,))
    gap, level = streams.parse(words, begin, block, reader)
    valid = number * rows * block + jnp.arange(rows * block) < count
    index = last + jnp.cumsum(jnp.where(valid, gap, 0), dtype=jnp.int32)
    last = index[-1]
    index = jnp.where(valid & (index >= 0), index, n)  # out of bounds: dropped
    return levels.at[index].set(level, mode='drop'), last

  needed = _ceil_div(count, rows * block)
  start = (levels, jnp.full_like(count, -1))
  return jax.lax.fori_loop(0, needed, read, start)[0]


def longest_code(max_level: int, offset: int, kind: str) -> int:
  """Bits of the longest code of |level| + offset, with its sign; at most 32.

  Args:
    max_level: the largest |level|, >= 1.
    offset: 1 in the dense code, 0 in the sparse one.
    kind: a key of elias.KINDS.

  Raises:
    ValueError: kind is unknown, or max_level is out of range.
  """
  if max_level < 1:
    raise ValueError(f'max_level must be >= 1, got {max_level}')
  longest = elias.max_length(max_level + offset, kind) + 1
  if longest > 32:
    raise ValueError(
      f'max_level must have a code of at most 31 bits, got {max_level} with '
      f'{longest - 1} bits in {kind}'
    )
  return longest


def most_levels(max_level: int, kind: str, sparse: bool) -> int:
  """The most levels of a stream, whatever their values.

  Args:
    max_level: the largest |level|, >= 1.
    kind: a key of elias.KINDS.
    sparse: whether it is the sparse code.

  Raises:
    ValueError: kind is unknown, or max_level is out of range.
  """
  if not sparse:
    return streams.most(longest_code(max_level, 1, kind))
  return streams.most(_nonzero_bits(_MOST, max_level, kind))


def _nonzero_limit(n: int, capacity_words: int) -> int:
  """The most nonzeros that the sparse code can hold in a capacity."""
  return min(n, 32 * capacity_words // _MIN_NONZERO_BITS)


def _nonzero_bits(n: int, max_level: int, kind: str) -> int:
  """The most bits that gap, sign and level take."""
  return elias.max_length(n, kind) + longest_code(max_level, 0, kind)


def _passes(limit: int, block: int) -> tuple[int, int]:
  """(blocks of a pass, the most passes)."""
  total = max(streams.blocks(limit, block), 1)
  rows = min(total, max(_MIN_BLOCKS, -(-total // _PASSES)))
  return rows, -(-total // rows)


def _total(bits: jax.Array) -> jax.Array:
  """uint32[], the sum of a vector of int32."""
  rows = jnp.sum(reductions.in_rows(bits), axis=1)
  return jnp.sum(rows.astype(jnp.uint32), dtype=jnp.uint32)


def _ceil_div(count: jax.Array, size: int) -> jax.Array:
  return (count + size - 1) // size
