"""Sparse vectors over joined leaves, and the other values that travel."""

import chex
from gradsparse.backend import platforms
from gradsparse.sockets import Leaves
from gradsparse.sockets import Parts
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

SHAPES = ((2, 3), (), (4,), (1, 1, 5))
SIZES = (6, 1, 4, 5)
TOTAL = 16


def sparse_of(indices, limits=SIZES, slots=None):
  indices = np.asarray(sorted(indices), np.int32)
  padded = np.full(slots or len(indices), TOTAL, np.int32)
  padded[: len(indices)] = indices
  values = np.where(padded < TOTAL, padded + 1.5, 0).astype(np.float32)
  return Sparse(jnp.asarray(values), jnp.asarray(padded), Space(SHAPES, limits))


def test_leaves_are_numbered_through():
  space = Space(SHAPES, SIZES)
  assert space.sizes == SIZES
  assert space.offsets == (0, 6, 7, 11, 16)
  assert space.size == TOTAL
  indices = jnp.array([0, 5, 6, 7, 10, 11, 15, 16])
  np.testing.assert_array_equal(
    space.leaf_of(indices), [0, 0, 1, 2, 2, 3, 3, 3]
  )


def dense_of(indices):
  """What the entries stand for, leaf by leaf, by NumPy."""
  flat = np.zeros(TOTAL, np.float32)
  indices = sorted(indices)
  flat[indices] = np.asarray(indices, np.float32) + 1.5
  parts = np.split(flat, [6, 7, 11])
  return [x.reshape(shape) for x, shape in zip(parts, SHAPES, strict=True)]


@jax.jit
def leaves_of(sparse):
  return sparse.space.split(sparse.add_to(sparse.zeros()))


@given(st.sets(st.integers(0, TOTAL - 1)))
def test_entries_stand_for_leaves(indices):
  whole = leaves_of(sparse_of(indices, slots=TOTAL))
  for found, expected in zip(whole, dense_of(indices), strict=True):
    np.testing.assert_array_equal(found, expected)


def test_sparse_vectors_are_sorted_whatever_is_done_to_them():
  """Ascending, empty slots last and zero: `of` and `keep` both promise it."""
  values = jnp.array([10.5, 0.0, 2.5, 16.5, 7.5])
  indices = jnp.array([9, TOTAL, 1, 15, 6])
  sparse = Sparse.of(values, indices, Space(SHAPES, SIZES))
  assert sparse.indices.tolist() == [1, 6, 9, 15, TOTAL]
  assert sparse.values.tolist() == [2.5, 7.5, 10.5, 16.5, 0]
  kept = sparse.keep(jnp.array([True, False, True, False, True]))
  assert kept.indices.tolist() == [1, 9, TOTAL, TOTAL, TOTAL]
  assert kept.values.tolist() == [2.5, 10.5, 0, 0, 0]
  assert kept.valid.tolist() == [True, True, False, False, False]


@given(st.sets(st.integers(0, TOTAL - 1)), st.integers(0, 2**TOTAL - 1))
def test_keep_drops_what_it_is_told_to(indices, bits):
  mask = np.array([bits >> i & 1 for i in range(TOTAL)], bool)
  kept = keep(sparse_of(indices, slots=TOTAL), mask)
  wanted = [i for i, m in zip(sorted(indices), mask, strict=False) if m]
  expected = sparse_of(wanted, slots=TOTAL)
  np.testing.assert_array_equal(kept.indices, expected.indices)
  np.testing.assert_array_equal(kept.values, expected.values)


@jax.jit
def keep(sparse, mask):
  return sparse.keep(mask)


def split(total):
  """The leaves of a total: a list of them, or all in one array."""
  if isinstance(total, list):
    return total
  return Space.whole(SHAPES).split(total.reshape(-1))


@pytest.mark.parametrize(
  'platform, workers, kind',
  [
    ('cpu', 255, np.uint8),
    ('cpu', 256, np.float32),
    ('gpu', 255, np.float32),
  ],
)
def test_senders_are_counted_in_a_type_that_holds_them(
  platform, workers, kind, monkeypatch
):
  monkeypatch.setattr(platforms, 'name', lambda: platform)
  space = Space.whole([(3,)])
  own = Sparse(jnp.ones(2), jnp.int32([1, 3]), space).senders(workers)
  assert own.values.dtype == kind
  total, _ = jax.lax.scan(
    lambda total, _: (own.add_to(total), None), own.zeros(), length=workers
  )
  np.testing.assert_array_equal(total, [0, workers, 0])


def test_every_value_adds_up_alike():
  """`Sparse`, `Leaves` and `Parts` answer the same questions."""
  sparse = sparse_of([0, 5, 6, 9, 15])
  leaves = Leaves(dense_of([0, 5, 6, 9, 15]))
  parts = Parts.cut(Leaves([jnp.asarray(x) for x in leaves.arrays]), 3, 2)
  assert parts.rows.shape == (3, 6)  # the fewest pairs for 16 elements
  assert parts.valid.sum() == TOTAL and not parts.valid[2, 4:].any()
  for value in (sparse, leaves, parts):
    assert value.count() == (5 if value is sparse else TOTAL)
    once = value.add_to(value.zeros())
    there = value.only_if(jnp.bool_(True))
    chex.assert_trees_all_equal(there.add_to(value.zeros()), once)
    nothing = value.only_if(jnp.bool_(False))
    assert not any(map(np.any, split(nothing.add_to(value.zeros()))))
    dense = [
      d.dense(shape)
      for d, shape in zip(value.deliveries(), SHAPES, strict=True)
    ]
    for twice, own, delivered, expected in zip(
      split(value.add_to(once)), split(once), dense, leaves.arrays, strict=True
    ):
      np.testing.assert_array_equal(twice, 2 * expected)
      np.testing.assert_array_equal(own, expected)
      np.testing.assert_array_equal(delivered, expected)
