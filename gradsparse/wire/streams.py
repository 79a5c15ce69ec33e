"""Streams of variable-length codes that are written and read in parallel.

Codes lie back to back. Where each begins is the prefix sum of the lengths
before it, so all are written at once: every code is added into the one or two
words that it touches. To read at once as well, the stream keeps the length of
each block of `block` symbols; their prefix sum is where the blocks begin, and
blocks are read side by side, one symbol of each at a time.

**Layout.** The lengths of all blocks but the last, packed in as many bits as
the longest block could need, fill whole words; the codes follow. A stream is
complete in its first words, however large the array that it lies in. For 256
symbols of at most 31 bits the lengths take 13 / 256 = 0.05 bits a symbol.

**Bit order.** Big-endian: bit t of the codes is bit `31 - t mod 32` of word
`t // 32`, so that a code reads as a number in the words too.
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
  """How many blocks `count` symbols fill.

  Raises:
    ValueError: for a count or a block out of range.
  """
  if count < 0:
    raise ValueError(f'count must be >= 0, got {count}')
  if block < 1:
    raise ValueError(f'block must be >= 1, got {block}')
  return -(-count // block)


def length_words(count: int, max_bits: int, block: int = BLOCK) -> int:
  """Words that say how long the blocks are; nobody needs the last one's.

  Args:
    count: number of symbols, >= 0.
    max_bits: the most bits of a symbol.
    block: symbols a block.

  Returns:
    The number of 32-bit words before the codes.

  Raises:
    ValueError: for a count or a block out of range, or a block whose length
      does not fit in 32 bits.
  """
  told = max(blocks(count, block) - 1, 0)
  return fixed_width.words(told, length_width(max_bits, block))


def length_width(max_bits: int, block: int = BLOCK) -> int:
  """Bits in which the length of a block is told."""
  return (max_bits * block).bit_length()


def most(max_bits: int) -> int:
  """How many symbols of so many bits a stream can have.

  Positions in it are counted in bits, by 32-bit numbers.
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
    block: symbols a block.
    max_length: the most bits of a code; a smaller one than 32 is faster,
      since short codes are joined before they are written.

  Returns:
    words: uint32[capacity_words], zero after the last bit.
    used: int32[], words that the whole stream needs. It is complete if and
      only if that is at most `capacity_words`.

  Raises:
    ValueError: for a stream whose length might not fit in 32 bits, or for
      other sizes out of range.
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
    block: symbols a block.
    max_length: the most bits of a piece.

  Returns:
    The words, and uint32[blocks(count, block)], how long each block is.

  Raises:
    ValueError: for a maximum out of range.
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
    block_bits: uint32[blocks], how long each block is.
    first: the word in which the lengths begin.
    used: how many blocks there are; the last one's length is not written.
    width: bits in which a length is told.

  Returns:
    The words.
  """
  told = jnp.arange(block_bits.shape[0]) < used - 1
  packed = fixed_width.pack(jnp.where(told, block_bits, 0), width)
  # The zeros after the last length fall on codes, and change nothing.
  packed = packed[: max(words.shape[0] - first, 0)]
  return words.at[first : first + packed.shape[0]].add(packed)


def words_of(bits: jax.Array) -> jax.Array:
  """int32[], the words that so many bits fill."""
  begun = (bits & 31) != 0
  return ((bits >> 5) + begun.astype(bits.dtype)).astype(jnp.int32)


def words_told(used: jax.Array | int, width: int) -> jax.Array:
  """int32[], the words of the lengths of so many blocks."""
  told = jnp.maximum(used - 1, 0)
  return words_of((told * width).astype(jnp.uint32))


def starts_of(
  words: jax.Array, first: int, count: int, used: jax.Array | int, width: int
) -> jax.Array:
  """Where blocks begin, from the lengths that `with_lengths` wrote.

  Args:
    words: the stream.
    first: the word in which the lengths begin.
    count: how many blocks there can be.
    used: how many there are; the starts of others are arbitrary.
    width: bits in which a length is told.

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
  """Reads blocks side by side.

  Args:
    words: uint32[m], the stream.
    starts: uint32[blocks], where each begins, in bits.
    block: symbols a block.
    reader: from the words and the bit positions uint32[blocks] to the symbols
      there (a pytree of arrays [blocks]) and the positions after them.

  Returns:
    The symbols, arrays [blocks * block]. Those that are not in the stream are
    arbitrary.
  """
  if not words.shape[0]:
    words = jnp.zeros_like(words, shape=(1,))  # so that there is one to read

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
    The symbols, arrays [count]. Those of an incomplete stream are arbitrary
    from the first one that is missing.

  Raises:
    ValueError: for sizes out of range.
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
  # Two shifts of at most 31 bits: a shift by 32 is not defined.
  return (first << shift) | ((second >> 1) >> (31 - shift))


def check_capacity(capacity_words: int) -> None:
  """Raises ValueError for a negative capacity."""
  if capacity_words < 0:
    raise ValueError(f'capacity_words must be >= 0, got {capacity_words}')


def _join_pairs(
  bits: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Neighbours as one code each; both together have at most 32 bits."""
  first, second = bits[:, 0::2], bits[:, 1::2]
  # Half of 32 bits at most, so the shift is defined.
  joined = (first << lengths[:, 1::2]) | second
  return joined, lengths[:, 0::2] + lengths[:, 1::2]


def _write(
  words: jax.Array, bits: jax.Array, lengths: jax.Array, starts: jax.Array
) -> jax.Array:
  """Adds each code into the word where it starts and the one after that."""
  top = bits << ((32 - lengths) & 31)  # a length of 0 has no bits to shift
  shift = starts & 31
  word = starts >> 5
  # Codes do not overlap, so adding bits is setting them.
  words = words.at[word].add(top >> shift, mode='drop')
  return words.at[word + 1].add((top << 1) << (31 - shift), mode='drop')
