"""Clipping on each worker: the oracle's, its scale with P, what it lets by."""

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks
from tests.oracles import dgc

AXIS = 'workers'
SHAPES = ((4, 3), (5,), ())


def draw(num_workers, seed=0):
  rng = np.random.default_rng(seed)
  scale = rng.uniform(0.1, 3, num_workers)
  return [
    [np.asarray(s * rng.normal(size=shape), np.float32) for shape in SHAPES]
    for s in scale
  ]


def clipped(grads, threshold):
  """By workers: grads[w][leaf] in and out."""
  tx = gs.clip_local_norm(threshold, axis_name=AXIS)
  stacked = [np.stack(leaf) for leaf in zip(*grads, strict=True)]
  update = lambda g: tx.update(g, optax.EmptyState())[0]
  out = jax.jit(jax.vmap(update, axis_name=AXIS))(stacked)
  return [[np.asarray(x[w]) for x in out] for w in range(len(grads))]


@pytest.mark.parametrize('num_workers', marks.few([1, 2, 4], 4))
def test_each_worker_is_clipped_as_the_oracle_says(num_workers):
  grads = draw(num_workers)
  for threshold in (0.5, 3.0, 100.0):
    expected = dgc.clip_local_norm(grads, threshold)
    for own, other in zip(clipped(grads, threshold), expected, strict=True):
      for x, y in zip(own, other, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def norm(tree):
  return np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in tree))


def test_the_limit_is_that_of_the_whole_batch_times_the_root_of_p():
  """Of the whole tree, not of a leaf; four workers may have twice the norm."""
  grads = draw(4)
  for own, before in zip(clipped(grads, 0.25), grads, strict=True):
    assert norm(own) == pytest.approx(min(0.5, norm(before)), rel=1e-5)
    # Direction is kept: one factor for all leaves.
    factors = {
      round(float(np.mean(x / y)), 5) for x, y in zip(own, before, strict=True)
    }
    assert len(factors) == 1


def test_a_small_gradient_is_untouched_and_a_zero_one_stays_zero():
  grads = [[np.zeros(s, np.float32) for s in SHAPES], draw(1)[0]]
  out = clipped(grads, 1e3)
  for own, before in zip(out, grads, strict=True):
    for x, y in zip(own, before, strict=True):
      np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_what_is_not_finite_stays_so_for_the_scheme_to_reject(bad):
  grads = draw(2)
  grads[1][0][2, 1] = bad
  out = clipped(grads, 0.5)
  assert not np.all(np.isfinite(out[1][0]))
  assert all(np.all(np.isfinite(x)) for x in out[0])


def test_dtypes_are_kept_and_the_norm_is_taken_in_float32():
  tx = gs.clip_local_norm(1.0, axis_name=None)
  grads = {'a': jnp.full(4500, 1.0, jnp.bfloat16), 'b': jnp.ones(2)}
  updates, _ = jax.jit(tx.update)(grads, tx.init(grads))
  assert updates['a'].dtype == jnp.bfloat16
  assert updates['b'].dtype == jnp.float32
  # 4500 is no bfloat16.
  assert float(updates['b'][0]) == pytest.approx(4502**-0.5, rel=1e-5)


def test_shards_over_another_axis_are_refused():
  tx = gs.clip_local_norm(1.0, axis_name=AXIS)
  mesh = jax.make_mesh(
    (2, 2),
    (AXIS, 'model'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  spec = jax.sharding.PartitionSpec(AXIS, 'model')
  step = jax.shard_map(
    lambda g: tx.update(g, optax.EmptyState())[0],
    mesh=mesh,
    in_specs=spec,
    out_specs=spec,
  )
  with pytest.raises(ValueError, match="clip_local_norm.*'model'"):
    jax.eval_shape(step, jnp.ones((2, 4)))


@pytest.mark.parametrize('threshold', [0.0, -1.0, float('nan')])
def test_a_threshold_that_is_not_positive_is_an_error(threshold):
  with pytest.raises(ValueError, match=f'threshold must be .*{threshold}'):
    gs.clip_local_norm(threshold, axis_name=None)


@pytest.mark.parametrize('scale', [1e19, 1e38, 3e38])
def test_large_gradients_are_clipped_and_do_not_vanish(scale):
  """Their squares leave float32, and the last ones' norm does too."""
  grads = [[np.full(shape, scale, np.float32) for shape in SHAPES]]
  (own,) = clipped(grads, 3.0)
  norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in own))
  assert norm == pytest.approx(3.0, rel=1e-5)
