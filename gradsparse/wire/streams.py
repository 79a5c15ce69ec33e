"""Streams of variable-length codes that are written and read in parallel.

Codes lie back to back. The prefix sum of their lengths gives their positions,
so all are written in parallel: every code is added into the one or two words
that it touches. For parallel reading, the stream also holds the length of each
block of `block` symbols. Their prefix sum gives the positions of the blocks,
which are read in parallel, one symbol of each at a time.

**Layout.** First come the lengths of all blocks except the last, each in as
many bits as the longest possible block needs, padded to whole words. The codes
follow. Further words of the array are not used. For 256 symbols of at most 31
bits the lengths take 13 / 256 = 0.05 bits a symbol.

**Bit order.** Big-endian: bit t of the codes is bit `31 - t mod 32` of word
`t // 32`, so that a code reads as a number in the words too.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> bits, lengths = wire.elias.code(jnp.array([1, 2, 5]), 'unary')
>>> words, used = wire.streams.encode(bits, lengths, capacity_words=2)
>>> print(f'{words[0]:032b}', used)
10100001000000000000000000000000 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

BLOCK = 256

# (words, positions uint32[blocks]) -> (symbols [blocks, ..], next positions)
Reader = Callable[[jax.Array, jax.Array], tuple[Any, jax.Array]]


def blocks(count: int, block: int = BLOCK) -> int:
  """The number of blocks of `count` symbols.

  Raises:
    ValueError: count or block is out of range.
  """
  if count < 0:
    raise ValueError(f'count must be >= 0, got {count}')
  if block < 1:
    raise ValueError(f'block must be >= 1, got {block}')
  return -(-count // block)


def length_words(count: int, max_bits: int, block: int = BLOCK) -> int:
  """The words of the blocks' lengths, without the last block's.

  Args:
    count: number of symbols, >= 0.
    max_bits: the most bits of a symbol.
    block: symbols of a block.

  Returns:
    The number of 32-bit words before the codes.

  Raises:
    ValueError: count or block is out of range, or the length of a block does
      not fit in 32 bits.
  """
  told = max(blocks(count, block) - 1, 0)
  return fixed_width.words(told, length_width(max_bits, block))


def length_width(max_bits: int, block: int = BLOCK) -> int:
  """The bits of a block's length."""
  return (max_bits * block).bit_length()


def most(max_bits: int) -> int:
  """The most symbols of `max_bits` bits in a stream.

  Positions in a stream are counted in bits, in 32-bit numbers.
  """
  return (2**32 - 65) // max_bits


def check_total(count: int, max_bits: int) -> None:
  """Raises ValueError where positions might not fit in 32 bits."""
  if count > most(max_bits):
    raise ValueError(
      f'a stream must be below 2**32 bits, got {count} symbols of up to '
      f'{max_bits} bits'
    )


def encode(
  bits: jax.Array,
  lengths: jax.Array,
  capacity_words: int,
  block: int = BLOCK,
  *,
  max_length: int = 32,
) -> tuple[jax.Array, jax.Array]:
  """Writes codes back to back, block lengths in front.

  Args:
    bits: uint32[count], numbers of `length` digits (below `2**length`), the
      first-sent digit on top.
    lengths: int32[count] in [0, max_length]; 0 writes nothing.
    capacity_words: words to write to. What does not fit is not written.
    block: symbols of a block.
    max_length: the most bits of a code. Less than 32 is faster, as short codes
      are joined before they are written.

  Returns:
    words: uint32[capacity_words], zero after the last bit.
    used: int32[], words that the whole stream needs. It is complete if and
      only if that is at most `capacity_words`.

  Raises:
    ValueError: the length of the stream might not fit in 32 bits, or a size
      is out of range.
  """
  (count,) = bits.shape
  check_capacity(capacity_words)
  check_total(count, max_length)
  front = length_words(count, max_length, block)
  words = jnp.zeros_like(bits, jnp.uint32, shape=(capacity_words,))
  if not count:
    return words, jnp.int32(0)
  words, block_bits = append(
    words,
    jnp.uint32(32 * front),
    bits[:, None],
    lengths[:, None],
    block,
    max_length=max_length,
  )
  width = length_width(max_length, block)
  words = with_lengths(words, block_bits, 0, block_bits.shape[0], width)
  return words, front + words_of(jnp.sum(block_bits, dtype=jnp.uint32))


