"""The kernels for TPUs, interpreted, and XLA's search for GPUs."""

import contextlib
import functools
import math

import gradsparse as gs
from gradsparse.backend import chunk_blocks
from gradsparse.backend import chunk_kernels
from gradsparse.backend import chunks
from gradsparse.backend import platforms
import hypothesis
from hypothesis import strategies as st
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks
from tests import replicas

AWKWARD = np.float32([0, -0.0, 1, -1, 1, 3e38, -3e38, np.inf, 1e-45, 2.5])


@contextlib.contextmanager
def interpreted(platform):
  """Kernels run interpreted, and programs are traced for this platform.

  Results do not overwrite arguments: the interpreter would return the shape of
  whole blocks.
  """
  call = pl.pallas_call

  def anew(*args, input_output_aliases=None, **more):
    del input_output_aliases
    return call(*args, **more)

  with pytest.MonkeyPatch.context() as patch, pltpu.force_tpu_interpret_mode():
    patch.setattr(platforms, 'name', lambda: platform)
    patch.setattr(pl, 'pallas_call', anew)
    yield


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
  with interpreted(platform):
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
  size = 256
  # Kernels read the first and the third one as they are; the others as rows.
  shapes = [(2, 8, 128), (5, 3), (24, 256), (20, 64)]
  numbers = [chunks.number(math.prod(shape), size) for shape in shapes]
  shape = workers, sum(numbers), size
  places = np.argsort(draw.random(shape))[..., :k].transpose(0, 2, 1)
  places[draw.random(places.shape) < 0.1] = size + 7  # no entry
  values = (10 ** draw.uniform(-9, 9, places.shape)).astype(np.float32)
  want = np.zeros(shape[1:], np.float32)
  for w, j, c in np.ndindex(*places.shape):
    if places[w, j, c] < size:
      want[c, places[w, j, c]] += values[w, j, c]
  with interpreted('tpu'):
    got = chunks.add(jnp.asarray(values), jnp.int32(places), shapes, size)
  rows = np.split(want, np.cumsum(numbers)[:-1])
  for leaf, of_leaf, own in zip(got, shapes, rows, strict=True):
    elements = own.reshape(-1)[: math.prod(of_leaf)]
    np.testing.assert_array_equal(leaf, elements.reshape(of_leaf))


def accumulated(ok, g, fields):
  """DGC's memory, with a momentum of one half."""
  u, v = fields
  new = u / 2 + g
  return [jnp.where(ok, new, u), jnp.where(ok, v + new, v)], (
    jnp.where(ok, v + new, v)
  )


def removed(fields, values, there):
  u, v = fields
  return [jnp.where(there, 0.0, u), jnp.where(there, v - values, v)]


PASS = chunk_kernels.Pass(accumulated, removed, changed=(0, 1), searched=1)


@pytest.mark.parametrize(
  ('shape', 'size', 'ok'),
  marks.few(
    [
      ((3, 8, 128), 256, True),
      ((9, 384), 256, True),  # a short block, and a short chunk
      ((40, 256), 640, False),
    ],
    ((9, 384), 256, True),
  ),
)
def test_a_pass_over_a_leaf_and_the_way_back(shape, size, ok, monkeypatch):
  monkeypatch.setattr(chunk_blocks, '_BLOCK', 1 << 10)  # several blocks
  k, draw = 3, np.random.default_rng(size)
  # Small whole numbers: many are equal, and sums are exact.
  g, u, v = draw.integers(-9, 10, (3, *shape)).astype(np.float32)
  number = chunks.number(g.size, size)
  wanted = np.full(number, k)
  wanted[-1] = 2
  kept_u = u / 2 + g if ok else u
  kept_v = v + kept_u if ok else v
  left_u, left_v = kept_u.copy().reshape(-1), kept_v.copy().reshape(-1)
  places, values = np.zeros((2, number, k))
  for n in range(number):
    chunk = kept_v.reshape(-1)[n * size : (n + 1) * size]
    places[n] = np.argsort(-abs(chunk), kind='stable')[:k]
    values[n] = chunk[places[n].astype(int)]
    gone = n * size + places[n, : wanted[n]].astype(int)
    left_u[gone] = left_v[gone] = 0
  with interpreted('tpu'):
    fields, entries = chunk_kernels.take(
      PASS,
      jnp.bool_(ok),
      jnp.asarray(g),
      [jnp.asarray(u), jnp.asarray(v)],
      size,
      k,
      wanted,
    )
    again = chunk_kernels.put_back(PASS, fields, entries, size, k)
  found = chunks.vectors(entries, k)
  np.testing.assert_array_equal(np.stack(found[0], axis=1), values)
  np.testing.assert_array_equal(np.stack(found[1], axis=1), places)
  np.testing.assert_array_equal(fields[0].reshape(-1), left_u)
  np.testing.assert_array_equal(fields[1].reshape(-1), left_v)
  np.testing.assert_array_equal(again[0], kept_u)
  np.testing.assert_array_equal(again[1], kept_v)


