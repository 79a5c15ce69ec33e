"""Folding is reducing, whatever the size and wherever the exception is."""

from gradsparse import folding
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@given(st.integers(0, 200), st.integers(1, 40))
def test_each_element_is_folded_where_it_says(size, ways):
  x = np.random.default_rng(size).normal(size=size).astype(np.float32)
  folded, rest = folding.fold(jnp.maximum, jnp.asarray(x), ways)
  length = size // ways
  blocks = x[: ways * length].reshape(ways, length)
  if length:
    np.testing.assert_array_equal(folded, blocks.max(axis=0))
  np.testing.assert_array_equal(rest, x[ways * length :])


@pytest.mark.parametrize('shape', [(), (0,), (7,), (300, 401), (1 << 18,)])
def test_one_exception_anywhere_is_seen(shape):
  all_true = jax.jit(folding.all_true)
  mask = np.ones(shape, bool)
  assert all_true(mask)
  size = mask.size
  for place in {0, 1, size // 3, size // 2, size - 2, size - 1} & {
    *range(size)
  }:
    spoiled = mask.copy().reshape(-1)
    spoiled[place] = False
    assert not all_true(spoiled.reshape(shape)), place