def append(
  words: jax.Array,
  first_bit: jax.Array,
  bits: jax.Array,
  lengths: jax.Array,
  block: int,
  *,
  max_length: int,
) -> tuple[jax.Array, jax.Array]:
  """Adds codes to words, which are zero from `first_bit` on.

  Args:
    words: uint32[capacity]; what does not fit is not written.
    first_bit: uint32[], where the first code begins.
    bits: uint32[count, pieces]; the pieces of a symbol follow one another.
    lengths: int32[count, pieces] in [0, max_length].
    block: symbols of a block.
    max_length: the most bits of a piece.

  Returns:
    The words, and uint32[blocks(count, block)], the length of each block.

  Raises:
    ValueError: max_length is out of range.
  """
  if not 1 <= max_length <= 32:
    raise ValueError(f'max_length must be in [1, 32], got {max_length}')
  count, pieces = bits.shape
  rows = blocks(count, block)
  missing = rows * block - count
  bits, lengths = bits.astype(jnp.uint32), lengths.astype(jnp.uint32)
  if missing:
    bits = jnp.pad(bits, ((0, missing), (0, 0)))
    lengths = jnp.pad(lengths, ((0, missing), (0, 0)))
  bits = bits.reshape(rows, block * pieces)
  lengths = lengths.reshape(rows, block * pieces)
  while 2 * max_length <= 32 and bits.shape[1] % 2 == 0:
    bits, lengths = _join_pairs(bits, lengths)
    max_length *= 2
  inside = jnp.cumsum(lengths, axis=1, dtype=jnp.uint32)
  block_bits = inside[:, -1]
  ends = first_bit + jnp.cumsum(block_bits, dtype=jnp.uint32)
  starts = (ends - block_bits)[:, None] + inside - lengths
  return _write(words, bits, lengths, starts), block_bits


def with_lengths(
  words: jax.Array,
  block_bits: jax.Array,
  first: int,
  used: jax.Array | int,
  width: int,
) -> jax.Array:
  """Writes block lengths into words that are zero there.

  Args:
    words: uint32[capacity]; what does not fit is not written.
    block_bits: uint32[blocks], the length of each block.
    first: the word in which the lengths begin.
    used: the number of blocks; the last one's length is not written.
    width: bits of a length.

  Returns:
    The words.
  """
  told = jnp.arange(block_bits.shape[0]) < used - 1
  packed = fixed_width.pack(jnp.where(told, block_bits, 0), width)
  # The zeros after the last length are added to codes, without effect.
  packed = packed[: max(words.shape[0] - first, 0)]
  return words.at[first : first + packed.shape[0]].add(packed)


def words_of(bits: jax.Array) -> jax.Array:
  """int32[], the number of words of `bits` bits."""
  begun = (bits & 31) != 0
  return ((bits >> 5) + begun.astype(bits.dtype)).astype(jnp.int32)


def words_told(used: jax.Array | int, width: int) -> jax.Array:
  """int32[], the words of the lengths of `used` blocks."""
  told = jnp.maximum(used - 1, 0)
  return words_of((told * width).astype(jnp.uint32))


