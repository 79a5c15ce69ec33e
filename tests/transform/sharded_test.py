"""Every scheme on leaves that are sharded inside of a worker: `gs.sharded`."""

import functools
from typing import NamedTuple

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.replicas import MESHES
from tests.replicas import REPLICA
from tests.replicas import SPECS
from tests.replicas import Program
from tests.replicas import axes_of
from tests.replicas import beside_whole_leaves
from tests.replicas import check_copies
from tests.replicas import devices_of
from tests.replicas import draw
from tests.replicas import mesh_of
from tests.replicas import params_on
from tests.replicas import piece
from tests.replicas import pieces
from tests.replicas import places
from tests.replicas import specs_on
from tests.schemes import example

# Arguments with which small leaves have something to leave out. Every example
# takes those that it knows.
SMALL = dict(
  scope='leaf',
  min_size=0,
  density=0.2,
  threshold=1.0,
  ladder=(1.0,),
  bin_size=8,
)
# Messages of two sizes cost another branch to compile: one scheme stands for
# all that have them.
SIZES = (0.3, 1.0)
# Outside of the slow tests this one stands for all.
SHORT = ('gradient_dropping',)
# They select from all leaves together.
JOINED = ('gtopk', 'qsgd_descent')
CASES = tuple(name for name in gs.recipes.RECIPES if name not in JOINED)
# What they send is drawn.
DRAWN = ('qsgd', 'terngrad', 'random_k')
# They approximate whole leaves.
WHOLE = ('power_sgd',)
SHARD_BY_SHARD = tuple(c for c in CASES if c not in DRAWN + WHOLE)


def marked(cases):
  """The recipes; most are slow tests."""
  return [
    pytest.param(c, marks=() if c in SHORT else pytest.mark.slow) for c in cases
  ]


STEPS = 2


def make(name, **changes):
  return example(name, axis_name=REPLICA, **SMALL | changes)


class Run(NamedTuple):
  """A few steps of a program; everything as it lies on the devices."""

  program: Program
  specs: dict[str, P]
  sizes: dict[str, int]
  grads: list
  updates: list
  delivered: list
  states: list


def run_of(tx, mesh_name, check_vma=True, steps=STEPS):
  sizes = MESHES[mesh_name]
  specs, params = specs_on(sizes), params_on(sizes)
  program = Program(
    gs.sharded(tx, specs),
    mesh_of(sizes),
    specs=specs,
    params=params,
    check_vma=check_vma,
  )
  out = Run(program, specs, sizes, [], [], [], [program.state])
  for t in range(steps):
    out.grads.append(draw(params, sizes[REPLICA], seed=t))
    updates, delivered, state = program(out.states[-1], out.grads[-1])
    out.updates.append(updates)
    out.delivered.append(delivered)
    out.states.append(state)
  return out


@functools.cache
def ran(case):
  """Each recipe once, on replicas of two by two devices, types checked."""
  ladder = SIZES if case == 'strom' else (1.0,)
  return run_of(make(case, ladder=ladder), '2x2x2')


@pytest.fixture(autouse=True, scope='module')
def _forget():
  yield
  ran.cache_clear()


def plain_on_pieces(tx, run):
  """(updates, state) of each step of the plain scheme on all devices' pieces.

  A group of leaves that are divided over the same axes is its own tree.
  Arrays have leading axes of pieces and of replicas.
  """

  def step(grads, state):
    moments = jax.tree.map(jnp.square, grads)
    return tx.update(grads, state, second_moment=moments)

  steps = [pieces(g, run.specs, run.sizes) for g in run.grads]
  grads = [jax.tree.map(lambda *x: np.stack(x), *parts) for parts in steps]
  params = jax.tree.map(lambda x: jnp.zeros(x.shape[2:]), grads[0])
  state = gs.workers.stack(tx.init(params), run.sizes[REPLICA])
  state = gs.workers.stack(state, len(steps[0]))
  mapped = jax.vmap(jax.vmap(step, axis_name=REPLICA))
  compiled = jax.jit(mapped).lower(grads[0], state).compile(replay.QUICKLY)
  for g in grads:
    updates, state = compiled(g, state)
    yield jax.device_get((updates, state))


def check_shards(tx, run):
  """Updates and memories are those of the plain scheme on the pieces."""
  steps = zip(
    run.updates, run.states[1:], plain_on_pieces(tx, run), strict=True
  )
  for updates, state, (plain_updates, plain) in steps:
    pairs = [(updates, plain_updates)]
    pairs += zip(trees(state.memory), trees(plain.memory), strict=True)
    for tree, expected in pairs:
      tree = with_replicas(jax.device_get(tree), run)
      for number, own in enumerate(pieces(tree, run.specs, run.sizes)):
        chex.assert_trees_all_equal(
          own, jax.tree.map(lambda x, n=number: x[n], expected)
        )


