"""The same collectives in all surroundings: four runners, and the recorder."""

import functools

import gradsparse as gs
from gradsparse.backend import platforms
from gradsparse.collectives import Comm
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

AXIS = 'workers'
WORKERS = 3
MODES = ('simulated', 'manual', 'checked', 'pmapped')


def tree_of(w):
  """What worker w brings: small and large leaves, integers, empties."""
  return {
    'a': jnp.arange(3.0) + 10 * w,
    'b': jnp.float32(w),
    'large': jnp.full(1 << 16, w, jnp.float32),
    'words': jnp.arange(2, dtype=jnp.uint32) + w.astype(jnp.uint32),
    'empty': jnp.zeros((0, 2)) + w,
  }


def everything(_):
  """All that a worker can ask of the others, once."""
  comm = Comm(AXIS)
  w = comm.index()
  tree = tree_of(w)
  floats = {k: tree[k] for k in ('a', 'b')}
  agreed = {
    'sum': comm.sum(tree),
    'mean': comm.mean(floats),
    'max': comm.max(floats),
    'mixed_max': comm.max({k: tree[k] for k in ('a', 'words')}),
    'gathered': comm.gather(tree['a']),
    'uniform': comm.uniform(jnp.int32(7) + 0 * w),
    'vouched': comm.replicated(0 * w),
  }
  own = {
    'index': w,
    'shifted': comm.permute(tree['a'], [(0, 1), (1, 2), (2, 0)]),
    'partial': comm.permute(tree['a'], [(2, 0)]),
    'swapped': comm.permute(floats, [(0, 1), (1, 0)]),
    'transposed': comm.all_to_all(10 * w + jnp.arange(WORKERS)),
  }
  assert comm.size == WORKERS
  own['mode'] = jnp.int32(('simulated', 'manual', 'checked').index(comm.mode))
  return agreed, comm.local(own)


@functools.cache
def outcome(mode):
  """(agreed, own) with a leading worker axis on all of own."""
  lanes = jnp.zeros(WORKERS)
  if mode == 'simulated':
    agreed, own = jax.jit(jax.vmap(everything, axis_name=AXIS))(lanes)
    for x in jax.tree.leaves(agreed):
      np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))
    return jax.tree.map(lambda x: np.asarray(x[0]), agreed), own
  devices = jax.devices()[:WORKERS]
  if mode == 'pmapped':
    return jax.pmap(
      everything, axis_name=AXIS, devices=devices, out_axes=(None, 0)
    )(lanes)

  def inside(lane):
    agreed, own = everything(lane)
    return agreed, jax.tree.map(lambda x: x[None], own)

  mesh = Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))
  # That P() is accepted for what is agreed is part of the test.
  mapped = jax.shard_map(
    inside,
    mesh=mesh,
    in_specs=P(AXIS),
    out_specs=(P(), P(AXIS)),
    check_vma=mode == 'checked',
  )
  return jax.jit(mapped)(lanes)


@pytest.mark.parametrize('mode', MODES)
def test_every_runner_is_recognised(mode):
  _, own = outcome(mode)
  expected = ('simulated', 'manual', 'checked', 'manual')[MODES.index(mode)]
  assert {
    ('simulated', 'manual', 'checked')[m] for m in own['mode'].tolist()
  } == {expected}
  assert own['index'].tolist() == [0, 1, 2]


@pytest.mark.parametrize('mode', MODES)
def test_reductions(mode):
  agreed, _ = outcome(mode)
  each = [
    jax.tree.map(np.asarray, tree_of(jnp.int32(w))) for w in range(WORKERS)
  ]
  for name, total in agreed['sum'].items():
    expected = sum(tree[name] for tree in each)
    np.testing.assert_array_equal(total, expected)
    assert total.dtype == each[0][name].dtype
    assert total.shape == each[0][name].shape
  np.testing.assert_allclose(agreed['mean']['a'], [10, 11, 12])
  assert agreed['mean']['b'] == 1
  np.testing.assert_array_equal(agreed['max']['a'], [20, 21, 22])
  assert agreed['max']['b'] == 2
  np.testing.assert_array_equal(agreed['mixed_max']['words'], [2, 3])
  assert agreed['mixed_max']['words'].dtype == np.uint32
  assert agreed['uniform'] == 7


