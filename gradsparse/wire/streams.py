"""Streams of variable-length codes that are written and read in parallel.

Codes lie back to back. Where each begins is the prefix sum of the lengths
before it, so all are written at once: every code is added into the one or two
words that it touches. To read at once as well, the stream keeps the length of
each block of `block` symbols; their prefix sum is where the blocks begin, and
blocks are read side by side, one symbol of each at a time.

A block length has 16 bits, which is `16 / block` bits a symbol: 0.0625 for the
default of 256.

**Bit order.** Big-endian: bit t of the stream is bit `31 - t mod 32` of word
`t // 32`, so that a code reads as a number in the words too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse.wire import elias
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

BLOCK = 256
_OFFSET_WIDTH = 16

# (words, positions uint32[blocks]) -> (symbols [blocks, ..], next positions)
Reader = Callable[[jax.Array, jax.Array], tuple[Any, jax.Array]]


def offset_words(count: int, block: int = BLOCK) -> int:
  """Words of the block lengths, two a word.

  Args:
    count: number of symbols, >= 0.
    block: symbols a block.

  Returns:
    The number of 32-bit words.

  Raises:
    ValueError: for a count or a block out of range.
  """
  return fixed_width.words(_blocks(count, block), _OFFSET_WIDTH)


def encode(
  bits: jax.Array,
  lengths: jax.Array,
  capacity_words: int,
  block: int = BLOCK,
  *,
  max_length: int = 32,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Writes codes back to back.

  Args:
    bits: uint32[count] or uint32[count, pieces], each a number of `length`
      digits (below `2**length`), the first-sent digit on top. The pieces of a
      symbol follow one another.
    lengths: int32 of the shape of `bits`, in [0, max_length]; 0 writes
      nothing.
    capacity_words: words to write to. What does not fit is not written.
    block: symbols a block.
    max_length: the most bits of a piece; a smaller one than 32 is faster,
      since short codes are joined before they are written.

  Returns:
    words: uint32[capacity_words], zero after the last bit.
    offsets: uint32[offset_words(count, block)], the blocks' lengths.
    total_bits: uint32[], what the whole stream needs. The stream is complete
      if and only if it is at most `32 capacity_words`.

  Raises:
    ValueError: for a block whose length might not fit in 16 bits, for a stream
      whose length might not fit in 32, or for other sizes out of range.
  """
  count = bits.shape[0]
  blocks = _blocks(count, block)
  pieces = bits.shape[1] if bits.ndim == 2 else 1
  if not 1 <= max_length <= 32:
    raise ValueError(f'max_length must be in [1, 32], got {max_length}')
  if capacity_words < 0:
    raise ValueError(f'capacity_words must be >= 0, got {capacity_words}')
  if block * pieces * max_length >= 2**_OFFSET_WIDTH:
    raise ValueError(
      f'block must be below 2**{_OFFSET_WIDTH} bits, got {block} symbols of '
      f'{pieces} pieces of {max_length} bits'
    )
  if count * pieces * max_length >= 2**32 - 64:
    raise ValueError(
      f'a stream must be below 2**32 bits, got {count} symbols of {pieces} '
      f'pieces of {max_length} bits'
    )
  if not count:
    none = jnp.zeros(0, jnp.uint32)
    return jnp.zeros(capacity_words, jnp.uint32), none, jnp.uint32(0)
  missing = blocks * block - count
  bits = bits.astype(jnp.uint32).reshape(count, pieces)
  lengths = lengths.astype(jnp.uint32).reshape(count, pieces)
  if missing:
    bits = jnp.pad(bits, ((0, missing), (0, 0)))
    lengths = jnp.pad(lengths, ((0, missing), (0, 0)))
  bits = bits.reshape(blocks, block * pieces)
  lengths = lengths.reshape(blocks, block * pieces)
  while 2 * max_length <= 32 and bits.shape[1] % 2 == 0:
    bits, lengths = _join_pairs(bits, lengths)
    max_length *= 2
  inside = jnp.cumsum(lengths, axis=1, dtype=jnp.uint32)
  block_bits = inside[:, -1]
  ends = jnp.cumsum(block_bits, dtype=jnp.uint32)
  starts = (ends - block_bits)[:, None] + inside - lengths
  words = _write(bits, lengths, starts, capacity_words)
  return words, fixed_width.pack(block_bits, _OFFSET_WIDTH), ends[-1]


