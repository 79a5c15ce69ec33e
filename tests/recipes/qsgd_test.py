"""QSGD's rounding: neighbouring levels, the oracle's draws, buckets.

Unbiasedness and variance are in statistics_test.py, streams in
codes/level_codes_test.py.
"""

import functools
import math

import gradsparse as gs
from gradsparse import draws
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import qsgd
from tests.oracles import wire_sizes

SEED = 3
# Buckets of 16: whole ones, and a last one of 7 elements.
SIZE, BUCKET = 103, 16


@functools.cache
def compiled(levels, norm, shape=(SIZE,), bucket_size=BUCKET):
  tx = gs.qsgd(
    levels,
    bucket_size=bucket_size,
    norm=norm,
    min_size=0,
    seed=SEED,
    axis_name=None,
  )

  def quantised(g, step):
    return tx.update(g, tx.init(g)._replace(steps=step))[0]

  args = jnp.zeros(shape), jnp.int32(0)
  return jax.jit(quantised).lower(*args).compile(replay.QUICKLY)


def vector(seed=0):
  return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)


def bucket_norms(v, norm, bucket_size=BUCKET):
  """The norm of each element's bucket."""
  out = np.zeros_like(v)
  for start, stop in qsgd.bucket_ranges(v.size, bucket_size):
    out[start:stop] = qsgd.bucket_scale(v[start:stop], norm)
  return out


@pytest.mark.parametrize('norm', marks.few(['max', 'l2'], 'max'))
@pytest.mark.parametrize('levels', marks.few([1, 7, 255], 7))
def test_each_element_goes_to_one_of_the_two_levels_beside_it(levels, norm):
  v = vector()
  norms = bucket_norms(v, norm)
  exact = np.abs(v) / norms * levels
  seen = set()
  for step in range(8):
    q = np.asarray(compiled(levels, norm)(v, np.int32(step)))
    level = np.abs(q) / norms * levels
    np.testing.assert_allclose(level, np.round(level), atol=1e-3)
    level = np.round(level)
    assert np.all(np.abs(level - exact) < 1 + 1e-3)
    assert np.all(q * v >= 0)
    seen |= set(np.sign(level - exact))
  assert {-1.0, 1.0} <= seen


