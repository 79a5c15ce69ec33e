"""Copies that must be equal are compared bit for bit, and the odd one named."""

import functools

import gradsparse as gs
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests.workers.regression import AXIS
from tests.workers.regression import NUM_WORKERS
from tests.workers.regression import OWN
from tests.workers.regression import PARAMS
from tests.workers.regression import batches
from tests.workers.regression import training

_TYPES = ('float32', 'bfloat16', 'float16', 'int8', 'int32', 'uint8', 'bool')
_SHAPES = ((), (0,), (1,), (5,), (2, 3))


@st.composite
def trees(draw):
  """Leaves of any bits at all: NaNs of every payload, -0, subnormals."""
  leaves = []
  for _ in range(draw(st.integers(0, 4))):
    dtype = jnp.dtype(draw(st.sampled_from(_TYPES)))
    shape = draw(st.sampled_from(_SHAPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.kind == 'b':
      leaves.append(rng.integers(0, 2, shape).astype(bool))
      continue
    size = int(np.prod(shape)) * dtype.itemsize
    bits = rng.integers(0, 256, size, np.uint8)
    if draw(st.booleans()):
      bits |= 0xF0  # mostly NaNs
    leaves.append(bits.view(dtype).reshape(shape))
  return leaves


def compare(copies):
  """Of what each of the workers holds; leaves have a worker axis."""
  prints = jax.vmap(gs.workers.fingerprint, out_axes=None, axis_name=AXIS)
  gs.workers.check_agreement(prints(copies), copies)


def flip(array, element, bit):
  """Another array, of which one bit is another."""
  if array.dtype.kind == 'b':
    changed = array.copy()
    changed.flat[element] ^= True
    return changed
  width = 8 * array.dtype.itemsize
  words = array.reshape(-1).view(f'uint{width}').copy()
  words[element] ^= words.dtype.type(1 << (bit % width))
  return words.view(array.dtype).reshape(array.shape)


@pytest.mark.slow
@given(trees(), st.data())
def test_equal_copies_are_never_accused_and_one_bit_always_is(tree, data):
  workers = 3
  copies = [np.stack([x] * workers) for x in tree]
  if copies:
    compare(copies)
  full = [i for i, x in enumerate(tree) if x.size]
  if not full:
    return
  leaf = data.draw(st.sampled_from(full))
  worker = data.draw(st.integers(0, workers - 1))
  element = data.draw(st.integers(0, tree[leaf].size - 1))
  place = worker * tree[leaf].size + element
  copies[leaf] = flip(copies[leaf], place, data.draw(st.integers(0, 31)))
  with pytest.raises(gs.workers.DisagreementError) as caught:
    compare(copies)
  assert (caught.value.leaf, caught.value.worker) == (f'[{leaf}]', worker)


def test_the_same_numbers_in_other_places_are_others():
  x = 2.0 ** np.arange(-20, 20).astype(np.float32)  # words of few bits
  for other in (x[::-1], np.roll(x, 1), np.roll(x, 16), x.reshape(2, 20).T):
    with pytest.raises(gs.workers.DisagreementError, match=r'\[0\] is decl'):
      compare([np.stack([x, x, other.ravel()])])


@functools.cache
def trained():
  """PowerSGD on three devices, and what compares them."""
  tx = optax.chain(
    gs.power_sgd(2, axis_name=AXIS), optax.sgd(0.1, momentum=0.9)
  )
  specs = (P(), gs.workers.specs(tx, PARAMS, NUM_WORKERS))
  state = PARAMS, gs.workers.init(tx, PARAMS, NUM_WORKERS)
  mesh = jax.make_mesh(
    (NUM_WORKERS,),
    (AXIS,),
    axis_types=(AxisType.Auto,),
    devices=jax.devices()[:NUM_WORKERS],
  )
  place = lambda spec, tree: jax.device_put(tree, NamedSharding(mesh, spec))
  is_spec = lambda x: isinstance(x, P)
  state = jax.tree.map(place, specs, state, is_leaf=is_spec)
  step = training(tx, 'shard_map')
  for batch in batches(2):
    state = step(*state, jax.device_put(batch, NamedSharding(mesh, OWN)))[:2]
  compiled = (
    gs.workers.parallel(
      lambda tree: gs.workers.fingerprint(tree, specs),
      runner='shard_map',
      num_workers=NUM_WORKERS,
      in_specs=(specs,),
      out_specs=P(),
    )
    .lower(state)
    .compile()
  )
  check = lambda state: gs.workers.check_agreement(
    compiled(state), state, specs
  )
  return state, check, compiled


def damage(array, device):
  """One bit of what one device holds is another."""
  shards = [shard.data for shard in array.addressable_shards]
  shards[device] = jax.device_put(
    flip(np.asarray(shards[device]), 0, 20), shards[device].sharding
  )
  return jax.make_array_from_single_device_arrays(
    array.shape, array.sharding, shards
  )


def replaced(state, chosen, device):
  """The state with one leaf damaged, whose path has these words in it."""
  found = []

  def change(path, x):
    name = jax.tree_util.keystr(path)
    if found or not all(word in name for word in chosen) or not x.size:
      return x
    found.append(name)
    return damage(x, device)

  state = jax.tree_util.tree_map_with_path(change, state)
  return state, found[0]


@pytest.mark.parametrize(
  ('chosen', 'worker'),
  [
    (['[0]', "'w'"], 1),  # parameters
    # PowerSGD's factors.
    pytest.param(['.compressor'], 2, marks=pytest.mark.slow),
    # Momentum of the optimizer.
    pytest.param(['.trace', "'b'"], 0, marks=pytest.mark.slow),
  ],
)
def test_a_flipped_bit_on_one_device_is_caught_and_named(chosen, worker):
  state, check, _ = trained()
  check(state)
  damaged, name = replaced(state, chosen, worker)
  # JAX shows one copy, and sees nothing unless it happens to be that one.
  assert damaged[0]['b'].is_fully_replicated
  with pytest.raises(
    gs.workers.DisagreementError,
    match=f'worker {worker} has another copy than worker {int(worker == 0)}',
  ) as caught:
    check(damaged)
  assert (caught.value.leaf, caught.value.worker) == (name, worker)


def test_what_is_a_workers_own_may_differ():
  state, check, _ = trained()
  damaged, _ = replaced(state, ['.memory'], 1)
  check(damaged)


def test_a_check_sends_four_bytes_a_leaf():
  state, _, compiled = trained()
  specs = jax.tree.map(lambda x: x.sharding.spec, state)
  shared = sum(
    spec == P()
    for spec in jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, P))
  )
  audit = gs.audit(compiled)
  assert [c.kind for c in audit.collectives] == ['all_gather']
  assert audit.sent_bytes == (NUM_WORKERS - 1) * 4 * shared


