"""QSGD's dense and sparse codes: exact streams, and the published sizes."""

from __future__ import annotations

import math

from gradsparse.wire import qsgd_codes
from gradsparse.wire import streams
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.wire import bit_strings

_STATIC = ('max_level', 'kind', 'block')
_encode_dense = jax.jit(
  qsgd_codes.encode_dense, static_argnums=1, static_argnames=_STATIC
)
_decode_dense = jax.jit(
  qsgd_codes.decode_dense, static_argnums=1, static_argnames=_STATIC
)
_encode_sparse = jax.jit(
  qsgd_codes.encode_sparse, static_argnums=1, static_argnames=_STATIC
)
_decode_sparse = jax.jit(
  qsgd_codes.decode_sparse, static_argnums=1, static_argnames=_STATIC
)


def _front(blocks, width):
  """Words that tell the lengths of all blocks but the last."""
  return -(-max(blocks - 1, 0) * width // 32)


def _code_words(words, front, string):
  """The words after the lengths are the codes, and then zeros."""
  return words[front:].tolist() == bit_strings.to_words(
    string, words.size - front
  )


def _levels(seed, n, max_level, density):
  rng = np.random.default_rng(seed)
  levels = rng.integers(-max_level, max_level + 1, n)
  levels = np.where(rng.random(n) < density, levels, 0).astype(np.int32)
  if density:
    levels[-1] = -max_level
  return levels


def _quantised_gaussian(n, s, seed=0):
  """QSGD with the 2-norm: stochastic rounding of s |v| / ||v||."""
  rng = np.random.default_rng(seed)
  v = rng.normal(size=n)
  scaled = s * np.abs(v) / np.linalg.norm(v)
  return (np.sign(v) * np.floor(scaled + rng.random(n))).astype(np.int32)


# n, block, max_level, kind: few, because each is a compilation.
_DENSE = [
  (1, 8, 1, 'omega'),
  (37, 8, 7, 'gamma'),
  (37, 8, 20, 'unary'),
  (300, 64, 255, 'omega'),
  (256, 64, 255, 'delta'),
]
_SPARSE = [
  (1, 8, 1, 'omega'),
  (31, 8, 20, 'unary'),
  (37, 8, 7, 'gamma'),
  (300, 64, 255, 'omega'),
  (256, 64, 255, 'delta'),
]


@given(
  st.sampled_from(_DENSE),
  st.sampled_from([0.0, 0.1, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_dense_round_trip_and_stream(case, density, seed):
  n, block, max_level, kind = case
  levels = _levels(seed, n, max_level, density)
  arguments = dict(max_level=max_level, kind=kind, block=block)
  capacity = 2 * n  # never too little here
  words, used = _encode_dense(jnp.asarray(levels), capacity, **arguments)
  expected = bit_strings.dense(levels.tolist(), kind)
  longest = 1 + len(bit_strings.CODES[kind](max_level + 1))
  front = _front(-(-n // block), (longest * block).bit_length())
  assert int(used) == front + -(-len(expected) // 32)
  assert _code_words(words, front, expected)
  got = _decode_dense(words, n, **arguments)
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, levels)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
  st.sampled_from(_SPARSE),
  st.sampled_from([0.0, 0.03, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_sparse_round_trip_and_stream(case, density, seed):
  n, block, max_level, kind = case
  levels = _levels(seed, n, max_level, density)
  arguments = dict(max_level=max_level, kind=kind, block=block)
  capacity = 2 * n + 1  # never too little here
  words, used = _encode_sparse(jnp.asarray(levels), capacity, **arguments)
  expected = bit_strings.sparse(levels.tolist(), kind)
  nonzeros = np.count_nonzero(levels)
  code = bit_strings.CODES[kind]
  longest = max(len(code(k)) for k in range(1, n + 1))
  longest += 1 + max(len(code(k)) for k in range(1, max_level + 1))
  front = 1 + _front(-(-nonzeros // block), (longest * block).bit_length())
  assert int(used) == front + -(-len(expected) // 32)
  assert int(words[0]) == nonzeros
  assert _code_words(words, front, expected)
  got = _decode_sparse(words, n, **arguments)
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, levels)


def test_many_nonzeros_are_written_and_read_in_passes():
  """Of 8,192 nonzeros; here three passes, the last one not full."""
  levels = _levels(1, 40_000, 3, 0.6)
  assert 2 * 8192 < np.count_nonzero(levels) < 3 * 8192
  words, used = _encode_sparse(jnp.asarray(levels), 12_000, max_level=3)
  string = bit_strings.sparse(levels.tolist(), 'omega')
  codes = -(-len(string) // 32)
  assert 0.97 * int(used) < codes < int(used) < 12_000
  assert words[int(used) - codes : int(used)].tolist() == (
    bit_strings.to_words(string, codes)
  )
  got = _decode_sparse(words, 40_000, max_level=3)
  np.testing.assert_array_equal(got, levels)


@pytest.mark.parametrize(
  'n, gap, kind',
  marks.few(
    [(200_000, 174_763, 'gamma'), (2**21 + 9, 2**21 + 3, 'omega')],
    (200_000, 174_763, 'gamma'),
  ),
)
def test_gaps_of_more_than_32_bits(n, gap, kind):
  levels = np.zeros(n, np.int32)
  levels[[3, 3 + gap, n - 1]] = 5, -7, 1
  words, used = _encode_sparse(jnp.asarray(levels), 9, max_level=7, kind=kind)
  expected = bit_strings.sparse(levels.tolist(), kind)
  assert len(bit_strings.CODES[kind](gap)) > 32
  assert int(used) == 1 + -(-len(expected) // 32)
  assert _code_words(words, 1, expected)
  got = _decode_sparse(words, n, max_level=7, kind=kind)
  np.testing.assert_array_equal(got, levels)


@pytest.mark.parametrize(
  'kind, bits', marks.few([('omega', 2.94), ('unary', 2.43)], ('unary', 2.43))
)
def test_bits_of_the_dense_code_on_gaussians(kind, bits):
  """In omega above the paper's 2.8, in unary below; lengths add 0.05."""
  n = 100_000
  s = math.isqrt(n)
  levels = _quantised_gaussian(n, s)
  words, used = _encode_dense(
    jnp.asarray(levels), n // 8, max_level=s, kind=kind
  )
  front = streams.length_words(n, 1 + len(bit_strings.CODES[kind](s + 1)))
  assert 32 * front / n <= 0.051
  assert 32 * (int(used) - front) / n == pytest.approx(bits, abs=0.02)
  got = _decode_dense(words, n, max_level=s, kind=kind)
  np.testing.assert_array_equal(got, levels)


def test_dense_code_on_constant_magnitudes():
  """4.00 bits where all levels are 1."""
  ones = jnp.ones(64, jnp.int32)
  _, used = _encode_dense(ones, 9, max_level=1)
  assert int(used) == 64 * 4 // 32


def test_dense_least_is_what_zeros_take():
  for n in (1, 300, 1000):
    _, used = _encode_dense(jnp.zeros(n, jnp.int32), n, max_level=9)
    assert int(used) == qsgd_codes.dense_least(n, 9, 'omega')


@pytest.mark.parametrize('s', marks.few([1, 4, 16], 4))
def test_sparse_code_is_below_the_bound_of_theorem_3_2(s):
  n = 10_000
  nonzeros = s * (s + math.sqrt(n))
  bound = (3 + 1.5 * math.log2(2 * (s * s + n) / nonzeros)) * nonzeros
  levels = jnp.asarray(_quantised_gaussian(n, s))
  _, used = _encode_sparse(levels, n, max_level=s)
  assert 32 * int(used) <= 0.92 * bound


@pytest.mark.slow
def test_too_small_a_capacity_is_reported_and_harmless():
  levels = jnp.asarray(_levels(0, 300, 7, 1.0))
  for capacity in (5, 1, 0):
    words, used = _encode_dense(levels, capacity, max_level=7, block=64)
    assert words.shape == (capacity,) and int(used) > capacity
    got = _decode_dense(words, 300, max_level=7, block=64)
    assert got.shape == (300,)
    words, used = _encode_sparse(levels, capacity, max_level=7, block=64)
    assert words.shape == (capacity,) and int(used) > capacity
    got = _decode_sparse(words, 300, max_level=7, block=64)
    assert got.shape == (300,)


@pytest.mark.parametrize('capacity', marks.few(range(5), 2))
def test_complete_always_means_complete(capacity):
  """At the fewest bits a nonzero, where the limit on nonzeros is tightest."""
  for nonzeros in (0, 10, 11, 21, 22, 32, 33, 60):
    levels = np.zeros(100, np.int32)
    levels[:nonzeros] = -1
    words, used = _encode_sparse(jnp.asarray(levels), capacity, max_level=1)
    complete = int(used) <= capacity
    assert complete == (1 + -(-3 * nonzeros // 32) <= capacity)
    if complete:
      got = _decode_sparse(words, 100, max_level=1)
      np.testing.assert_array_equal(got, levels)


def test_any_words_decode_to_something():
  noise = np.random.default_rng(0).integers(0, 2**32, 50, np.uint32)
  for first in (0, 3, 2**32 - 1):
    noise[0] = first
    words = jnp.asarray(noise)
    assert _decode_sparse(words, 300, max_level=7).shape == (300,)
    assert _decode_dense(words, 300, max_level=7).shape == (300,)


def test_no_elements():
  none = jnp.zeros(0, jnp.int32)
  for encode, decode, least in (
    (_encode_dense, _decode_dense, 0),
    (_encode_sparse, _decode_sparse, 1),
  ):
    words, used = encode(none, 1, max_level=1)
    assert int(used) == least
    assert decode(words, 0, max_level=1).shape == (0,)


def test_errors():
  levels = jnp.zeros(40, jnp.int32)
  with pytest.raises(ValueError, match='max_level must be >= 1, got 0'):
    qsgd_codes.encode_dense(levels, 5, max_level=0)
  with pytest.raises(ValueError, match='got 65535 with 33 bits in gamma'):
    qsgd_codes.encode_dense(levels, 5, max_level=65_535, kind='gamma')
  with pytest.raises(ValueError, match='kind must be one of'):
    qsgd_codes.encode_dense(levels, 5, max_level=1, kind='rice')
  with pytest.raises(ValueError, match='capacity_words must be >= 0, got -1'):
    qsgd_codes.encode_sparse(levels, -1, max_level=1)


@pytest.mark.parametrize('kind', marks.few(['omega', 'unary'], 'omega'))
@pytest.mark.parametrize('density', marks.few([0.0, 0.01, 0.9], 0.01))
def test_a_stream_is_as_long_as_it_was_said_before_it_was_written(
  kind, density
):
  rng = np.random.default_rng(5)
  drawn = rng.integers(-9, 10, 1000) * (rng.random(1000) < density)
  levels = jnp.asarray(drawn, jnp.int32)

  @jax.jit
  def said_and_used(levels):
    return [
      (words(levels, 9, kind), encode(levels, 2000, max_level=9, kind=kind)[1])
      for words, encode in (
        (qsgd_codes.dense_words, qsgd_codes.encode_dense),
        (qsgd_codes.sparse_words, qsgd_codes.encode_sparse),
      )
    ]

  for said, used in said_and_used(levels):
    assert said == used
