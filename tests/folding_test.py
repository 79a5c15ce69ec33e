"""A reduction in rows is the reduction, wherever the exception is."""

from gradsparse import folding
import jax
import numpy as np
import pytest


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
