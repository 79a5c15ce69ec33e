"""Codes of marked elements against numpy's boolean indexing.

Messages hold the codes in the order of words: in `order`, element by element.
"""

from __future__ import annotations

from gradsparse.wire import compaction
from gradsparse.wire import fixed_width
from gradsparse.wire import planar_vector
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_compress = jax.jit(compaction.compress, static_argnums=(2, 3, 4))
_expand = jax.jit(compaction.expand, static_argnums=(2, 3))
_pack = jax.jit(fixed_width.pack, static_argnums=1)


def planes(codes, width):
  """The words that `compress` takes."""
  parts = planar_vector.joined([jnp.asarray(codes)])
  return planar_vector.pack_parts(parts, width, 32)


def order(size, width):
  """The number of the element in each field of these words, word by word."""
  out, begin = [], 0
  for n in (planar_vector.head(size), size - planar_vector.head(size)):
    slab = -(-n // 32)
    bits = np.arange(32).reshape(32 // width, width)
    places = begin + bits.T[:, None] * slab + np.arange(slab)[None, :, None]
    out.append(np.where(places < begin + n, places, size).reshape(-1))
    begin += n
  found = np.concatenate(out)
  return found[found < size]


@pytest.mark.slow
@settings(max_examples=12)
@given(
  st.sampled_from([1, 2, 4, 8, 16, 32]),
  st.sampled_from([1, 33, 1000, 33_000]),
  st.sampled_from([0.0, 0.1, 0.5, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_the_marked_codes_are_packed_and_come_back(width, size, share, seed):
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, 2**width, size, dtype=np.uint64).astype(np.uint32)
  mask = rng.random(size) < share
  slots = -(-3 * size // 4) if share < 1 else size
  mask &= np.cumsum(mask) <= slots
  packed, marks = planes(codes, width), planes(mask, 1)
  words = _compress(packed, marks, size, slots, width)
  by_word = order(size, width)
  expected = np.zeros(slots, np.uint32)
  expected[: mask.sum()] = codes[by_word][mask[by_word]]
  np.testing.assert_array_equal(words, _pack(expected, width))
  alone = planes(np.where(mask, codes, 0), width)
  np.testing.assert_array_equal(_expand(words, marks, size, width), alone)


@pytest.mark.parametrize('width', [1, 4])
def test_more_marks_than_room_lose_the_last_codes_only(width):
  rng = np.random.default_rng(width)
  size, slots = 400, 64
  codes = rng.integers(0, 2**width, size).astype(np.uint32)
  mask = rng.random(size) < 0.5
  marks = planes(mask, 1)
  words = _compress(planes(codes, width), marks, size, slots, width)
  by_word = order(size, width)
  first = by_word[mask[by_word]][:slots]
  np.testing.assert_array_equal(words, _pack(codes[first], width))
  back = _expand(words, marks, size, width)
  back = np.asarray(planar_vector.unpack_tail(back, width))[:size]
  np.testing.assert_array_equal(back[first], codes[first])
  assert not np.any(back[~mask])


def test_nothing_is_packed_into_no_room():
  marks = jnp.full(2, 2**32 - 1, jnp.uint32)
  codes = planes(np.ones(64, np.uint32), 1)
  none = _compress(codes, marks, 64, 0, 1)
  assert none.shape == (0,)
  assert not np.any(_expand(none, marks, 64, 1))


@pytest.mark.parametrize('width', [3, 5, 24])
def test_a_width_that_does_not_divide_a_word_is_an_error(width):
  words = jnp.zeros(width, jnp.uint32)
  with pytest.raises(ValueError, match=f'width must divide 32, got {width}'):
    compaction.compress(words, jnp.zeros(1, jnp.uint32), 32, 32, width)