def with_replicas(tree, run):
  """With an axis of replicas, if all of them share the tree."""
  params, size = run.program.params, run.sizes[REPLICA]
  return {
    k: np.stack([x] * size) if x.ndim == params[k].ndim else x
    for k, x in tree.items()
  }


def trees(memory):
  """The fields of a memory that are arrays shaped like parameters."""
  fields = [x for x in memory if isinstance(x, dict)]
  return [x for x in fields if all(map(is_array, x.values()))]


def is_array(x):
  return isinstance(x, jax.Array | np.ndarray)


# --- values -----------------------------------------------------------------


@pytest.mark.parametrize('name', JOINED)
def test_what_selects_from_all_leaves_together_refuses(name):
  tx = example(name, axis_name=REPLICA)
  with pytest.raises(ValueError, match='scope='):
    gs.sharded(tx, P())


@pytest.mark.parametrize('factory', [gs.dgc, gs.gradient_dropping, gs.ef21])
def test_global_scope_refuses(factory):
  with pytest.raises(ValueError, match="scope='leaf'.*'chunk' or 'tile'"):
    gs.sharded(factory(0.1, scope='global', axis_name=REPLICA), SPECS)


@pytest.mark.parametrize('case', marked(SHARD_BY_SHARD))
def test_a_scheme_does_with_a_shard_what_it_does_with_a_leaf(case):
  check_shards(make(case), ran(case))


@pytest.mark.parametrize('case', marked(CASES))
def test_all_copies_have_the_same_bits(case):
  run = ran(case)
  for updates, state in zip(run.updates, run.states[1:], strict=True):
    check_copies(updates)
    # The memory of whole leaves is the same on all devices of a replica, and
    # so are counts.
    check_copies(state)