def parse(
  words: jax.Array,
  offsets: jax.Array,
  count: int,
  reader: Reader,
  block: int = BLOCK,
) -> Any:
  """Reads a stream, all blocks side by side.

  Args:
    words: uint32[m], the stream.
    offsets: uint32[offset_words(count, block)], the blocks' lengths.
    count: number of symbols.
    reader: from the words and the bit positions uint32[blocks] to the symbols
      there (a pytree of arrays [blocks]) and the positions after them.
    block: symbols a block.

  Returns:
    The symbols, arrays [count]. Those of an incomplete stream are arbitrary
    from the first one that is missing.

  Raises:
    ValueError: for sizes out of range, or the wrong number of offsets.
  """
  blocks = _blocks(count, block)
  lengths = fixed_width.unpack(offsets, blocks, _OFFSET_WIDTH)
  starts = jnp.cumsum(lengths, dtype=jnp.uint32) - lengths
  if not words.shape[0]:
    words = jnp.zeros(1, jnp.uint32)  # so that there is a word to read

  def step(positions: jax.Array, _: None) -> tuple[jax.Array, Any]:
    symbols, positions = reader(words, positions)
    return positions, symbols

  _, symbols = jax.lax.scan(step, starts, length=min(block, max(count, 1)))
  return jax.tree.map(
    lambda x: jnp.moveaxis(x, 0, 1).reshape(-1)[:count], symbols
  )


def decode(
  words: jax.Array,
  offsets: jax.Array,
  count: int,
  kind: str,
  block: int = BLOCK,
) -> jax.Array:
  """Reads a stream of Elias codes.

  Args:
    words: uint32[m], the stream.
    offsets: uint32[offset_words(count, block)], the blocks' lengths.
    count: number of symbols.
    kind: one of elias.KINDS.
    block: symbols a block.

  Returns:
    uint32[count], values of at most `elias.max_value(kind)`.

  Raises:
    ValueError: for an unknown kind, sizes out of range, or the wrong number of
      offsets.
  """
  elias.check_kind(kind)

  def reader(
    words: jax.Array, positions: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    values, lengths = elias.read(window(words, positions), kind)
    return values, positions + lengths.astype(jnp.uint32)

  return parse(words, offsets, count, reader, block)


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


def _blocks(count: int, block: int) -> int:
  if count < 0:
    raise ValueError(f'count must be >= 0, got {count}')
  if block < 1:
    raise ValueError(f'block must be >= 1, got {block}')
  return -(-count // block)


def _join_pairs(
  bits: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Neighbours as one code each; both together have at most 32 bits."""
  first, second = bits[:, 0::2], bits[:, 1::2]
  # Half of 32 bits at most, so the shift is defined.
  joined = (first << lengths[:, 1::2]) | second
  return joined, lengths[:, 0::2] + lengths[:, 1::2]


def _write(
  bits: jax.Array, lengths: jax.Array, starts: jax.Array, capacity_words: int
) -> jax.Array:
  """Adds each code into the word where it starts and the one after that."""
  top = bits << ((32 - lengths) & 31)  # a length of 0 has no bits to shift
  shift = starts & 31
  word = starts >> 5
  words = jnp.zeros(capacity_words, jnp.uint32)
  # Codes do not overlap, so adding bits is setting them.
  words = words.at[word].add(top >> shift, mode='drop')
  return words.at[word + 1].add((top << 1) << (31 - shift), mode='drop')
