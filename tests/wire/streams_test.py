"""Streams against one long bit string."""

from __future__ import annotations

import functools

from gradsparse.wire import elias
from gradsparse.wire import streams
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.wire import bit_strings

_encode = jax.jit(
  streams.encode, static_argnums=(2, 3), static_argnames='max_length'
)
_code = jax.jit(elias.code, static_argnums=1)


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _decode(words, count, kind, block):
  def reader(words, positions):
    values, lengths = elias.read(streams.window(words, positions), kind)
    return values, positions + lengths.astype(jnp.uint32)

  return streams.decode(words, count, reader, block)


def _stream(bits, lengths, block, max_length):
  """The words of a stream: all lengths but the last block's, then the codes."""
  padded = np.pad(lengths, (0, -lengths.size % block)).reshape(-1, block)
  told = padded.sum(axis=1)[:-1]
  width = (block * max_length).bit_length()
  # Fixed-width codes are little-endian: from the last to the first.
  front = ''.join(format(x, 'b').zfill(width) for x in told[::-1])
  count = -(-len(front) // 32)
  front = front.zfill(32 * count)
  words = [int(front[32 * i : 32 * i + 32], 2) for i in range(count)][::-1]
  codes = _string(bits, lengths)
  return words + bit_strings.to_words(codes, -(-len(codes) // 32))


def _random_codes(rng, shape, max_length):
  lengths = rng.integers(0, max_length + 1, shape)
  bits = rng.integers(0, 2**32, shape, np.uint64) % 2 ** lengths.astype(
    np.uint64
  )
  return bits.astype(np.uint32), lengths.astype(np.int32)


def _string(bits, lengths):
  pairs = zip(bits.ravel().tolist(), lengths.ravel().tolist(), strict=True)
  return ''.join(format(b, 'b').zfill(n) for b, n in pairs if n)


# Count, block, max_length: few, because each is a compilation.
_CASES = [
  (1, 8, 32),
  (77, 8, 32),
  (77, 8, 8),
  (77, 24, 5),
  (64, 1, 12),
  (64, 64, 12),
]


@given(st.sampled_from(_CASES), st.integers(0, 2**32 - 1))
def test_words_are_the_block_lengths_and_the_codes(case, seed):
  count, block, max_length = case
  rng = np.random.default_rng(seed)
  bits, lengths = _random_codes(rng, count, max_length)
  expected = _stream(bits, lengths, block, max_length)
  capacity = 2 + 2 * count * max_length // 32 + count
  words, used = _encode(
    jnp.asarray(bits),
    jnp.asarray(lengths),
    capacity,
    block,
    max_length=max_length,
  )
  assert words.dtype == jnp.uint32
  assert int(used) == len(expected)
  assert words.tolist() == expected + [0] * (capacity - len(expected))
  front = streams.length_words(count, max_length, block)
  assert front == len(expected) - -(-len(_string(bits, lengths)) // 32)


@pytest.mark.parametrize('max_length', marks.few([5, 8, 16, 17], 8, 17))
def test_the_longest_codes_side_by_side(max_length):
  bits = np.full(72, 2**max_length - 1, np.uint32)
  bits[::3] = 1
  lengths = np.full(72, max_length, np.int32)
  expected = _stream(bits, lengths, 24, max_length)
  words, used = _encode(
    jnp.asarray(bits),
    jnp.asarray(lengths),
    len(expected),
    24,
    max_length=max_length,
  )
  assert int(used) == len(expected)
  assert words.tolist() == expected


@pytest.mark.parametrize('capacity', marks.few([0, 1, 3, 20], 0, 3))
@pytest.mark.parametrize('max_length', marks.few([8, 32], 8))
def test_nothing_is_written_past_the_capacity(capacity, max_length):
  bits, lengths = _random_codes(np.random.default_rng(3), (100,), max_length)
  expected = _stream(bits, lengths, 16, max_length)
  words, used = _encode(
    jnp.asarray(bits),
    jnp.asarray(lengths),
    capacity,
    16,
    max_length=max_length,
  )
  assert int(used) == len(expected)
  kept = expected[:capacity]
  kept += [0] * (capacity - len(kept))
  assert words.tolist() == kept


@given(
  st.sampled_from(tuple(elias.KINDS)),
  st.sampled_from([(50, 256), (100, 7)]),
  st.integers(0, 2**32 - 1),
)
def test_decode_inverts_encode(kind, shape, seed):
  count, block = shape
  rng = np.random.default_rng(seed)
  # Powers of two are as likely as one another: all lengths occur.
  limit = elias.max_value(kind)
  values = np.exp2(rng.uniform(0, np.log2(limit), count)).astype(np.uint32)
  values[0] = limit
  bits, lengths = _code(jnp.asarray(values), kind)
  words, used = _encode(bits, lengths, 2 * count, block)
  assert int(used) <= 2 * count
  got = _decode(words, count, kind, block)
  np.testing.assert_array_equal(got, values)


def test_no_symbols():
  none = jnp.zeros(0, jnp.uint32)
  words, used = streams.encode(none, none, 2, 8)
  assert words.tolist() == [0, 0] and int(used) == 0
  assert _decode(words, 0, 'omega', 8).shape == (0,)


def test_block_lengths_take_little():
  n = 10**6
  assert 32 * streams.length_words(n, 31) / n <= 0.051
  assert streams.length_words(streams.BLOCK, 31) == 0  # one block ends last


def test_window_reads_across_words():
  words = jnp.array([0x12345678, 0x9ABCDEF0], jnp.uint32)
  positions = jnp.array([0, 4, 16, 28, 32], jnp.uint32)
  got = [hex(x) for x in streams.window(words, positions).tolist()]
  assert got == [
    '0x12345678',
    '0x23456789',
    '0x56789abc',
    '0x89abcdef',
    '0x9abcdef0',
  ]


def test_errors():
  ones = jnp.ones(10, jnp.uint32)
  encode = functools.partial(streams.encode, ones, ones)
  with pytest.raises(ValueError, match='block must be >= 1, got 0'):
    encode(5, 0)
  with pytest.raises(ValueError, match=r'width must be in \[1, 32\], got 33'):
    encode(5, 2**27)
  with pytest.raises(ValueError, match='capacity_words must be >= 0, got -1'):
    encode(-1)
  with pytest.raises(ValueError, match=r'max_length must be in \[1, 32\]'):
    encode(5, max_length=33)
  many = jax.ShapeDtypeStruct((2**27,), jnp.uint32)
  with pytest.raises(ValueError, match='a stream must be below 2'):
    jax.eval_shape(lambda b, n: streams.encode(b, n, 5), many, many)