@pytest.mark.parametrize('case', marked(CASES))
def test_the_update_is_the_mean_of_what_was_delivered(case):
  if case in ('dgc', 'ef21'):
    pytest.skip('their update is not this mean: momentum, estimates')
  run = ran(case)
  for updates, delivered in zip(run.updates, run.delivered, strict=True):
    mean = jax.tree.map(lambda d: np.mean(d, axis=0), delivered)
    chex.assert_trees_all_close(updates, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('case', marked(CASES))
def test_nothing_is_lost(case):
  run = ran(case)
  if not run.states[0].owes() or case in ('dgc', 'ef21'):
    pytest.skip('owes nothing, or other than gradient')
  for t in range(STEPS):
    before, after = map(gs.pending, run.states[t : t + 2])
    chex.assert_trees_all_close(
      jax.tree.map(np.add, before, run.grads[t]),
      jax.tree.map(np.add, run.delivered[t], after),
      rtol=1e-5,
      atol=1e-5,
    )


@pytest.mark.slow
@pytest.mark.parametrize('name', marks.few(DRAWN, 'qsgd', 'random_k'))
def test_every_group_and_every_shard_draws_for_itself(name):
  # All pieces have the same shape, the same number in their message, and the
  # same gradient.
  specs = {'a': P('fsdp'), 'b': P(), 'c': P('tp'), 'd': P(('fsdp', 'tp'))}
  params = {
    'a': jnp.zeros((4, 40)),
    'b': jnp.zeros((2, 40)),
    'c': jnp.zeros((4, 40)),
    'd': jnp.zeros((8, 40)),
  }
  one = np.random.default_rng(0).normal(size=(2, 40)).astype(np.float32)
  grads = jax.tree.map(
    lambda p: np.broadcast_to(
      np.tile(one, (p.shape[0] // 2, 1)), (2, *p.shape)
    ),
    params,
  )
  sizes = MESHES['2x2x2']
  program = Program(
    gs.sharded(make(name), specs), mesh_of(sizes), specs=specs, params=params
  )
  _, delivered, _ = program(program.state, grads)
  seen = {}
  for leaf, spec in specs.items():
    axes = axes_of(spec)
    for at in places(axes, sizes):
      own = piece(delivered[leaf], spec, sizes, at)
      # random_k's workers draw together, by design.
      for replica in range(1 if name == 'random_k' else 2):
        where = (leaf, replica, *at.values())
        twin = seen.setdefault(own[replica].tobytes(), where)
        assert twin == where
  check_copies(delivered)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'mesh', 'check_vma'),
  [
    ('one_bit_sgd', '2x2', False),
    ('one_bit_sgd', '4x2', False),
    ('sign_majority', '2x4', True),
  ],
)
def test_other_meshes(name, mesh, check_vma):
  run = run_of(make(name), mesh, check_vma)
  check_shards(make(name), run)
  check_copies((run.updates, run.states))


# --- state ------------------------------------------------------------------


def no_trailing_none(spec):
  spec = tuple(spec)
  while spec and spec[-1] is None:
    spec = spec[:-1]
  return spec


@pytest.mark.parametrize('case', marked(CASES))
def test_state_is_that_of_the_plain_scheme_sharded_like_the_parameters(case):
  run = ran(case)
  state = run.states[-1]
  plain = gs.workers.init(make(case), run.program.params, 2, REPLICA)
  chex.assert_trees_all_equal_structs(state, plain)
  chex.assert_trees_all_equal_shapes_and_dtypes(state, plain)
  for tree in trees(state.memory):
    for name, x in tree.items():
      shared = x.ndim == run.program.params[name].ndim
      wanted = (*(() if shared else (REPLICA,)), *run.specs[name])
      assert no_trailing_none(x.sharding.spec) == no_trailing_none(wanted)
  for x in [state.steps, *state.stats]:
    assert no_trailing_none(x.sharding.spec) in ((), (REPLICA,))


@pytest.mark.parametrize('case', marked(CASES))
def test_state_can_be_read(case):
  run = ran(case)
  state, params = run.states[-1], run.program.params
  pending = gs.pending(state)
  stacked = state.owes()
  chex.assert_trees_all_equal_shapes(
    pending, gs.workers.stack(params, 2) if stacked else params
  )
  metrics = gs.metrics(state)
  planned = gs.plan(run.program.tx, run.program.params, run.sizes)
  assert metrics['rejected_steps'] == 0
  assert metrics['payload_bytes'] <= planned.payload_bytes
  assert metrics['sent_bytes'] <= planned.sent_by_axis[REPLICA]
  if not planned.rungs:
    assert metrics['payload_bytes'] == planned.payload_bytes
    assert metrics['sent_bytes'] == planned.sent_by_axis[REPLICA]
  # Of all devices of a replica.
  delivered = run.delivered[-1]
  if case not in (*WHOLE, 'ef21'):
    elements = sum(p.size for p in jax.tree.leaves(params))
    sent = sum(np.count_nonzero(d) for d in delivered.values()) / 2
    assert sent <= metrics['sent_elements'] <= elements


# --- bytes ------------------------------------------------------------------


def check_bytes(run, merged=0):
  mesh = run.program.mesh
  found = gs.audit(run.program.compiled, mesh)
  planned = gs.plan(run.program.tx, run.program.params, run.sizes).sent_by_axis
  across = found.sent_by_axis
  assert planned[REPLICA] == across[REPLICA] + merged
  assert set(planned) == {axis for axis, sent in across.items() if sent}
  inner = [axis for axis in across if axis != REPLICA]
  assert sum(planned[a] for a in inner) == sum(across[a] for a in inner)


def collectives(found):
  """All of an audit, with those of all branches."""
  yield from found.collectives
  for branches in found.conditionals:
    for branch in branches:
      yield from collectives(branch)


@pytest.mark.parametrize('case', marked(CASES))
def test_a_plan_is_what_the_program_moves(case):
  # TernGrad's words of health, one of each group, are equal, and XLA sends one
  # of the three.
  check_bytes(ran(case), merged=8 if case == 'terngrad' else 0)


@pytest.mark.parametrize('case', marked(c for c in CASES if c != 'power_sgd'))
def test_inside_of_a_replica_travel_scalars_only(case):
  run = ran(case)
  found = gs.audit(run.program.compiled, run.program.mesh)
  for c in collectives(found):
    if c.axes != (REPLICA,):
      assert REPLICA not in c.axes
      assert c.kind == 'all_reduce' and c.nbytes <= 16, c


@pytest.mark.parametrize('case', marked(WHOLE))
def test_inside_of_a_replica_travel_small_factors(case):
  run = ran(case)
  found = gs.audit(run.program.compiled, run.program.mesh)
  sharded = [x for k, x in run.program.params.items() if axes_of(run.specs[k])]
  for c in collectives(found):
    if c.axes != (REPLICA,):
      assert REPLICA not in c.axes
      gathered = c.nbytes * (c.workers if c.kind == 'all_gather' else 1)
      assert gathered < min(x.nbytes for x in sharded)


# --- faults -----------------------------------------------------------------


def check_rejected(run, grads, moments=None):
  """A step is rejected on all devices, and the next one is not."""
  before = run.states[-1]
  updates, delivered, state = run.program(before, grads, moments)
  for x in jax.tree.leaves(updates):
    for _, _, values in devices_of(x):
      assert np.all(np.isnan(values))
  assert not any(np.any(x) for x in jax.tree.leaves(delivered))
  for _, _, count in devices_of(state.stats.rejected_steps):
    assert count == 1
  chex.assert_tree_all_finite(jax.device_get(state))
  check_copies(state)
  updates, _, state = run.program(state, run.grads[0])
  chex.assert_tree_all_finite(jax.device_get((updates, state)))
  assert np.all(np.asarray(state.stats.rejected_steps) == 1)
  check_copies((updates, state))


@pytest.mark.parametrize('case', marked(CASES))
@pytest.mark.parametrize('leaf', ['both', 'whole'])
def test_one_shard_that_is_not_finite_rejects_the_step_everywhere(case, leaf):
  run = ran(case)
  grads = dict(run.grads[0])
  grads[leaf] = grads[leaf].at[1, -1, -1].set(np.nan)
  check_rejected(run, grads)


@pytest.mark.parametrize('case', marked(['variance_based', 'variance_strom']))
def test_a_negative_second_moment_in_one_shard_rejects_the_step(case):
  run = ran(case)
  moments = jax.tree.map(jnp.square, run.grads[0])
  moments['rows'] = moments['rows'].at[0, 0, 0].set(-1.0)
  check_rejected(run, run.grads[0], moments)


# --- the whole leaf ---------------------------------------------------------


def check_chunks(factory):
  specs = {'a': P('fsdp'), 'b': P(('fsdp', 'tp'), None), 'c': P(), 'd': P('tp')}
  params = {
    'a': jnp.zeros((8, 5)),
    'b': jnp.zeros((8, 5)),
    'c': jnp.zeros((3, 7)),
    'd': jnp.zeros((20, 2, 3)),
  }

  def check(updates, state, expected, plain):
    chex.assert_trees_all_equal(updates, expected)
    chex.assert_trees_all_equal(state.memory, plain.memory)
    chex.assert_trees_all_equal(state.steps, plain.steps)
    np.testing.assert_array_equal(
      state.stats.sent_elements, plain.stats.sent_elements
    )

  tx = factory(0.2, scope='chunk', chunk_size=10, min_size=0, axis_name=REPLICA)
  beside = beside_whole_leaves(gs.sharded(tx, specs), tx, specs, params)
  for updates, state, expected, plain in beside:
    check(updates, state, expected, plain)


@pytest.mark.slow
@pytest.mark.parametrize('factory', [gs.dgc, gs.gradient_dropping, gs.ef21])
def test_chunks_inside_of_shards_are_those_of_whole_leaves(factory):
  check_chunks(factory)


@pytest.mark.slow
def test_power_sgd_approximates_whole_leaves():
  specs = {
    'bias': P('fsdp'),
    'both': P('fsdp', 'tp'),
    'columns': P(None, 'fsdp'),
    'columns2': P(None, ('tp', 'fsdp')),
    'filter': P('tp', 'fsdp', None),
    'rows': P('fsdp'),
    'rows2': P(('fsdp', 'tp'), None),
    'whole': P(),
  }
  params = {
    'bias': jnp.zeros(6),
    'both': jnp.zeros((12, 10)),
    'columns': jnp.zeros((7, 12)),
    'columns2': jnp.zeros((7, 12)),
    'filter': jnp.zeros((6, 4, 5)),
    'rows': jnp.zeros((12, 7)),
    'rows2': jnp.zeros((4, 9)),  # each device has fewer rows than the rank
    'whole': jnp.zeros((6, 7)),
  }

  def check(updates, state, expected, plain):
    chex.assert_trees_all_close(updates, expected, rtol=1e-5, atol=1e-5)
    chex.assert_trees_all_close(
      state.memory, plain.memory, rtol=1e-5, atol=1e-5
    )
    assert not np.any(state.stats.rejected_steps)

  tx = gs.power_sgd(2, axis_name=REPLICA)
  beside = beside_whole_leaves(gs.sharded(tx, specs), tx, specs, params)
  for updates, state, expected, plain in beside:
    check(updates, state, expected, plain)


# --- all of it --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
  'mesh, check_vma', [*((mesh, True) for mesh in MESHES), ('2x2x2', False)]
)
@pytest.mark.parametrize('name', CASES)
def test_every_recipe_on_every_mesh(name, mesh, check_vma):
  run = run_of(make(name, ladder=SIZES), mesh, check_vma)
  check_copies((run.updates, run.states))
  if name in SHARD_BY_SHARD and mesh != '4x2':
    # The order in which four numbers are added up is the backend's.
    check_shards(make(name), run)
  check_bytes(
    run, merged={'2x2x2': 8, '4x2': 6}.get(mesh, 4) * (name == 'terngrad')
  )
  grads = dict(run.grads[0])
  grads['rows'] = grads['rows'].at[1, -1, -1].set(np.nan)
  check_rejected(run, grads)
