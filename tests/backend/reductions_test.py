"""A reduction in rows is the reduction, wherever the exception is."""

from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay


@pytest.mark.parametrize('shape', [(), (0,), (7,), (300, 401), (1 << 18,)])
def test_one_exception_anywhere_is_seen(shape):
  same = jax.jit(
    lambda *leaves: reductions.all_true(lambda x, y: x == y, leaves),
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
  assert reductions.all_true(np.isfinite, [])


@pytest.mark.parametrize(
  'masks',
  [
    [],
    [np.zeros(0, bool)],
    [np.ones((3, 5), bool)],
    [np.arange(40_000) % 3 == 0, np.arange(70) % 2 == 0, np.ones((), bool)],
  ],
)
def test_counts_of_masks(masks):
  found = jax.jit(reductions.count, compiler_options=replay.QUICKLY)(masks)
  assert found == sum(int(mask.sum()) for mask in masks)


def test_the_largest_of_each_row():
  rows = np.random.default_rng(0).integers(
    -(2**31), 2**31, (3, 5, reductions.ROW)
  )
  found = jax.jit(reductions.row_max)(rows.astype(np.int32))
  np.testing.assert_array_equal(found, rows.max(axis=-1))


@pytest.mark.parametrize('dtype', [np.float32, np.int32])
@pytest.mark.parametrize('size', [0, 1, 33, 1025, 40_001])
def test_the_largest_number_wherever_it_is(size, dtype):
  top = jax.jit(reductions.top, compiler_options=replay.QUICKLY)
  x = (np.arange(size) % 7 - 8).astype(dtype)
  assert top(x) == 0  # all are negative
  for place in {0, size // 2, size - 1} & {*range(size)}:
    raised = x.copy()
    raised[place] = 5
    assert top(raised) == 5
    assert top(raised).dtype == dtype


@pytest.mark.parametrize('odd', [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_no_largest(odd):
  x = np.ones(2000, np.float32)
  x[1234] = odd
  assert reductions.top(x) == 0


@pytest.mark.parametrize(
  'shape',
  marks.few(
    [[64, 5], [33, 5], [3, 4, 96], [3, 2, 50], [2, 500], [2, 7], [1, 37]],
    [33, 5],
    [2, 500],
  ),
)
@pytest.mark.parametrize('axis', [0, 1])
def test_along_an_axis(shape, axis):
  x = np.random.default_rng(2).integers(-9, 9, shape).astype(np.int32)
  mask = jnp.asarray(x > 0)
  for along in (axis, x.ndim - 1):
    np.testing.assert_array_equal(
      reductions.sum_along(jnp.float32(x), along), x.sum(axis=along)
    )
  counted = reductions.count_along([mask, ~mask], axis)
  assert all(count.dtype == jnp.int32 for count in counted)
  np.testing.assert_array_equal(counted[0], (x > 0).sum(axis=axis))
  np.testing.assert_array_equal(counted[1], (x <= 0).sum(axis=axis))


@pytest.mark.parametrize('platform', ['cpu', 'tpu'])
@pytest.mark.parametrize('shape', [[3, 4, 96], [33, 5, 50], [7, 1, 1], [64, 5]])
def test_the_largest_magnitude_along_an_axis(shape, platform, monkeypatch):
  monkeypatch.setattr(platforms, 'name', lambda: platform)
  x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
  for axis in range(x.ndim):
    np.testing.assert_array_equal(
      reductions.largest_along(jnp.asarray(x), axis), np.abs(x).max(axis)
    )


@pytest.mark.parametrize('size', [0, 1, 1000, 1024, 5000])
@pytest.mark.parametrize('compiled', [False, True])
def test_the_total_is_the_sum(size, compiled):
  x = np.random.default_rng(size).normal(size=(3, size)).astype(np.float32)
  total = jax.vmap(reductions.total)
  found = (jax.jit(total) if compiled else total)(x)
  np.testing.assert_allclose(
    found, np.sum(x, axis=1, dtype=np.float64), atol=1e-4
  )


def test_the_total_of_what_is_not_finite_is_not_either():
  x = np.ones(3000, np.float32)
  for place in (5, 2999):  # in the blocks, and behind them
    for odd in (np.nan, np.inf):
      spoilt = x.copy()
      spoilt[place] = odd
      assert not np.isfinite(reductions.total(jnp.asarray(spoilt)))


def test_no_rows_have_no_largest():
  none = reductions.largest_along(jnp.zeros((0, 50)), 1)
  assert none.shape == (0,)


@pytest.mark.parametrize(
  'sizes', [(1, 3, 40_000), (1, 500, 20_000), (500, 20_000, 9), (7,) * 12, (5,)]
)
def test_vectors_one_after_the_other(sizes):
  rng = np.random.default_rng(3)
  vectors = [rng.integers(0, 2**32, n, np.uint32) for n in sizes]
  for join in (joining.concat_few, joining.concat_shared):
    np.testing.assert_array_equal(
      jax.jit(join)(vectors), np.concatenate(vectors)
    )
