"""Codes of sparse vectors: what is rounded once then travels unchanged."""

import functools
import math

from gradsparse import codes
from gradsparse.sockets import Context
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import elias_fano
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay

SHAPES = ((8, 5), (), (300,))
SIZES = (40, 1, 300)
TOTAL = 341
COUNT = 24
SPACE = Space(SHAPES, (COUNT, 1, COUNT))

# Those that take any values.
ANY = (
  ('elias_fano', 'float32'),
  ('elias_fano', 'bfloat16'),
  ('elias_fano', 'exponent4'),
  ('elias_fano', 'qsgd4'),
  ('elias_fano', 'ternary'),
  ('run_length', 'float32'),
  ('word28', 'exponent4'),
)
parametrize = pytest.mark.parametrize(
  'names',
  [
    pytest.param(
      names,
      id='-'.join(names),
      marks=() if names in ANY[:1] + ANY[3:4] else pytest.mark.slow,
    )
    for names in ANY
  ],
)


def context(seed=0, space=SPACE):
  key = jax.random.key(seed)
  return Context(MessageLeaves(space.shapes), 1, jnp.int32(0), key, key)


def size_of(indices, values):
  """Words of a message, from the formats' definitions."""
  tops = 1  # three leaves of 8 bits
  return {
    'elias_fano': elias_fano.words(COUNT, TOTAL),
    'run_length': COUNT // 2,
    'word28': COUNT - COUNT * 4 // 32,
  }[indices] + {
    'float32': COUNT,
    'bfloat16': COUNT // 2,
    'exponent4': tops + COUNT * 4 // 32,
    'qsgd4': len(SIZES) + COUNT * 4 // 32,
    'ternary': len(SIZES) + math.ceil(COUNT / 32),
  }[values]


@functools.cache
def there_and_back(indices, values):
  """(rounded, words, decoded), one compiled program a code."""
  code = codes.sparse(indices, values)

  def fn(selected_values, selected_indices, seed):
    selected = Sparse.of(selected_values, selected_indices, SPACE)
    ctx = context(seed)
    rounded = code.round(selected, ctx)
    words = code.pack(rounded, ctx)
    return rounded, words, code.unpack(words, rounded, ctx)

  args = jnp.zeros(COUNT), jnp.zeros(COUNT, jnp.int32), jnp.int32(0)
  return jax.jit(fn).lower(*args).compile(replay.QUICKLY)


def selection(seed, filled=None):
  """Entries in no order, some of the slots empty."""
  rng = np.random.default_rng(seed)
  filled = rng.integers(0, COUNT + 1) if filled is None else filled
  indices = np.full(COUNT, TOTAL, np.int32)
  indices[:filled] = rng.choice(TOTAL, filled, replace=False)
  values = rng.normal(size=COUNT) * 10.0 ** rng.integers(-3, 4, COUNT)
  values = np.where(indices < TOTAL, values, 0).astype(np.float32)
  order = rng.permutation(COUNT)
  return values[order], indices[order]


@parametrize
@given(seed=st.integers(0, 2**31 - 1))
def test_unpack_returns_what_was_rounded(names, seed):
  values, indices = selection(seed)
  rounded, words, decoded = there_and_back(*names)(
    values, indices, np.int32(seed % 97)
  )
  np.testing.assert_array_equal(decoded.indices, rounded.indices)
  np.testing.assert_array_equal(decoded.values, rounded.values)
  assert words.dtype == np.uint32
  assert words.shape == (size_of(*names),)
  # Sorted, empties last and zero; nothing that was not selected.
  kept = np.asarray(rounded.indices)
  assert np.all(np.diff(kept) >= 0)
  assert np.all(np.diff(kept[kept < TOTAL]) > 0)
  assert np.all(kept <= TOTAL)
  assert not np.any(np.asarray(rounded.values)[kept == TOTAL])
  assert set(kept[kept < TOTAL]) <= set(indices[indices < TOTAL])


@functools.cache
def unpacked(indices, values):
  """words -> entries, one compiled program a code."""
  like = Sparse.of(*selection(0), SPACE)
  code = codes.sparse(indices, values)
  return jax.jit(lambda words: code.unpack(words, like, context()))


@parametrize
@given(seed=st.integers(0, 2**32 - 1))
def test_words_that_nobody_sent_name_no_element_that_is_not_there(names, seed):
  rng = np.random.default_rng(seed)
  noise = rng.integers(0, 2**32, size_of(*names), np.uint32)
  got = unpacked(*names)(noise)
  indices = np.asarray(got.indices)
  assert np.all((0 <= indices) & (indices <= TOTAL))
  assert not np.any(np.asarray(got.values)[indices == TOTAL])