@pytest.mark.parametrize('mode', MODES)
def test_messages(mode):
  agreed, own = outcome(mode)
  a = np.arange(3.0) + 10 * np.arange(3)[:, None]
  np.testing.assert_array_equal(agreed['gathered'], a)
  np.testing.assert_array_equal(own['shifted'], a[[2, 0, 1]])
  # Where nothing arrives there are zeros.
  np.testing.assert_array_equal(own['partial'], [a[2], 0 * a[0], 0 * a[0]])
  np.testing.assert_array_equal(own['swapped']['a'], [a[1], a[0], 0 * a[0]])
  np.testing.assert_array_equal(own['swapped']['b'], [1, 0, 0])
  rows = 10 * np.arange(3) + np.arange(3)[:, None]
  np.testing.assert_array_equal(own['transposed'], rows)


SWAPS = [(0, 2), (1, 3), (2, 0), (3, 1)]


@pytest.mark.parametrize(
  'perm, gathered',
  [
    (SWAPS, True),
    ([(0, 1), (1, 2), (2, 3), (3, 0)], False),  # nobody swaps
    ([(0, 1), (1, 0), (2, 2), (3, 3)], False),  # not all do
    ([(0, 1), (1, 0)], False),
    ([(3, 0)], False),
  ],
)
@pytest.mark.parametrize('checked', [True, False])
def test_processes_on_cpus_swap_by_gathering_pairs(
  monkeypatch, perm, gathered, checked
):
  mesh = Mesh(
    np.asarray(jax.devices()[:4]), (AXIS,), axis_types=(AxisType.Auto,)
  )

  def run(on_gloo):
    monkeypatch.setattr(platforms, 'sends_by_gloo', lambda: on_gloo)
    program = jax.jit(
      jax.shard_map(
        lambda x: Comm(AXIS).permute(x, perm),
        mesh=mesh,
        in_specs=P(AXIS),
        out_specs=P(AXIS),
        check_vma=checked,
      )
    )
    words = jnp.arange(12, dtype=jnp.uint32)
    compiled = program.lower(words).compile()
    return compiled(words), gs.audit(compiled)

  (expected, plain), (found, audited) = run(False), run(True)
  np.testing.assert_array_equal(found, expected)
  assert {c.kind for c in plain.collectives} == {'permute'}
  kind = 'all_gather' if gathered else 'permute'
  assert {c.kind for c in audited.collectives} == {kind}
  assert audited.sent_bytes == plain.sent_bytes == 12


def test_one_worker_talks_to_nobody():
  comm = Comm(None)
  assert (comm.mode, comm.size) == ('single', 1)
  tree = {'a': jnp.arange(3.0), 'b': jnp.float32(2)}
  for same in (comm.sum, comm.max, comm.mean, comm.local, comm.replicated):
    out = same(tree)
    np.testing.assert_array_equal(out['a'], tree['a'])
    assert out['b'] == 2
  assert comm.index() == 0
  np.testing.assert_array_equal(comm.gather(tree['a']), tree['a'][None])
  x = tree['a'][None]
  np.testing.assert_array_equal(comm.all_to_all(x), x)
  comm.check_local(tree)
  assert comm.uniform(jnp.int32(4)) == 4


def test_an_unknown_axis_is_a_name_error():
  with pytest.raises(NameError, match='nowhere'):
    jax.vmap(lambda x: Comm('nowhere').index() + x, axis_name=AXIS)(jnp.ones(2))


def test_check_local_names_the_leaf_that_is_equal_everywhere():
  def step(own, shared):
    comm = Comm(AXIS)
    comm.check_local({'own': own, 'cast': comm.local(shared)})
    with pytest.raises(ValueError, match=r"\['shared'\].*already summed"):
      comm.check_local({'own': own, 'shared': shared})
    return own

  mesh = Mesh(
    np.asarray(jax.devices()[:2]), (AXIS,), axis_types=(AxisType.Auto,)
  )
  mapped = jax.shard_map(
    step, mesh=mesh, in_specs=(P(AXIS), P()), out_specs=P(AXIS)
  )
  jax.eval_shape(mapped, jnp.ones(2), jnp.ones(2))