@pytest.mark.parametrize('norm', ['max', 'l2'])
@pytest.mark.parametrize('levels', marks.few([1, 7], 7))
def test_the_same_draws_give_what_the_oracle_gives(levels, norm):
  """A draw is documented: seed, step, 1 + worker, leaf, then rows of d."""
  for step in range(3):
    v = vector(step)
    key = jax.random.fold_in(jax.random.key(SEED), step)
    key = jax.random.fold_in(jax.random.fold_in(key, 1), 0)
    uniforms = draws.uniform(key, (-(-SIZE // BUCKET), BUCKET))
    uniforms = np.asarray(uniforms).ravel()[:SIZE]
    expected = qsgd.quantise(v, levels, BUCKET, norm, uniforms)
    q = compiled(levels, norm)(v, np.int32(step))
    np.testing.assert_allclose(q, expected, rtol=1e-6)


def test_enough_levels_are_exact():
  """Law 3: gradients on the grid of 255 levels are delivered as they are."""
  rng = np.random.default_rng(1)
  v = rng.integers(-255, 256, SIZE).astype(np.float32)
  v[::BUCKET] = 255
  q = compiled(255, 'max')(v, np.int32(0))
  np.testing.assert_allclose(q, v, rtol=1e-6, atol=1e-4)


def test_the_largest_of_a_bucket_is_exact_and_zeros_stay_zero():
  v = vector()
  v[BUCKET : 2 * BUCKET] = 0
  v[3] = 0
  norms = bucket_norms(v, 'max')
  for step in range(4):
    q = np.asarray(compiled(1, 'max')(v, np.int32(step)))
    assert np.all(np.isfinite(q))
    assert not np.any(q[v == 0])
    largest = (np.abs(v) == norms) & (v != 0)
    assert largest.sum() == len(qsgd.bucket_ranges(SIZE, BUCKET)) - 1
    np.testing.assert_allclose(q[largest], v[largest], rtol=1e-6)


def test_buckets_of_a_kernel_hold_whole_receptive_fields():
  """(3, 3, 2, 4): nine taps each; buckets of 20 hold two fields, 18 elements.

  Field f belongs to (input, output) = divmod(f, 4). In each pair of fields one
  element is large, and is its bucket's largest: the others round to zero.
  """
  kernel = np.full((3, 3, 8), 1e-6, np.float32)
  kernel[1, 2, ::2] = np.arange(1, 5)
  q = compiled(1, 'max', (3, 3, 2, 4), 20)(
    kernel.reshape(3, 3, 2, 4), np.int32(0)
  )
  q = np.array(q).reshape(3, 3, 8)
  np.testing.assert_allclose(q[1, 2, ::2], np.arange(1, 5), rtol=1e-6)
  q[1, 2, ::2] = 0
  assert not np.any(q)


@pytest.mark.parametrize(
  'shape, bucket_size, count',
  marks.few(
    [
      ((40,), 16, 3),
      ((6, 7), 16, 3),
      ((3, 3, 2, 4), 20, 4),
      # A field of 25 is larger: two parts of 13 and 12 each.
      ((5, 5, 2, 3), 16, 12),
      # One-dimensional convolutions, and heads: their taps are the first axis.
      ((3, 4, 5), 16, 4),
      ((50, 2, 1), 16, 8),
      ((4, 6, 2), 16, 3),
      # TPUs add two rows of zeros, so that the last bucket ends with a row.
      ((3, 3, 25, 4), 28, 34),
    ],
    ((5, 5, 2, 3), 16, 12),
  ),
)
def test_buckets_are_those_of_the_definition(shape, bucket_size, count):
  """One large element: in its bucket all others round to zero, else none."""
  expected = qsgd.buckets(shape, bucket_size)
  assert len(expected) == count
  assert max(map(len, expected)) <= bucket_size
  run = compiled(1, 'max', shape, bucket_size)
  size = math.prod(shape)
  for bucket in expected:
    g = np.full(size, 1e-9, np.float32)
    g[bucket[-1]] = 1
    kept = np.ravel(run(g.reshape(shape), np.int32(0))) != 0
    lost = sorted(set(range(size)) - set(np.flatnonzero(kept)))
    assert lost == sorted(set(bucket) - {bucket[-1]})


@pytest.mark.parametrize(
  'shape, bucket_size, most',
  marks.few(
    [
      # 121 taps: two buckets a field.
      ((11, 11, 3, 96), 64, 2 * 3 * 96),
      ((12, 64, 768), 512, 1.02 * 12 * 64 * 768 / 512),
      ((50_000, 4, 2), 512, 1.01 * 50_000 * 8 / 512),
      ((3, 3, 256, 256), 512, 1.02 * 9 * 256 * 256 / 512),
      ((1, 1, 64, 256), 128, 64 * 256 / 128),
      ((1000, 1000), 512, 1954),
    ],
    ((11, 11, 3, 96), 64, 2 * 3 * 96),
    ((1000, 1000), 512, 1954),
  ),
)
def test_a_leaf_has_few_buckets_and_none_larger_than_asked(
  shape, bucket_size, most
):
  """The message is a word of health, the norms, and 2 bits an element."""
  size = math.prod(shape)
  tx = gs.qsgd(1, bucket_size=bucket_size, min_size=0, axis_name=None)
  plan = gs.plan(tx, jax.ShapeDtypeStruct(shape, jnp.float32), 1)
  levels = math.ceil(2 * size / 32)
  counts = math.ceil(size / bucket_size), math.floor(most)
  least, largest = (wire_sizes.message_bytes(n + levels) for n in counts)
  assert least <= plan.payload_bytes <= largest
