"""Bitmaps against numpy's nonzero."""

from __future__ import annotations

from gradsparse.wire import bitmap
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_pack = jax.jit(bitmap.pack)
_positions = jax.jit(bitmap.positions, static_argnums=1)
_window = jax.jit(bitmap.window, static_argnums=1)


@settings(max_examples=20, deadline=None)
@given(
  st.sampled_from([1, 31, 32, 33, 200]),
  st.sampled_from([0, 1, 17, 250]),
  st.sampled_from([0.0, 0.02, 0.5, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_positions_are_those_of_nonzero(size, count, density, seed):
  mask = np.random.default_rng(seed).random(size) < density
  words = _pack(jnp.asarray(mask))
  fill = 32 * bitmap.words(size)
  expected = np.full(count, fill)
  found = np.nonzero(mask)[0][:count]
  expected[: len(found)] = found
  np.testing.assert_array_equal(_positions(words, count), expected)
  assert int(bitmap.finder(words)[1]) == mask.sum()
  np.testing.assert_array_equal(bitmap.unpack(words, size), mask)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
  st.lists(st.booleans(), min_size=0, max_size=70),
  st.sampled_from([0, 1, 5, 12]),
  st.integers(0, 200),
)
def test_positions_can_begin_anywhere_and_go_in_a_circle(mask, count, first):
  padded = np.zeros(70, bool)
  padded[: len(mask)] = mask
  true = np.flatnonzero(padded)
  found = _positions(_pack(padded), count, np.int32(first))
  start = first % len(true) if len(true) > count else 0
  expected = np.roll(true, -start)[:count]
  np.testing.assert_array_equal(found[: len(expected)], expected)
  np.testing.assert_array_equal(found[len(expected) :], 96)
  window = bitmap.unpack(_window(_pack(padded), count, np.int32(first)), 70)
  np.testing.assert_array_equal(np.flatnonzero(window), np.sort(expected))


def test_every_bit_of_a_word_is_found():
  words = jnp.array([0xFFFFFFFF, 0, 0x80000001], jnp.uint32)
  expected = [*range(32), 64, 95, 96, 96]
  assert _positions(words, 36).tolist() == expected


def test_an_empty_bitmap_has_no_positions():
  assert bitmap.words(0) == 0
  assert _positions(jnp.zeros(0, jnp.uint32), 3).tolist() == [0, 0, 0]
  assert int(bitmap.finder(jnp.zeros(0, jnp.uint32))[1]) == 0


def test_a_bitmap_that_int32_cannot_count_is_an_error():
  words = jax.ShapeDtypeStruct((2**26,), jnp.uint32)
  with pytest.raises(ValueError, match='fewer than 2\\*\\*26 elements'):
    jax.eval_shape(lambda w: bitmap.positions(w, 1), words)


@pytest.mark.parametrize('density', [0.0, 0.02, 0.5, 1.0])
def test_gaps_lead_back_to_the_set_bit_before(density):
  mask = np.random.default_rng(3).random(320) < density
  last, expected = -1, []
  for i, there in enumerate(mask):
    expected.append(i - last)
    last = i if there else last
  gaps = bitmap.gaps(bitmap.pack(jnp.asarray(mask)))
  np.testing.assert_array_equal(gaps, expected)