@pytest.mark.parametrize('x64', [False, True])
def test_kernels_are_lowered_for_tpus_under_vmap(x64):
  """Several workers of one device; no TPU is needed to lower a program."""
  x, k = jax.ShapeDtypeStruct((2, 32, 256), jnp.float32), 3

  def both(ok, g, u, v):
    fields, entries = chunk_kernels.take(PASS, ok, g, [u, v], 512, k)
    return chunk_kernels.put_back(PASS, fields, entries, 512, k)

  def total(values, places):
    return chunks.add(values, places, [(32, 256), (7, 9)], 512)

  ok = jax.ShapeDtypeStruct((2,), jnp.bool_)
  sent = jax.ShapeDtypeStruct((4, k, 17), jnp.float32)
  at = jax.ShapeDtypeStruct(sent.shape, jnp.int32)
  with jax.enable_x64(x64):
    for number, fn, *arguments in (
      (2, jax.vmap(both), ok, x, x, x),
      (2, total, sent, at),
    ):
      traced = jax.jit(fn).trace(*arguments)
      text = traced.lower(lowering_platforms=('tpu',)).as_text()
      assert text.count('tpu_custom_call') == number


@functools.cache
def trained(recipe, platform, rejected=None, **arguments):
  """The bits of parameters and state after three steps of two workers.

  Args:
    recipe: the name of a scheme's factory.
    platform: for which the program is traced.
    rejected: the number of a step that the second worker refuses.
    **arguments: of the factory.
  """
  jax.clear_caches()
  params = {
    'stack': jnp.ones((6, 16, 128)),  # a kernel reads it as it is
    'short': jnp.ones((9, 128)),  # so too; its last chunk is short
    'tiles': jnp.ones((32, 96)),  # of 32 x 48
    'small': jnp.ones((7, 9)),
    'bias': jnp.ones(5),
  }
  tx = optax.chain(
    getattr(gs, recipe)(axis_name='data', **arguments),
    optax.sgd(0.1),
  )

  def step(params, state, key, scale):
    grads = jax.tree.map(
      lambda x: (
        scale * jax.random.normal(jax.random.fold_in(key, x.size), x.shape)
      ),
      params,
    )
    updates, state = tx.update(grads, state, params)
    updates = jax.tree.map(jnp.nan_to_num, updates)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(tx, params, 2, 'data')
  run = gs.workers.parallel(
    step,
    in_specs=(jax.P(), specs, jax.P('data'), jax.P('data')),
    out_specs=(jax.P(), specs),
    runner='shard_map',
    num_workers=2,
    axis_name='data',
  )
  state = gs.workers.init(tx, params, 2, 'data')
  take, used = chunk_kernels.take, []

  def taken(work, ok, gradient, fields, *rest):
    used.append(len(fields))
    return take(work, ok, gradient, fields, *rest)

  with interpreted(platform), pytest.MonkeyPatch.context() as patch:
    patch.setattr(chunk_kernels, 'take', taken)
    for number in range(3):
      keys = jax.random.split(jax.random.key(number), 2)
      scales = jnp.ones(2).at[1].set(jnp.nan if number == rejected else 1)
      params, state = run(params, state, keys, scales)
  if arguments.get('scope') == 'chunk':
    assert (sum(used) > 0) == (platform == 'tpu')
  assert int(np.max(state[0].stats.rejected_steps)) == (rejected is not None)
  return [np.asarray(x).tobytes() for x in jax.tree.leaves((params, state))]


CHUNKS = {'density': 0.01, 'scope': 'chunk', 'chunk_size': 256}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('recipe', 'arguments'),
  [
    ('gradient_dropping', {}),
    ('dgc', {}),
    ('ef21', {}),
    # The memory learns only later what was delivered.
    ('dgc', {'values': 'exponent4'}),
  ],
)
@pytest.mark.parametrize('rejected', [None, 1])
def test_a_step_has_the_bits_of_cpus(recipe, arguments, rejected):
  arguments = {'rejected': rejected, **CHUNKS, **arguments}
  assert trained(recipe, 'tpu', **arguments) == trained(
    recipe, 'cpu', **arguments
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'shapes',
  [
    # All leaves of the second message are shorter than a chunk.
    {'sharded': (32, 128), 'whole': (7, 9)},
    # Both messages have leaves that no kernel reads as they are.
    {'sharded': (64, 128), 'sharded_too': (8, 20), 'whole': (20, 30)},
  ],
)
def test_leaves_of_two_messages_have_the_bits_of_cpus(shapes, monkeypatch):
  """Leaves that are sharded over a worker's devices have one of their own."""
  specs = {
    name: jax.P('model', None) if 'sharded' in name else jax.P()
    for name in shapes
  }
  params = {name: jnp.ones(shape) for name, shape in shapes.items()}
  scheme = gs.dgc(**CHUNKS, axis_name=replicas.REPLICA)
  call = pl.pallas_call

  def anew(*args, input_output_aliases=None, **more):
    del input_output_aliases
    return call(*args, interpret=True, **more)

  monkeypatch.setattr(pl, 'pallas_call', anew)
  mesh = jax.make_mesh(
    (2, 2),
    (replicas.REPLICA, 'model'),
    axis_types=(jax.sharding.AxisType.Auto,) * 2,
  )
  bits = []
  for platform in ('cpu', 'tpu'):
    jax.clear_caches()
    monkeypatch.setattr(platforms, 'name', lambda own=platform: own)
    run = replicas.Program(
      gs.sharded(scheme, specs),
      mesh,
      specs=specs,
      params=params,
      check_vma=False,
    )
    state, results = run.state, []
    for seed in range(2):
      *own, state = run(state, replicas.draw(params, 2, seed=seed))
      results.append(own)
    leaves = jax.tree.leaves((results, state))
    bits.append([np.asarray(x).tobytes() for x in leaves])
  assert bits[0] == bits[1]


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