def starts_of(
  words: jax.Array, first: int, count: int, used: jax.Array | int, width: int
) -> jax.Array:
  """The positions of blocks, from the lengths that `with_lengths` wrote.

  Args:
    words: the stream.
    first: the word in which the lengths begin.
    count: the most blocks.
    used: the number of blocks; the starts of others are arbitrary.
    width: bits of a length.

  Returns:
    uint32[count], bit positions.
  """
  size = fixed_width.words(max(count - 1, 0), width)
  packed = words[first : first + size]
  packed = jnp.pad(packed, (0, size - packed.shape[0]))
  lengths = fixed_width.unpack(packed, max(count - 1, 0), width)
  lengths = jnp.where(jnp.arange(lengths.shape[0]) < used - 1, lengths, 0)
  front = first + words_told(used, width)
  before = jnp.cumsum(lengths, dtype=jnp.uint32)
  before = jnp.pad(before, (1, 0))[:count]
  return before + 32 * front.astype(jnp.uint32)


def parse(
  words: jax.Array, starts: jax.Array, block: int, reader: Reader
) -> Any:
  """Reads blocks in parallel.

  Args:
    words: uint32[m], the stream.
    starts: uint32[blocks], the position of each block, in bits.
    block: symbols of a block.
    reader: (words, bit positions uint32[blocks]) -> (the symbols there, a
      pytree of arrays [blocks]; the positions after them).

  Returns:
    The symbols, arrays [blocks * block]. Those beyond the stream are arbitrary.
  """
  if not words.shape[0]:
    words = jnp.zeros_like(words, shape=(1,))  # a reader needs one word

  def step(positions: jax.Array, _: None) -> tuple[jax.Array, Any]:
    symbols, positions = reader(words, positions)
    return positions, symbols

  _, symbols = jax.lax.scan(step, starts, length=block)
  return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(-1), symbols)


def decode(
  words: jax.Array,
  count: int,
  reader: Reader,
  block: int = BLOCK,
  *,
  max_length: int = 32,
) -> Any:
  """Reads what `encode` wrote.

  Args:
    words: uint32[m], the stream.
    count: number of symbols.
    reader: see `parse`.
    block: as encoded.
    max_length: as encoded.

  Returns:
    The symbols, arrays [count]. From the first missing one of an incomplete
    stream on, they are arbitrary.

  Raises:
    ValueError: a size is out of range.
  """
  rows, width = blocks(count, block), length_width(max_length, block)
  starts = starts_of(words, 0, rows, rows, width)
  symbols = parse(words, starts, min(block, max(count, 1)), reader)
  return jax.tree.map(lambda x: x[:count], symbols)


def window(words: jax.Array, positions: jax.Array) -> jax.Array:
  """The 32 bits of a stream that begin at each bit position.

  Args:
    words: uint32[m], m >= 1.
    positions: uint32[...], in bits.

  Returns:
    uint32[...], the first bit on top; arbitrary bits after the end.
  """
  word = (positions >> 5).astype(jnp.int32)
  shift = positions & 31
  first = words.at[word].get(mode='clip')
  second = words.at[word + 1].get(mode='clip')
  # Two shifts of at most 31 bits, as a shift by 32 is undefined.
  return (first << shift) | ((second >> 1) >> (31 - shift))


def check_capacity(capacity_words: int) -> None:
  """Raises ValueError for a negative capacity."""
  if capacity_words < 0:
    raise ValueError(f'capacity_words must be >= 0, got {capacity_words}')


def _join_pairs(
  bits: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Joins neighbours to one code each, of at most 32 bits."""
  first, second = bits[:, 0::2], bits[:, 1::2]
  # Half of 32 bits at most, so the shift is defined.
  joined = (first << lengths[:, 1::2]) | second
  return joined, lengths[:, 0::2] + lengths[:, 1::2]


def _write(
  words: jax.Array, bits: jax.Array, lengths: jax.Array, starts: jax.Array
) -> jax.Array:
  """Adds each code into the word where it starts and the next one."""
  top = bits << ((32 - lengths) & 31)  # a length of 0 has no bits to shift
  shift = starts & 31
  word = starts >> 5
  # Codes do not overlap, so adding bits sets them.
  words = words.at[word].add(top >> shift, mode='drop')
  return words.at[word + 1].add((top << 1) << (31 - shift), mode='drop')
