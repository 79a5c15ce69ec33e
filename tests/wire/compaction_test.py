"""Codes of marked elements against numpy's boolean indexing."""

from __future__ import annotations

from gradsparse.wire import bitmap
from gradsparse.wire import compaction
from gradsparse.wire import fixed_width
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

_compress = jax.jit(compaction.compress, static_argnums=(2, 3))
_expand = jax.jit(compaction.expand, static_argnums=(2, 3))
_only = jax.jit(compaction.only, static_argnums=2)
_pack = jax.jit(fixed_width.pack, static_argnums=1)


@pytest.mark.slow
@settings(max_examples=12)
@given(
  st.sampled_from([1, 2, 4, 8, 16, 32]),
  st.sampled_from([1, 33, 1000]),
  st.sampled_from([0.0, 0.1, 0.5, 1.0]),
  st.integers(0, 2**32 - 1),
)
def test_the_marked_codes_are_packed_and_come_back(width, size, share, seed):
  rng = np.random.default_rng(seed)
  codes = rng.integers(0, 2**width, size, dtype=np.uint64).astype(np.uint32)
  mask = rng.random(size) < share
  slots = -(-3 * size // 4) if share < 1 else size
  mask &= np.cumsum(mask) <= slots
  packed, marks = _pack(codes, width), bitmap.pack(jnp.asarray(mask))
  words = _compress(packed, marks, slots, width)
  expected = np.zeros(slots, np.uint32)
  expected[: mask.sum()] = codes[mask]
  np.testing.assert_array_equal(words, _pack(expected, width))
  alone = _pack(np.where(mask, codes, 0), width)
  np.testing.assert_array_equal(_only(packed, marks, width), alone)
  np.testing.assert_array_equal(_expand(words, marks, size, width), alone)


@pytest.mark.parametrize('width', [1, 4])
def test_more_marks_than_room_lose_the_last_codes_only(width):
  rng = np.random.default_rng(width)
  size, slots = 400, 64
  codes = rng.integers(0, 2**width, size).astype(np.uint32)
  mask = rng.random(size) < 0.5
  marks = bitmap.pack(jnp.asarray(mask))
  words = _compress(_pack(codes, width), marks, slots, width)
  np.testing.assert_array_equal(words, _pack(codes[mask][:slots], width))
  back = fixed_width.unpack(_expand(words, marks, size, width), size, width)
  np.testing.assert_array_equal(back[mask][:slots], codes[mask][:slots])
  assert not np.any(back[~mask])


def test_nothing_is_packed_into_no_room():
  marks = jnp.full(2, 2**32 - 1, jnp.uint32)
  codes = _pack(np.ones(64), 1)
  none = _compress(codes, marks, 0, 1)
  assert none.shape == (0,)
  assert not np.any(_expand(none, marks, 64, 1))


@pytest.mark.parametrize('width', [3, 5, 24])
def test_a_width_that_does_not_divide_a_word_is_an_error(width):
  words = jnp.zeros(width, jnp.uint32)
  with pytest.raises(ValueError, match=f'width must divide 32, got {width}'):
    compaction.compress(words, jnp.zeros(1, jnp.uint32), 32, width)
