"""A reduction in rows is the reduction, wherever the exception is."""

from gradsparse import folding
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay


@pytest.mark.parametrize('shape', [(), (0,), (7,), (300, 401), (1 << 18,)])
def test_one_exception_anywhere_is_seen(shape):
  same = jax.jit(
    lambda *leaves: folding.all_true(lambda x, y: x == y, leaves),
    compiler_options=replay.QUICKLY,
  )
  x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
  others = [(np.ones(size), np.ones(size)) for size in (3, 40_000)]
  assert same((x, x), *others)
  size = x.size
  for place in {0, 1, size // 3, size // 2, size - 2, size - 1} & {
    *range(size)
  }:
    spoiled = x.copy().reshape(-1)
    spoiled[place] = np.nan
    assert not same(others[0], (spoiled.reshape(shape), x), others[1]), place


def test_of_nothing_all_holds():
  assert folding.all_true(np.isfinite, [])


@pytest.mark.parametrize('shape', [(64, 5), (33, 5), (3, 4, 96)])
@pytest.mark.parametrize('axis', [0, 1])
def test_along_an_axis(shape, axis):
  x = np.random.default_rng(2).integers(-9, 9, shape).astype(np.int32)
  numbers, mask = jnp.asarray(x), jnp.asarray(x > 0)
  np.testing.assert_array_equal(
    folding.largest(numbers, axis), x.max(axis=axis)
  )
  np.testing.assert_array_equal(
    folding.largest(numbers, x.ndim - 1), x.max(axis=-1)
  )
  counted = folding.counts(mask, axis)
  assert counted.dtype == jnp.int32
  np.testing.assert_array_equal(counted, (x > 0).sum(axis=axis))