@parametrize
@given(seed=st.integers(0, 2**31 - 1))
def test_exact_codes_lose_nothing(names, seed):
  values, indices = selection(seed)
  rounded, *_ = there_and_back(*names)(values, indices, np.int32(0))
  order = np.argsort(indices, kind='stable')
  same = np.array_equal(rounded.values, values[order]) and np.array_equal(
    rounded.indices, indices[order]
  )
  if codes.sparse(*names).is_exact or names == ('run_length', 'float32'):
    assert same
  elif np.count_nonzero(values) > 3:
    assert not same


def test_bfloat16_is_the_nearest():
  values, indices = selection(1, filled=COUNT)
  values[:3] = [3.4e38, -3.4e38, 1 + 2**-8]  # near the end, and a tie
  rounded, *_ = there_and_back('elias_fano', 'bfloat16')(
    values, indices, np.int32(0)
  )
  largest = float(jnp.finfo(jnp.bfloat16).max)
  nearest = np.clip(values, -largest, largest).astype(jnp.bfloat16)
  expected = nearest.astype(np.float32)[np.argsort(indices)]
  np.testing.assert_array_equal(rounded.values, expected)


def test_exponents_count_from_the_largest_of_each_leaf():
  indices = np.full(COUNT, TOTAL, np.int32)
  values = np.zeros(COUNT, np.float32)
  # Leaf 0: 5 -> 4 (not above the largest power), 0.6 -> 0.5, 1e-3 too small.
  # Leaf 1: its own largest. Leaf 2: 1e-3, which is large there.
  indices[:5] = [0, 7, 39, 40, 341 - 1]
  values[:5] = [5.0, -0.6, 1e-3, 1e-6, 1e-3]
  rounded, *_ = there_and_back('elias_fano', 'exponent4')(
    values, indices, np.int32(0)
  )
  np.testing.assert_array_equal(rounded.indices[:5], [0, 7, 40, 340, TOTAL])
  np.testing.assert_array_equal(
    rounded.values[:5], [4.0, -0.5, 2.0**-20, 2.0**-10, 0]
  )


def back(code, sparse):
  """(rounded, words, what comes back)."""
  ctx = context(space=sparse.space)

  @jax.jit
  def fn(sparse):
    rounded = code.round(sparse, ctx)
    words = code.pack(rounded, ctx)
    return rounded, words, code.unpack(words, rounded, ctx)

  return fn(sparse)


def test_two_magnitudes_a_leaf_travel_as_signs():
  at = np.array([3, 5, 9, 40, 50, 60, TOTAL], np.int32)
  values = np.array([2, -0.5, 2, -7, 1, 1, 0], np.float32)
  sparse = Sparse(jnp.asarray(values), jnp.asarray(at), SPACE)
  _, _, decoded = back(codes.sparse('elias_fano', 'sign2'), sparse)
  np.testing.assert_array_equal(decoded.indices, at)
  np.testing.assert_array_equal(decoded.values, values)


def test_a_magnitude_known_to_all_does_not_travel():
  at = jnp.array([3, 40, 300, TOTAL], jnp.int32)
  values = jnp.array([0.25, -0.25, 0.25, 0])
  sparse = Sparse(values, at, SPACE)
  _, words, decoded = back(codes.signs_of(0.25), sparse)
  np.testing.assert_array_equal(decoded.values, values)
  _, two_a_leaf, _ = back(codes.sparse('elias_fano', 'sign2'), sparse)
  assert words.size == two_a_leaf.size - 2 * len(SHAPES)


def test_runs_that_need_escapes_push_entries_out():
  """A gap of 2^16 zeros and more takes a slot, so the last entry has none."""
  space = Space(((200_000,),), (3,))
  code = codes.sparse('run_length', 'float32')
  assert code.limits.dropped
  at = jnp.array([5, 150_000, 199_999], jnp.int32)
  sparse = Sparse(jnp.array([1.0, 2.0, 3.0]), at, space)
  rounded, _, decoded = back(code, sparse)
  kept = np.asarray(rounded.indices)
  np.testing.assert_array_equal(kept, [5, 200_000, 200_000])
  np.testing.assert_array_equal(decoded.indices, kept)
  np.testing.assert_array_equal(decoded.values, [1, 0, 0])
