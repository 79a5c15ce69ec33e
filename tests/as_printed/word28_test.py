"""Words of a 28-bit index and a 4-bit code."""

from __future__ import annotations

from gradsparse.as_printed import word28
import jax.numpy as jnp
import numpy as np
import pytest


def test_round_trip_up_to_the_largest_index():
  rng = np.random.default_rng(0)
  indices = rng.integers(0, 2**28, (3, 50)).astype(np.int32)
  indices[0, :2] = 0, 2**28 - 1
  codes = rng.integers(0, 16, (3, 50)).astype(np.uint32)
  words = word28.pack(jnp.asarray(indices), jnp.asarray(codes))
  assert words.dtype == jnp.uint32
  np.testing.assert_array_equal(words, indices.astype(np.uint32) * 16 + codes)
  got_indices, got_codes = word28.unpack(words)
  assert got_indices.dtype == jnp.int32 and got_codes.dtype == jnp.uint32
  np.testing.assert_array_equal(got_indices, indices)
  np.testing.assert_array_equal(got_codes, codes)


def test_a_code_does_not_reach_the_index():
  word = word28.pack(jnp.array([3]), jnp.array([0xFF], jnp.uint32))
  assert word.tolist() == [3 * 16 + 15]


def test_the_empty_marker_must_fit_as_well():
  word28.check_size(0)
  word28.check_size(2**28 - 1)
  for size in (2**28, -1):
    with pytest.raises(ValueError, match=rf'2\*\*28\), got {size}'):
      word28.check_size(size)
