"""The kernels for TPUs, interpreted, and XLA's search for GPUs."""

import functools

import gradsparse as gs
from gradsparse.backend import chunks
from gradsparse.backend import platforms
import hypothesis
from hypothesis import strategies as st
import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks

AWKWARD = np.float32([0, -0.0, 1, -1, 1, 3e38, -3e38, np.inf, 1e-45, 2.5])


def expected(leaves, size, k):
  """The first places of each chunk by (magnitude, place), and their values."""
  values, places = [], []
  for x in leaves:
    for begin in range(0, len(x), size):
      chunk = x[begin : begin + size]
      order = np.lexsort((np.arange(len(chunk)), -np.abs(chunk)))[:k]
      values.append(chunk[order])
      places.append(order)
  return values, places


@hypothesis.given(
  seed=st.integers(0, 2**32 - 1),
  lengths=st.lists(st.integers(1, 700), min_size=1, max_size=3),
  # More than the kernel unrolls, too.
  k=st.integers(1, 8) | st.just(40),
  platform=st.sampled_from(['tpu', 'gpu']),
)
@hypothesis.settings(max_examples=4, deadline=None)
def test_the_largest_of_each_chunk(seed, lengths, k, platform):
  draw = np.random.default_rng(seed)
  leaves = [
    np.where(
      draw.random(n) < 0.5,
      draw.choice(AWKWARD, n),
      draw.normal(size=n).astype(np.float32),
    )
    for n in lengths
  ]
  with pytest.MonkeyPatch.context() as patch, pltpu.force_tpu_interpret_mode():
    patch.setattr(platforms, 'name', lambda: platform)
    found, at = map(
      np.asarray, chunks.largest(list(map(jnp.asarray, leaves)), 256, k)
    )
  for n, (values, places) in enumerate(
    zip(*expected(leaves, 256, k), strict=True)
  ):
    own = len(places)
    np.testing.assert_array_equal(at[:own, n], places)
    assert found[:own, n].tobytes() == values.tobytes()


@pytest.mark.parametrize('k', [4, 40])
def test_entries_by_place(k):
  """By comparisons, or sorted where there are many."""
  draw = np.random.default_rng(k)
  places = np.argsort(draw.random((11, 64)))[:, :k].astype(np.int32)
  values = draw.normal(size=places.shape).astype(np.float32)
  wanted = draw.integers(1, k + 1, 11)
  late = np.arange(k) >= wanted[:, None]
  order = np.argsort(places + 1000 * late, axis=1)
  got = chunks.ascending([*values.T], [*places.T], wanted)
  for found, own in zip(got, (values, places), strict=True):
    np.testing.assert_array_equal(
      np.stack(found, axis=1), np.take_along_axis(own, order, axis=1)
    )


@pytest.mark.parametrize(
  ('workers', 'k'), marks.few([(1, 1), (3, 5), (30, 9)], (3, 5))
)
def test_sums_are_in_order_of_workers(workers, k):
  draw = np.random.default_rng(k)
  number, size = 11, 128
  places = np.argsort(draw.random((workers, number, size)))[..., :k]
  places[draw.random(places.shape) < 0.1] = size + 7  # no entry
  values = (10 ** draw.uniform(-9, 9, places.shape)).astype(np.float32)
  want = np.zeros((number, size), np.float32)
  for w, c, j in np.ndindex(*places.shape):
    if places[w, c, j] < size:
      want[c, places[w, c, j]] += values[w, c, j]
  with pltpu.force_tpu_interpret_mode():
    got = chunks.add(jnp.asarray(values), jnp.int32(places), size)
  np.testing.assert_array_equal(got, want)


@functools.cache
def trained(recipe, platform, **arguments):
  """The bits of parameters and state after three steps of two workers."""
  jax.clear_caches()
  params = {
    'rows': jnp.ones((9, 128)),  # its last chunk is short
    'tiles': jnp.ones((32, 96)),  # of 32 x 48
    'small': jnp.ones((7, 9)),
    'bias': jnp.ones(5),
  }
  tx = optax.chain(
    getattr(gs, recipe)(axis_name='data', **arguments),
    optax.sgd(0.1),
  )

  def step(params, state, key):
    grads = jax.tree.map(
      lambda x: jax.random.normal(jax.random.fold_in(key, x.size), x.shape),
      params,
    )
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(tx, params, 2, 'data')
  run = gs.workers.parallel(
    step,
    in_specs=(jax.P(), specs, jax.P('data')),
    out_specs=(jax.P(), specs),
    runner='shard_map',
    num_workers=2,
    axis_name='data',
  )
  state = gs.workers.init(tx, params, 2, 'data')
  with pytest.MonkeyPatch.context() as patch, pltpu.force_tpu_interpret_mode():
    patch.setattr(platforms, 'name', lambda: platform)
    for number in range(3):
      keys = jax.random.split(jax.random.key(number), 2)
      params, state = run(params, state, keys)
  return [np.asarray(x).tobytes() for x in jax.tree.leaves((params, state))]


@pytest.mark.slow
@pytest.mark.parametrize(
  'recipe',
  ['gradient_dropping', 'dgc', 'ef21'],
)
def test_a_step_has_the_bits_of_cpus(recipe):
  chunks_of = {'density': 0.01, 'scope': 'chunk', 'chunk_size': 256}
  assert trained(recipe, 'tpu', **chunks_of) == trained(
    recipe, 'cpu', **chunks_of
  )


@pytest.mark.slow
def test_a_search_of_tiles_has_the_bits_of_cpus():
  """With more entries of a tile than are added up chunk by chunk."""
  tiles = {'density': 0.02, 'scope': 'tile', 'tile': 48, 'mean': 'senders'}
  on_tpu = trained('gradient_dropping', 'tpu', **tiles)
  assert on_tpu == trained('gradient_dropping', 'cpu', **tiles)


@pytest.mark.slow
def test_dense_messages_have_the_sum_of_cpus():
  """But for a rounding: XLA may join the product with the addition."""
  # The largest of a bucket: of a norm the order of the sum would matter.
  largest = {'levels': 7, 'norm': 'max', 'min_size': 0}
  pairs = zip(
    trained('qsgd', 'gpu', **largest)[:3],
    trained('qsgd', 'cpu', **largest)[:3],
    strict=True,
  )
  for pair in pairs:
    on_gpu, on_cpu = (np.frombuffer(x, np.float32) for x in pair)
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=1e-6)