# (what to call, bytes that each of three workers sends)
SENT = {
  'sum': (lambda c: c.sum(jnp.ones(6)), [32, 32, 32]),  # ring: 2 (P-1)/P 24
  'max': (lambda c: c.max(jnp.ones(6)), [32, 32, 32]),
  'gather': (lambda c: c.gather(jnp.ones(6)), [48, 48, 48]),
  'all_to_all': (lambda c: c.all_to_all(jnp.ones((3, 3))), [24, 24, 24]),
  'permute': (lambda c: c.permute(jnp.ones(6), [(2, 0), (1, 1)]), [0, 0, 24]),
  'words': (lambda c: c.gather(jnp.zeros(2, jnp.uint8)), [4, 4, 4]),
  'nothing': (lambda c: c.sum({}), None),
}


@pytest.mark.parametrize('call, expected', SENT.values(), ids=SENT)
def test_the_recorder_counts_and_performs_nothing(call, expected):
  recorder = counting.Recorder(WORKERS)
  with counting.recording(recorder):
    comm = Comm(AXIS)
    assert (comm.mode, comm.size) == ('recorded', WORKERS)
    jax.eval_shape(lambda: call(comm))
  assert recorder.sent.get(AXIS) == expected
  assert recorder.most_sent == max(expected or [0])
  assert counting.active() is None


@pytest.mark.parametrize('call, expected', SENT.values(), ids=SENT)
def test_what_is_performed_is_counted_in_the_same_way(call, expected):
  seen = []

  def step(x):
    comm = Comm(AXIS)
    comm.gather(x)
    with comm.tally.apart():
      call(comm)
      seen.append(comm.tally.sent.get(AXIS))
    with jax.ensure_compile_time_eval():
      seen.append(int(comm.tally.most_sent))
    return x

  jax.eval_shape(jax.vmap(step, axis_name=AXIS), jnp.ones(WORKERS))
  assert seen == [expected, 2 * 4]


def test_small_leaves_travel_together_and_not_too_many_at_once():
  sizes = [3] * 100 + [0] + [1 << 16] + [60_000, 6_000] + [1] * 20

  def run(w):
    leaves = [jnp.arange(n, dtype=jnp.float32) + w for n in sizes]
    return Comm(AXIS).sum(leaves)

  lanes = jnp.arange(float(WORKERS))
  for n, x in zip(sizes, jax.vmap(run, axis_name=AXIS)(lanes), strict=True):
    expected = WORKERS * np.arange(n) + lanes.sum()
    np.testing.assert_array_equal(x, np.broadcast_to(expected, x.shape))

  traced = jax.make_jaxpr(run, axis_env=[(AXIS, WORKERS)])(jnp.float32(0))
  sums = [e for e in traced.eqns if e.primitive.name.startswith('psum')]
  # One that is large; 64 small ones, 36 and the 60,000; the rest.
  large = [1 << 16, 64 * 3, 36 * 3 + 60_000, 6_000 + 20]
  assert [x.aval.size for e in sums for x in e.invars] == large


@pytest.mark.slow
def test_simulated_workers_of_two_axes_send_as_those_of_one():
  """`jax.vmap` has some collectives over one axis only."""
  rows = np.arange(6 * 6 * 2, dtype=np.float32).reshape(6, 6, 2)
  around = [(w, (w + 1) % 6) for w in range(6)]

  def within(axes):
    def sends(x):
      comm = Comm(axes)
      return (
        comm.gather(x),
        comm.permute(x, around),
        comm.permute(x, [(5, 0), (2, 3)]),
        comm.all_to_all(x),
        comm.uniform(x[0, 0]),
        comm.index(),
      )

    return sends

  expected = jax.vmap(within(AXIS), axis_name=AXIS)(rows)
  inner = jax.vmap(within(('node', 'device')), axis_name='device')
  got = jax.vmap(inner, axis_name='node')(rows.reshape(2, 3, 6, 2))
  got = jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), got)
  jax.tree.map(np.testing.assert_array_equal, got, expected)
