"""Elias-Fano: exact round trips, exact sizes, the promised bits an index."""

from __future__ import annotations

import math

from gradsparse.wire import elias_fano
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

_encode = jax.jit(elias_fano.encode, static_argnums=1)
_decode = jax.jit(elias_fano.decode, static_argnums=(1, 2))

# count == 0, one index, more indices than values, all values, few of many.
SHAPES = [
  (0, 10),
  (1, 0),
  (1, 1),
  (1, 2**31 - 1),
  (9, 3),
  (64, 64),
  (40, 1000),
  (33, 2**31 - 1),
]


def _check_round_trip(indices, size):
  words = _encode(jnp.asarray(indices, jnp.int32), size)
  assert words.shape == (elias_fano.words(len(indices), size),)
  assert words.dtype == jnp.uint32
  got = _decode(words, len(indices), size)
  assert got.dtype == jnp.int32
  assert got.tolist() == list(indices)


@given(st.sampled_from(SHAPES), st.data())
def test_round_trip(shape, data):
  count, size = shape
  # Values at the upper end are as likely as all the others: repeated empties.
  index = st.one_of(st.integers(0, size), st.integers(max(0, size - 1), size))
  indices = data.draw(st.lists(index, min_size=count, max_size=count))
  _check_round_trip(sorted(indices), size)


@pytest.mark.parametrize(
  'count, size', marks.few(SHAPES, (0, 10), (9, 3), (33, 2**31 - 1))
)
def test_all_empty_all_zero_and_all_distinct(count, size):
  _check_round_trip([size] * count, size)
  _check_round_trip([0] * count, size)
  _check_round_trip(sorted(range(min(count, size + 1))), size)


@given(st.sampled_from(SHAPES), st.integers(0, 2**32 - 1))
@example((40, 1000), 0)
def test_words_of_no_encoder_stay_in_range(shape, seed):
  count, size = shape
  length = elias_fano.words(count, size)
  noise = np.random.default_rng(seed).integers(0, 2**32, length, np.uint32)
  got = np.asarray(_decode(jnp.asarray(noise), count, size))
  assert ((got >= 0) & (got <= size)).all()


def test_bits_an_index_at_density_one_in_a_thousand():
  count, size = 25_557, 25_600_000
  bits = 32 * elias_fano.words(count, size) / count
  assert f'{bits:.2f}' == '11.96'  # as docs/wire_formats.md says
  assert bits <= 2 + math.log2(size / count)
  rng = np.random.default_rng(0)
  indices = np.sort(rng.choice(size, count, replace=False))
  _check_round_trip(indices.astype(np.int32).tolist(), size)


@pytest.mark.parametrize('count', [1, 10, 1000, 65_536])
@pytest.mark.parametrize('size', [100, 4096, 10**6, 2**31 - 1])
def test_size_is_the_formula_and_the_smallest(count, size):
  def bits_to_words(bits):
    return -(-bits // 32)

  candidates = [
    bits_to_words(count * low) + bits_to_words((size >> low) + count)
    for low in range(32)
  ]
  low = elias_fano.low_bits(count, size)
  words = elias_fano.words(count, size)
  assert words == candidates[low] == min(candidates)
  # Above the entropy bound, by less than two bits an index and two words.
  bound = math.log2(math.comb(size + count, count)) if count <= 1000 else 0
  assert bound <= 32 * words
  if size >= count:
    assert 32 * words <= count * (2 + math.log2(size / count)) + 64


@pytest.mark.parametrize('size', [-1, 2**31])
def test_a_size_out_of_range_is_named(size):
  message = rf'size must be in \[0, 2\*\*31\), got {size}'
  with pytest.raises(ValueError, match=message):
    elias_fano.words(3, size)
  with pytest.raises(ValueError, match=message):
    elias_fano.encode(jnp.zeros(3, jnp.int32), size)


def test_other_errors():
  with pytest.raises(ValueError, match='count must be >= 0, got -1'):
    elias_fano.words(-1, 5)
  with pytest.raises(ValueError, match=r'shape \(2,\) for 3 indices below 100'):
    elias_fano.decode(jnp.zeros(3, jnp.uint32), 3, 100)
