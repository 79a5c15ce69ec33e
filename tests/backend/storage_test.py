"""Leaves as TPUs store them: the same elements, selections and sums."""

import math

import chex
from gradsparse import selection
from gradsparse.backend import platforms
from gradsparse.backend import storage
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.sockets import Window
from gradsparse.sockets import sum_by_leaf
from gradsparse.sockets import sums_by_leaf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

# In tiles, of one tile's width, and row-major: a row too short, rows too few.
SHAPES = [(3, 16, 384), (64, 128), (8, 200), (60, 256), (7,)]
TILED = [True, True, False, False, False]


@pytest.fixture
def tpu(monkeypatch):
  """From its call on, the platform is a TPU."""
  return lambda: monkeypatch.setattr(platforms, 'name', lambda: 'tpu')


def test_rows_of_a_leaf_are_where_they_are_stored(tpu):
  tpu()
  assert [storage.is_tiled(shape) for shape in SHAPES] == TILED
  for shape in SHAPES:
    x = jnp.arange(math.prod(shape)).reshape(shape)
    stored = storage.vector(x)
    np.testing.assert_array_equal(storage.leaf(stored, shape), x)
    places = storage.place(x.reshape(-1), storage.blocks(shape))
    np.testing.assert_array_equal(stored[places], x.reshape(-1))
    if not storage.is_tiled(shape):
      continue
    # The first tile has the first 128 columns of the first 8 rows.
    first = np.asarray(x).reshape(-1, shape[-1])[:8, :128]
    np.testing.assert_array_equal(stored.reshape(-1, 8, 128)[0], first)
    # What belongs to other leaves is outside.
    others = np.array([-300, -128, -1, x.size, x.size + 700])
    places = storage.place(others, storage.blocks(shape))
    assert (places < 0).tolist() == (others < 0).tolist()
    assert (places >= x.size).tolist() == (others >= x.size).tolist()


def _drawn(shapes):
  """Leaves of few different numbers, so that many are equal."""
  rng = np.random.default_rng(0)
  return [np.float32(np.round(rng.standard_t(2, x), 1)) for x in shapes]


def _of_each(leaves):
  return selection.top_k_of_each(leaves, [37, 5, 3, 100, 2, 0])


def _of_all(leaves):
  return selection.top_k_of_all(leaves, 90)


@pytest.mark.parametrize('largest', [_of_each, _of_all])
def test_the_same_entries_are_the_largest(largest, tpu):
  leaves = _drawn([*SHAPES, (300,)])
  expected = jax.jit(lambda x: largest(x))(leaves)
  tpu()
  found = jax.jit(lambda x: largest(x))(leaves)  # traced anew
  chex.assert_trees_all_equal(found, expected)


def _delivered(shape):
  size = math.prod(shape)
  indices = jnp.array([-130, -1, 0, 200, size - 200, size, size + 130])
  window = Window(jnp.arange(1.0, 8), indices, size)
  leaf = jnp.arange(size, dtype=jnp.float32).reshape(shape)
  swapped = window.update(lambda x, sent, other: sent - other, leaf, 2 * leaf)
  return window.plus(leaf, -1.0), swapped, window.dense(shape)


def test_deliveries_touch_the_same_elements(tpu):
  expected = [_delivered(shape) for shape in SHAPES[:3]]
  tpu()
  found = [_delivered(shape) for shape in SHAPES[:3]]
  chex.assert_trees_all_equal(found, expected)


def test_the_sum_of_messages_is_that_of_vectors_to_the_bit(tpu):
  rng = np.random.default_rng(1)
  space = Space.whole(SHAPES)
  indices = np.full((3, 900), space.size, np.int32)
  values = np.zeros((3, 900), np.float32)
  for worker in range(3):
    # Each leaf has some, and its first and last element.
    ends = np.cumsum(space.sizes)
    own = np.unique([*(ends - 1), *space.offsets[:-1]])
    own = np.union1d(own, rng.choice(space.size, 800, replace=False))
    indices[worker, : own.size] = own
    values[worker, : own.size] = rng.normal(size=own.size)
  total = jnp.zeros(space.size, jnp.float32)
  for own in zip(values, indices, strict=True):
    total = Sparse(*own, space).add_to(total)
  expected = space.split(total)
  tpu()
  assert sums_by_leaf(900, space)
  assert not sums_by_leaf(900, Space.whole(SHAPES[2:]))
  found = jax.jit(lambda *x: sum_by_leaf(*x, space))(values, indices)
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_array_equal(x, y)
