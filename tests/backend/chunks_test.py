"""The kernels for TPUs and GPUs, interpreted, and XLA's search for GPUs."""

import math
import types

from gradsparse.backend import chunk_blocks
from gradsparse.backend import chunk_kernels
from gradsparse.backend import chunk_kernels_gpu
from gradsparse.backend import chunk_search
from gradsparse.backend import chunks
from gradsparse.backend import platforms
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.kernels import interpreted

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


PASS = chunk_search.Pass(accumulated, removed, changed=(0, 1), searched=1)


def chunks_of(lengths, size, k, fewer=2):
  """Chunks of which the short ones have fewer entries."""
  lengths = np.array(lengths)
  return chunks.Chunks(size, k, lengths, np.where(lengths < size, fewer, k))


@pytest.mark.parametrize('platform', ['tpu', 'gpu'])
@pytest.mark.parametrize(
  ('shape', 'size', 'lengths', 'ok'),
  marks.few(
    [
      ((3, 8, 128), 256, [256] * 12, True),
      # A short block, and a short chunk.
      ((9, 384), 256, [256] * 13 + [128], True),
      ((40, 256), 640, [640] * 16, False),
    ],
    ((9, 384), 256, [256] * 13 + [128], True),
  ),
)
def test_a_pass_over_a_leaf_and_the_way_back(
  shape, size, lengths, ok, platform, monkeypatch
):
  monkeypatch.setattr(chunk_blocks, '_BLOCK', 1 << 10)  # several blocks
  check_a_pass(shape, chunks_of(lengths, size, 3), platform, ok)


@pytest.mark.parametrize('wanted', [True, np.True_, np.False_])
def test_a_pass_over_leaves_that_are_joined(wanted):
  """On GPUs: chunks of any length, one of fewer elements than entries."""
  own = chunks_of([100, 100, 7, 2, 100, 1], 100, 3, fewer=1)
  check_a_pass((310,), own, 'gpu', ok=True, wanted=wanted)


def test_a_leaf_with_fewer_elements_than_entries():
  check_a_pass((2,), chunks_of([2], 1024, 5, fewer=1), 'gpu', ok=True)


def test_places_beyond_a_large_leaf_do_not_wrap():
  """JAX adds the size to a negative index: then an entry would be written."""
  size, lengths = 2**31 - 2**20, np.full(2**11 - 1, 2**20)
  leaf = jax.ShapeDtypeStruct((size,), jnp.float32)
  entries = jax.ShapeDtypeStruct((len(lengths), 16), jnp.int32)

  def back(leaf, entries):
    return chunk_kernels_gpu.put_back(
      PASS, [leaf, leaf], entries, 5, lengths, wanted=False
    )

  text = str(jax.make_jaxpr(back)(leaf, entries))
  assert text.count('scatter[') == 2
  assert text.count(' lt ') == 1  # a place and its chunk's length


def test_what_triton_lacks_is_not_computed_by_a_kernel(monkeypatch):
  monkeypatch.setattr(platforms, 'name', lambda: 'gpu')

  def of(fn):
    return chunks.can_compute(jax.make_jaxpr(jax.jit(fn))(jnp.ones(8)).jaxpr)

  assert of(lambda x: jnp.where(x > 0, jnp.clip(x, 0, 1), x**2))
  assert not of(jnp.round)


@pytest.mark.parametrize(
  ('capability', 'able'),
  [('7.5', False), ('8.0', True), ('9.0', True), ('12.1', True)]
  + [('gfx90a', False)],
)
def test_triton_is_for_newer_gpus(capability, able, monkeypatch):
  gpu = types.SimpleNamespace(platform='gpu', compute_capability=capability)
  monkeypatch.setattr(jax, 'devices', lambda: [gpu])
  assert platforms.has_triton() == able


def check_a_pass(shape, own, platform, ok, wanted=True):
  """Compares `take` and `put_back` with NumPy.

  Args:
    shape: of the array.
    own: its chunks.
    platform: whose kernels are interpreted.
    ok: whether the gradient is added.
    wanted: whether entries are put back.
  """
  draw = np.random.default_rng(own.size)
  # Small whole numbers: many are equal, and sums are exact.
  g, u, v = draw.integers(-9, 10, (3, *shape)).astype(np.float32)
  kept_u = u / 2 + g if ok else u
  kept_v = v + kept_u if ok else v
  left_u, left_v = kept_u.copy().reshape(-1), kept_v.copy().reshape(-1)
  ends = np.cumsum(own.lengths)
  with interpreted(platform):
    fields, entries = chunks.take(
      PASS, jnp.bool_(ok), jnp.asarray(g), [jnp.asarray(u), jnp.asarray(v)], own
    )
    (again,) = chunks.put_back(PASS, [(fields, entries, own)], wanted)
  found = [np.stack(x, axis=1) for x in chunks.vectors(entries, own.k)]
  for n, (begin, end) in enumerate(zip(ends - own.lengths, ends, strict=True)):
    chunk = kept_v.reshape(-1)[begin:end]
    places = np.argsort(-abs(chunk), kind='stable')[: own.k]
    number = len(places)
    np.testing.assert_array_equal(found[0][n, :number], chunk[places])
    np.testing.assert_array_equal(found[1][n, :number], places)
    gone = begin + places[: own.wanted[n]]
    left_u[gone] = left_v[gone] = 0
  np.testing.assert_array_equal(fields[0].reshape(-1), left_u)
  np.testing.assert_array_equal(fields[1].reshape(-1), left_v)
  expected = (kept_u, kept_v) if wanted else fields
  for x, want in zip(again, expected, strict=True):
    np.testing.assert_array_equal(x, want)


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
    both = lowered(jax.vmap(both), ok, x, x, x, platform='tpu')
    assert both.count('tpu_custom_call') == 2
    total = lowered(total, sent, at, platform='tpu')
    assert total.count('tpu_custom_call') == 2


@pytest.mark.parametrize('x64', [False, True])
def test_a_kernel_is_lowered_for_gpus_under_vmap(x64):
  x = jax.ShapeDtypeStruct((2, 32, 256), jnp.float32)
  lengths = np.full(16, 512)

  def both(ok, g, u, v):
    fields, entries = chunk_kernels_gpu.take(
      PASS, ok, g, [u, v], 3, lengths, lengths // 512
    )
    return chunk_kernels_gpu.put_back(PASS, fields, entries, 3, lengths, ~ok)

  ok = jax.ShapeDtypeStruct((2,), jnp.bool_)
  h100 = jax.sharding.AbstractDevice('NVIDIA H100', None, 'gpu')
  mesh = jax.sharding.AbstractMesh((1,), ('data',), abstract_device=h100)
  with jax.enable_x64(x64), jax.sharding.use_abstract_mesh(mesh):
    both = lowered(jax.vmap(both), ok, x, x, x, platform='cuda')
  assert both.count('xla.gpu.triton') == 1


def lowered(fn, *arguments, platform):
  """The text of a program for a platform that need not be here."""
  traced = jax.jit(fn).trace(*arguments)
  return traced.lower(lowering_platforms=(platform,)).as_text()