def test_two_axes_compare_along_those_that_a_spec_does_not_name():
  specs = {'node': P('node'), 'all': P(), 'own': P('node', 'device')}
  axes = ('node', 'device')

  def prints(tree):
    return gs.workers.fingerprint(tree, specs, axes)

  for axis in reversed(axes):
    prints = jax.vmap(prints, out_axes=None, axis_name=axis)
  node = np.arange(3)[:, None] + np.zeros((3, 2), int)
  tree = {
    'node': node,
    'all': np.ones((3, 2), np.float32),
    'own': np.arange(6).reshape(3, 2),
  }
  check = lambda tree: gs.workers.check_agreement(
    prints(tree), tree, specs, axes
  )
  check(tree)
  tree['node'][2, 1] = 7
  with pytest.raises(
    gs.workers.DisagreementError, match='node=2, device=1 has .* node=2, devi'
  ) as caught:
    check(tree)
  assert caught.value.worker == (2, 1)
  tree['all'][1, 0] = 0
  with pytest.raises(gs.workers.DisagreementError, match='2 of 2') as caught:
    check(tree)
  assert (caught.value.leaf, caught.value.worker) == ("['all']", (1, 0))


@pytest.mark.slow
def test_leaves_that_jax_divides_over_another_axis_stay_where_they_are():
  mesh = jax.make_mesh(
    (2, 2), ('replica', 'model'), axis_types=(AxisType.Auto,) * 2
  )
  x = jax.device_put(
    np.ones((6, 128), np.float32), NamedSharding(mesh, P(None, 'model'))
  )
  fn = jax.shard_map(
    lambda x: gs.workers.fingerprint(x, P(), 'replica'),
    mesh=mesh,
    in_specs=P(),
    out_specs=P(),
    axis_names={'replica'},
  )
  compiled = jax.jit(fn).lower(x).compile()
  gs.workers.check_agreement(compiled(x), x, P(), 'replica')
  assert gs.audit(compiled).sent_bytes < 64
  for device in (1, 3):  # of two workers nobody can say which is wrong
    with pytest.raises(
      gs.workers.DisagreementError, match='the tree'
    ) as caught:
      prints = compiled(damage(x, device))
      gs.workers.check_agreement(prints, x, P(), 'replica')
    assert caught.value.worker == 1


def test_a_shard_is_compared_with_the_same_shard_elsewhere():
  mesh = jax.make_mesh(
    (3, 2), ('replica', 'model'), axis_types=(AxisType.Auto,) * 2
  )
  x = jax.device_put(np.arange(8.0), NamedSharding(mesh, P('model')))
  axes = ('replica', 'model')
  fn = jax.jit(
    jax.shard_map(
      lambda x: gs.workers.fingerprint(x, P('model'), axes),
      mesh=mesh,
      in_specs=P('model'),
      out_specs=P(),
    )
  )
  gs.workers.check_agreement(fn(x), x, P('model'), axes)
  with pytest.raises(
    gs.workers.DisagreementError, match='replica=1, model=1 has another'
  ):
    gs.workers.check_agreement(fn(damage(x, 3)), x, P('model'), axes)


@pytest.mark.parametrize(
  'x',
  [
    lambda: jax.random.key(3),
    lambda: jnp.ones(3, jnp.complex64),
    lambda: jnp.ones(3, jnp.int4),
    lambda: jnp.ones(3, jnp.float8_e4m3fn),
  ],
)
def test_other_dtypes_have_bits_too(x):
  prints = jax.vmap(
    lambda _: gs.workers.fingerprint(x()), out_axes=None, axis_name=AXIS
  )(jnp.zeros(2))
  assert prints.shape == (2, 1) and prints[0] == prints[1] != 0


def test_a_tree_without_leaves_agrees():
  prints = jax.vmap(
    lambda _: gs.workers.fingerprint({}), out_axes=None, axis_name=AXIS
  )(jnp.zeros(2))
  gs.workers.check_agreement(prints, {})


def test_another_tree_is_refused():
  with pytest.raises(ValueError, match=r'1 leaves, got shape \(3, 2\)'):
    gs.workers.check_agreement(np.zeros((3, 2), np.uint32), {'a': 1.0})
  with pytest.raises(TypeError, match='axis_name'):
    gs.workers.check_agreement(np.zeros((3, 1)), {'a': 1.0}, P(), None)
