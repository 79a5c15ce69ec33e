"""Fixed-width packing against a bit string in a Python integer."""

from __future__ import annotations

from gradsparse.wire import fixed_width
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

_pack = jax.jit(fixed_width.pack, static_argnums=1)
_unpack = jax.jit(fixed_width.unpack, static_argnums=(1, 2))


def _oracle(codes: list[int], width: int) -> list[int]:
  message = sum(code << (i * width) for i, code in enumerate(codes))
  words = -(-len(codes) * width // 32)
  return [(message >> (32 * j)) & 0xFFFFFFFF for j in range(words)]


@pytest.mark.parametrize('width', marks.few(range(1, 33), 1, 2, 5, 8, 17, 32))
def test_every_width_matches_the_bit_string(width):
  rng = np.random.default_rng(width)
  codes = rng.integers(0, 2**width, 77, dtype=np.uint64).astype(np.uint32)
  codes[-1] = 2**width - 1  # the top bit of the last code
  words = _pack(jnp.asarray(codes), width)
  assert words.dtype == jnp.uint32
  assert words.tolist() == _oracle(codes.tolist(), width)
  assert len(words) == fixed_width.words(77, width)
  np.testing.assert_array_equal(_unpack(words, 77, width), codes)


@settings(max_examples=20, deadline=None)
@given(
  st.sampled_from([0, 1, 31, 32, 33, 96]),
  st.sampled_from([1, 3, 4, 13, 31, 32]),
  st.data(),
)
def test_round_trip_at_every_remainder(count, width, data):
  code = st.integers(0, 2**width - 1)
  codes = data.draw(st.lists(code, min_size=count, max_size=count))
  words = _pack(jnp.asarray(codes, jnp.uint32), width)
  assert words.tolist() == _oracle(codes, width)
  assert _unpack(words, count, width).tolist() == codes


@pytest.mark.parametrize('width', [3, 4])
def test_high_bits_do_not_reach_the_neighbours(width):
  codes = jnp.full(40, 0xFFFFFFFF, jnp.uint32).at[1::2].set(0)
  got = _unpack(_pack(codes, width), 40, width)
  assert got.tolist() == [2**width - 1, 0] * 20


def test_other_integers_are_cast():
  codes = jnp.array([True, False, True])
  assert _pack(codes, 1).tolist() == [0b101]
  assert _pack(jnp.array([1, 2, 3], jnp.int32), 2).tolist() == [0b111001]


def test_sizes():
  assert fixed_width.words(0, 7) == 0
  assert fixed_width.words(1, 1) == 1
  assert fixed_width.words(32, 7) == 7
  assert fixed_width.words(33, 7) == 8


@pytest.mark.parametrize('width', [0, 33, 40])
def test_a_width_out_of_range_is_named(width):
  message = rf'width must be in \[1, 32\], got {width}'
  with pytest.raises(ValueError, match=message):
    fixed_width.words(5, width)
  with pytest.raises(ValueError, match=message):
    fixed_width.pack(jnp.zeros(5, jnp.uint32), width)
  with pytest.raises(ValueError, match=message):
    fixed_width.unpack(jnp.zeros(5, jnp.uint32), 5, width)


def test_the_wrong_number_of_words_is_an_error():
  with pytest.raises(ValueError, match=r'shape \(3,\) for 10 codes of 8 bits'):
    fixed_width.unpack(jnp.zeros(4, jnp.uint32), 10, 8)
  with pytest.raises(ValueError, match='count must be >= 0'):
    fixed_width.words(-1, 8)
