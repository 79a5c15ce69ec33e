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
from tests.wire import bit_strings

_STATIC = ('max_level', 'kind', 'block', 'max_nonzeros')
_encode_dense = jax.jit(
  qsgd_codes.encode_dense, static_argnums=1, static_argnames=_STATIC[:3]
)
_decode_dense = jax.jit(
  qsgd_codes.decode_dense, static_argnums=1, static_argnames=_STATIC[1:3]
)
_encode_sparse = jax.jit(
  qsgd_codes.encode_sparse, static_argnums=1, static_argnames=_STATIC
)
_decode_sparse = jax.jit(
  qsgd_codes.decode_sparse, static_argnums=1, static_argnames=_STATIC[1:]
)
_dense_bits = jax.jit(qsgd_codes.dense_bits, static_argnums=1)
_sparse_bits = jax.jit(qsgd_codes.sparse_bits, static_argnums=1)


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


@settings(max_examples=20, deadline=None)
@given(
  st.sampled_from(_DENSE),
  st.sampled_from([0.0, 0.1, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_dense_round_trip_and_stream(case, density, seed):
  n, block, max_level, kind = case
  levels = _levels(seed, n, max_level, density)
  capacity = qsgd_codes.dense_words(n, max_level, kind)
  payload = _encode_dense(
    jnp.asarray(levels), capacity, max_level=max_level, kind=kind, block=block
  )
  expected = bit_strings.dense(levels.tolist(), kind)
  assert int(payload.total_bits) == len(expected) <= 32 * capacity
  assert int(_dense_bits(jnp.asarray(levels), kind)) == len(expected)
  assert payload.words.tolist() == bit_strings.to_words(expected, capacity)
  got = _decode_dense(payload, n, kind=kind, block=block)
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, levels)


@settings(max_examples=20, deadline=None)
@given(
  st.sampled_from(_SPARSE),
  st.sampled_from([0.0, 0.03, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_sparse_round_trip_and_stream(case, density, seed):
  n, block, max_level, kind = case
  levels = _levels(seed, n, max_level, density)
  capacity = 2 * n  # never too little here
  payload = _encode_sparse(
    jnp.asarray(levels), capacity, max_level=max_level, kind=kind, block=block
  )
  expected = bit_strings.sparse(levels.tolist(), kind)
  assert int(payload.total_bits) == len(expected)
  assert int(_sparse_bits(jnp.asarray(levels), kind)) == len(expected)
  assert int(payload.nonzeros) == np.count_nonzero(levels)
  assert payload.words.tolist() == bit_strings.to_words(expected, capacity)
  got = _decode_sparse(payload, n, kind=kind, block=block)
  assert got.dtype == jnp.int32
  np.testing.assert_array_equal(got, levels)


@pytest.mark.parametrize(
  'n, gap, kind',
  [(200_000, 174_763, 'gamma'), (2**21 + 9, 2**21 + 3, 'omega')],
)
def test_gaps_of_more_than_32_bits(n, gap, kind):
  levels = np.zeros(n, np.int32)
  levels[[3, 3 + gap, n - 1]] = 5, -7, 1
  payload = _encode_sparse(jnp.asarray(levels), 8, max_level=7, kind=kind)
  expected = bit_strings.sparse(levels.tolist(), kind)
  assert len(bit_strings.CODES[kind](gap)) > 32
  assert int(payload.total_bits) == len(expected)
  assert payload.words.tolist() == bit_strings.to_words(expected, 8)
  np.testing.assert_array_equal(_decode_sparse(payload, n, kind=kind), levels)


@pytest.mark.parametrize('max_level, kind', [(1, 'omega'), (7, 'gamma')])
def test_worst_case_capacities(max_level, kind):
  levels = jnp.full(96, -max_level, jnp.int32)
  bits = int(_dense_bits(levels, kind))
  assert bits == 96 * (len(bit_strings.CODES[kind](max_level + 1)) + 1)
  assert qsgd_codes.dense_words(96, max_level, kind) == -(-bits // 32)
  # Three bits a nonzero at least.
  assert qsgd_codes.nonzero_limit(100, 1) == 10
  assert qsgd_codes.nonzero_limit(100, 50) == 100


def test_dense_omega_takes_2_94_bits_on_gaussians():
  n = 100_000
  s = math.isqrt(n)
  levels = _quantised_gaussian(n, s)
  bits = int(_dense_bits(jnp.asarray(levels), 'omega'))
  assert bits / n == pytest.approx(2.94, abs=0.02)
  assert 32 * streams.offset_words(n) / n <= 0.07
  capacity = -(-bits // 32)
  payload = _encode_dense(jnp.asarray(levels), capacity, max_level=s)
  assert int(payload.total_bits) == bits
  np.testing.assert_array_equal(_decode_dense(payload, n), levels)


def test_dense_code_on_constant_magnitudes_and_in_unary():
  """4.00 bits where all levels are 1, and 2.43 in unary on Gaussians."""
  assert int(_dense_bits(jnp.ones(100, jnp.int32), 'omega')) == 400
  n = 100_000
  levels = jnp.asarray(_quantised_gaussian(n, math.isqrt(n)))
  assert int(_dense_bits(levels, 'unary')) / n == pytest.approx(2.43, abs=0.02)


@pytest.mark.parametrize('s', [1, 4, 16])
def test_sparse_code_is_below_the_bound_of_theorem_3_2(s):
  n = 10_000
  nonzeros = s * (s + math.sqrt(n))
  bound = (3 + 1.5 * math.log2(2 * (s * s + n) / nonzeros)) * nonzeros
  bits = int(_sparse_bits(jnp.asarray(_quantised_gaussian(n, s)), 'omega'))
  assert bits <= 0.9 * bound


def test_too_small_a_capacity_is_reported_and_harmless():
  levels = jnp.asarray(_levels(0, 300, 7, 1.0))
  dense = _encode_dense(levels, 5, max_level=7, block=64)
  assert int(dense.total_bits) == int(_dense_bits(levels, 'omega')) > 160
  assert dense.words.shape == (5,)
  assert _decode_dense(dense, 300, block=64).shape == (300,)
  sparse = _encode_sparse(levels, 5, max_level=7, block=64)
  assert int(sparse.total_bits) > 160
  assert _decode_sparse(sparse, 300, block=64).shape == (300,)
  # Nothing at all to write to.
  dense = _encode_dense(levels, 0, max_level=7)
  assert dense.words.shape == (0,)
  assert _decode_dense(dense, 300).shape == (300,)
  sparse = _encode_sparse(levels, 0, max_level=7)
  assert sparse.words.shape == (0,)
  assert _decode_sparse(sparse, 300).shape == (300,)


@pytest.mark.parametrize('nonzeros', [9, 10, 11])
def test_max_nonzeros_flags_what_is_more(nonzeros):
  levels = np.zeros(300, np.int32)
  levels[: 2 * nonzeros : 2] = 3
  payload = _encode_sparse(
    jnp.asarray(levels), 50, max_level=3, max_nonzeros=10
  )
  assert int(payload.nonzeros) == nonzeros
  complete = int(payload.total_bits) <= 32 * 50
  assert complete == (nonzeros <= 10)
  got = _decode_sparse(payload, 300, max_nonzeros=10)
  if complete:
    np.testing.assert_array_equal(got, levels)


@pytest.mark.parametrize('capacity', range(4))
def test_complete_always_means_complete(capacity):
  """At the fewest bits a nonzero, where the limit on nonzeros is tightest."""
  for nonzeros in (0, 10, 11, 21, 22, 32, 33, 60):
    levels = np.zeros(100, np.int32)
    levels[:nonzeros] = -1
    payload = _encode_sparse(jnp.asarray(levels), capacity, max_level=1)
    complete = int(payload.total_bits) <= 32 * capacity
    assert complete == (3 * nonzeros <= 32 * capacity)
    if complete:
      np.testing.assert_array_equal(_decode_sparse(payload, 100), levels)


def test_no_elements():
  none = jnp.zeros(0, jnp.int32)
  dense = _encode_dense(none, 0, max_level=1)
  sparse = _encode_sparse(none, 0, max_level=1)
  assert _decode_dense(dense, 0).shape == (0,)
  assert _decode_sparse(sparse, 0).shape == (0,)
  assert int(_dense_bits(none, 'omega')) == 0
  assert int(_sparse_bits(none, 'omega')) == 0
  assert qsgd_codes.dense_words(0, 1) == 0


def test_errors():
  levels = jnp.zeros(40, jnp.int32)
  with pytest.raises(ValueError, match='max_level must be >= 1, got 0'):
    qsgd_codes.encode_dense(levels, 5, max_level=0)
  with pytest.raises(ValueError, match='at most 31 bits, got 31 with 32 bits'):
    qsgd_codes.encode_dense(levels, 5, max_level=31, kind='unary')
  with pytest.raises(ValueError, match='kind must be one of'):
    qsgd_codes.encode_dense(levels, 5, max_level=1, kind='rice')
  with pytest.raises(ValueError, match='gaps must be at most 32 in unary'):
    qsgd_codes.encode_sparse(levels, 5, max_level=1, kind='unary')
  with pytest.raises(ValueError, match='max_nonzeros must be >= 0, got -1'):
    qsgd_codes.encode_sparse(levels, 5, max_level=1, max_nonzeros=-1)
