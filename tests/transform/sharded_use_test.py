"""What `gs.sharded` refuses, what asks for it, and what stands around it."""

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests.replicas import MESHES
from tests.replicas import REPLICA
from tests.replicas import Program
from tests.replicas import beside_whole_leaves
from tests.replicas import check_copies
from tests.replicas import draw
from tests.replicas import mesh_of
from tests.schemes import example

# Chunks of ten elements lie inside of the shards.
SPECS = {'a': P('fsdp'), 'b': P(('fsdp', 'tp')), 'c': P()}
PARAMS = {'a': jnp.zeros((8, 5)), 'b': jnp.zeros((8, 5)), 'c': jnp.zeros(7)}
CHUNKS = dict(scope='chunk', chunk_size=10, min_size=0, axis_name=REPLICA)
COMPRESSING = tuple(name for name in gs.recipes.RECIPES if name != 'dense')


def dgc(density=0.2, **changes):
  return gs.dgc(density, **CHUNKS | changes)


def traced(tx, mesh, params=PARAMS, *, manual=(REPLICA,), **options):
  """One update, traced on a mesh where some axes are manual; not compiled."""
  state = tx.init(params)

  def step(grads):
    grads = gs.workers.local(grads, REPLICA)
    return tx.update(grads, state, second_moment=grads)[0]

  mapped = jax.shard_map(
    step,
    mesh=mesh,
    in_specs=P(),
    out_specs=P(),
    axis_names=set(manual),
    **options,
  )
  return jax.jit(mapped).lower(params)


# --- what it refuses --------------------------------------------------------


def test_it_takes_a_scheme_and_no_chain():
  chain = optax.chain(dgc(), optax.sgd(0.1))
  with pytest.raises(TypeError, match='inside a chain.*gs.sharded'):
    gs.sharded(chain, SPECS)


@pytest.mark.parametrize('specs', [{'a': 'fsdp'}, {'a': None}, 'fsdp', 3])
def test_specs_are_partition_specs(specs):
  with pytest.raises(TypeError, match='param_specs must be a tree of Part'):
    gs.sharded(dgc(), specs)


def test_no_parameters_are_sharded_over_the_axis_of_the_workers():
  with pytest.raises(ValueError, match="'replica', which is the axis of"):
    gs.sharded(dgc(), {'a': P(('fsdp', REPLICA))})
  with pytest.raises(ValueError, match="'replica', which is the axis of"):
    gs.sharded(dgc(axis_name=('node', REPLICA)), P(REPLICA))


@pytest.mark.parametrize(
  ('specs', 'message'),
  [
    ({'a': P(), 'b': P()}, 'prefix of the tree'),
    ({'a': P(), 'b': P(), 'x': P()}, 'prefix of the tree'),
    (SPECS | {'c': P(None, 'fsdp')}, r"at most the 1 dimensions of \['c'\]"),
  ],
)
def test_specs_fit_the_parameters(specs, message):
  with pytest.raises(ValueError, match=message):
    gs.sharded(dgc(), specs).init(PARAMS)


@pytest.mark.parametrize('check_vma', marks.few([True, False], True))
@pytest.mark.parametrize(
  ('specs', 'message'),
  [
    (SPECS | {'a': P('model')}, r"'a'.*'model'.*fsdp, tp"),
    (SPECS | {'c': P('tp')}, r"'c'.*7 elements in dimension 0.*evenly"),
    (SPECS | {'a': P(None, ('fsdp', 'tp'))}, r"'a'.*5 elements.*dimension 1"),
  ],
)
def test_specs_fit_the_mesh(specs, message, check_vma):
  tx = gs.sharded(dgc(), specs)
  with pytest.raises(ValueError, match=message):
    traced(tx, mesh_of(MESHES['2x2x2']), check_vma=check_vma)


@pytest.mark.parametrize('manual', [(REPLICA, 'fsdp'), tuple(MESHES['2x2x2'])])
def test_an_axis_of_param_specs_is_not_manual(manual):
  tx = gs.sharded(dgc(), SPECS)
  with pytest.raises(ValueError, match='is manual already.*axis_names'):
    traced(tx, mesh_of(MESHES['2x2x2']), manual=manual, check_vma=False)


@pytest.mark.parametrize('num_workers', [2, {REPLICA: 2, 'fsdp': 2}])
def test_a_plan_needs_the_sizes_of_all_axes(num_workers):
  tx = gs.sharded(dgc(), {'a': P('tp'), 'b': P(), 'c': P()})
  with pytest.raises(ValueError, match="num_workers must give.*without 'tp'"):
    gs.plan(tx, PARAMS, num_workers)


# --- without it -------------------------------------------------------------


@pytest.mark.parametrize('check_vma', marks.few([True, False], True))
@pytest.mark.parametrize('name', marks.few(COMPRESSING, 'dgc', 'power_sgd'))
def test_a_plain_scheme_between_replicas_asks_for_it(name, check_vma):
  tx = example(name, axis_name=REPLICA, min_size=0)
  with pytest.raises(ValueError, match=r'gs\.sharded\(tx, param_specs\)'):
    traced(tx, mesh_of(MESHES['2x2']), check_vma=check_vma)


def test_dense_runs_without_it():
  specs = {'a': P('fsdp'), 'b': P(None), 'c': P()}
  mesh = mesh_of(MESHES['2x2'])
  program = Program(
    gs.dense(axis_name=REPLICA), mesh, specs=specs, params=PARAMS
  )
  grads = draw(PARAMS, 2, seed=0)
  updates, _, _ = program(program.state, grads)
  mean = jax.tree.map(lambda g: np.mean(g, axis=0), grads)
  chex.assert_trees_all_close(updates, mean, rtol=1e-6)
  found = gs.audit(program.compiled, mesh)
  for c in found.collectives:  # nothing is gathered, whole leaves never cross
    if c.axes == (REPLICA,):
      assert c.nbytes <= sum(4 * n for n in (20, 40, 7, 1))
    else:
      assert c.axes == ('fsdp',) and c.kind == 'all_reduce' and c.nbytes <= 16


def runs_beside_an_axis_of_one(name):
  tx = example(name, axis_name=REPLICA, min_size=0, ladder=(1.0,))
  program = Program(
    tx, mesh_of({REPLICA: 2, 'fsdp': 1}), specs=P(), params=PARAMS
  )
  updates, _, state = program(program.state, draw(PARAMS, 2, seed=0))
  check_copies((updates, state))
  assert not np.any(state.stats.rejected_steps)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  ['gtopk', 'gradient_dropping', 'terngrad'],
)
def test_an_inner_axis_of_one_device_needs_nothing(name):
  runs_beside_an_axis_of_one(name)


@pytest.mark.slow
@pytest.mark.parametrize('name', gs.recipes.RECIPES)
def test_an_inner_axis_of_one_device_needs_nothing_for_any(name):
  runs_beside_an_axis_of_one(name)


def lowered_spmd(tx, mesh):
  """`jax.vmap(spmd_axis_name=...)` over replicas, in a plain jit."""
  state = gs.workers.stack(tx.init(PARAMS), 2)
  put = lambda tree: jax.tree.map(
    lambda x: jax.device_put(x, NamedSharding(mesh, P(REPLICA))), tree
  )
  step = lambda g, s: tx.update(g, s, second_moment=g)
  mapped = jax.vmap(step, axis_name=REPLICA, spmd_axis_name=REPLICA)
  grads = draw(PARAMS, 2, seed=0)
  with jax.set_mesh(mesh):
    return jax.jit(mapped).lower(put(grads), put(state))


@pytest.mark.parametrize('name', marks.few(COMPRESSING, 'dgc', 'power_sgd'))
def test_vmap_over_devices_never_sends_the_dense_gradient(name):
  tx = example(name, axis_name=REPLICA, min_size=0)
  with pytest.raises(ValueError, match=r'jax\.shard_map.*gs\.sharded'):
    lowered_spmd(tx, mesh_of(MESHES['2x2']))


def test_vmap_over_devices_refuses_sharded_schemes():
  tx = gs.sharded(dgc(), SPECS | {'b': P('fsdp')})
  with pytest.raises(ValueError, match=r'jax\.shard_map.*gs\.sharded'):
    lowered_spmd(tx, mesh_of(MESHES['2x2']))


# --- what stands around it --------------------------------------------------


def check_beside(make, *, rtol=0.0, specs=SPECS, params=PARAMS, **options):
  """`make(wrap)` on replicas is what it is on whole leaves.

  Args:
    make: given `gs.sharded` with its specs, or nothing to do, a chain.
    rtol: 0 means to the bit.
    specs: of the parameters.
    params: whole.
    **options: of the run.
  """
  sharded = lambda tx: gs.sharded(tx, specs)
  beside = beside_whole_leaves(
    make(sharded), make(lambda tx: tx), specs, params, **options
  )
  for updates, state, expected, plain in beside:
    chex.assert_trees_all_close(updates, expected, rtol=rtol, atol=rtol)
    chex.assert_trees_all_close(
      jax.tree.leaves(gs.pending(state)),
      jax.tree.leaves(gs.pending(plain)),
      rtol=rtol,
      atol=rtol,
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(state, plain)


@pytest.mark.slow
def test_in_a_chain_with_clipping_on_both_sides_and_a_warmup():
  schedule = gs.schedules.DensitySchedule(((0, 1.0), (1, 0.2)))

  def make(wrap):
    return optax.chain(
      gs.clip_local_norm(2.0, axis_name=REPLICA),
      wrap(dgc(schedule)),
      optax.clip_by_global_norm(1.0),
      optax.sgd(0.1),
    )

  check_beside(make, rtol=1e-6)


@pytest.mark.slow
def test_with_a_schedule_and_leaves_that_stay_dense():
  """These are whole, and travel by themselves: of them nothing is selected."""
  schedule = gs.schedules.DensitySchedule(((0, 1.0), (1, 0.2)))
  check_beside(lambda wrap: wrap(dgc(schedule, min_size=10)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('check_vma', [True, False])
def test_with_numbers_that_are_traced(check_vma):
  def make(wrap):
    factory = lambda density, momentum: wrap(
      gs.dgc(density, momentum=momentum, **CHUNKS)
    )
    return optax.inject_hyperparams(factory)(0.2, 0.9)

  check_beside(make, rtol=1e-6, check_vma=check_vma)


@pytest.mark.slow
def test_with_a_threshold_that_is_traced():
  def make(wrap):
    factory = lambda threshold: wrap(gs.strom(threshold, axis_name=REPLICA))
    return optax.inject_hyperparams(factory)(0.5)

  check_beside(make, rtol=1e-6, check_vma=False)


@pytest.mark.slow
def test_in_a_local_gradient():
  make = lambda wrap: gs.local_gradient(
    wrap(gs.gradient_dropping(0.2, **CHUNKS)), 'partial'
  )
  check_beside(make, rtol=1e-6, local_updates=True)


@pytest.mark.slow
def test_in_a_partition():
  labels = {'a': 'sparse', 'b': 'estimate', 'c': 'sparse'}

  def make(wrap):
    return optax.partition(
      {'sparse': wrap(dgc()), 'estimate': wrap(gs.ef21(0.2, **CHUNKS))}, labels
    )

  beside = beside_whole_leaves(
    make(lambda tx: gs.sharded(tx, SPECS)),
    make(lambda tx: tx),
    SPECS,
    PARAMS,
  )
  for updates, _, expected, _ in beside:
    chex.assert_trees_all_equal(updates, expected)


@pytest.mark.slow
def test_one_array_of_short_floats_in_donated_state():
  check_beside(
    lambda wrap: wrap(dgc()),
    specs=P(('fsdp', 'tp')),
    params=jnp.zeros((8, 5), jnp.bfloat16),
    dtype=jnp.bfloat16,
    donate=True,
  )


@pytest.mark.slow
@pytest.mark.parametrize('explicit', [True, False])
def test_one_spec_for_all_leaves(explicit):
  tx = gs.gradient_dropping(0.2, scope='leaf', min_size=0, axis_name=REPLICA)
  program = Program(
    gs.sharded(tx, P()),
    mesh_of(MESHES['2x2'], explicit=explicit),
    specs=P(),
    params=PARAMS,
  )
  grads = draw(PARAMS, 2, seed=0)
  mapped = jax.jit(jax.vmap(tx.update, axis_name=REPLICA))
  state = gs.workers.stack(tx.init(PARAMS), 2)
  compiled = mapped.lower(grads, state).compile(replay.QUICKLY)
  expected, _ = compiled(grads, state)
  updates, _, _ = program(program.state, grads)
  check_copies(updates)
  chex.assert_trees_all_equal(
    jax.device_get(updates), jax.tree.map(lambda x: np.asarray(x[0]), expected)
  )


@pytest.mark.slow
def test_switching_between_two():
  mesh = mesh_of(MESHES['2x2x2'])
  old = gs.sharded(gs.gradient_dropping(0.2, **CHUNKS), SPECS)
  new = gs.sharded(dgc(0.1), SPECS)
  first, second = (
    Program(tx, mesh, specs=SPECS, params=PARAMS) for tx in (old, new)
  )
  grads = draw(PARAMS, 2, seed=0)
  _, _, state = first(first.state, grads)
  switched = gs.switch(old, new, state)
  chex.assert_trees_all_equal(gs.pending(switched), gs.pending(state))
  updates, delivered, state = second(switched, grads)
  check_copies((updates, state))
  mean = jax.tree.map(lambda d: np.mean(d, axis=0), delivered)
  chex.assert_trees_all_close(updates, mean, rtol=1e-6)


def test_state_is_placed_as_the_scheme_was_told():
  """Shapes have no placement, and the param_specs of gs.sharded have one."""
  params = {
    'w': jax.ShapeDtypeStruct((64, 64), jnp.float32),
    'f': jax.ShapeDtypeStruct((64, 32), jnp.float32),
  }
  specs = {'w': P(None, 'fsdp'), 'f': P('fsdp')}
  mesh = jax.make_mesh(
    (2, 2),
    ('replica', 'fsdp'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  scheme = gs.sharded(gs.dgc(0.1, momentum=0.0, axis_name='replica'), specs)

  def placed(tx):
    where = gs.workers.shardings(tx, params, mesh, 'replica')
    return jax.tree.map(lambda x: x.spec, where)

  memory, (adam, _) = placed(optax.chain(scheme, optax.adam(0.1)))
  assert memory.memory.velocity == {
    'w': P('replica', None, 'fsdp'),
    'f': P('replica', 'fsdp'),
  }
  assert adam.mu == adam.nu == specs
  partition = optax.partition(
    {'train': scheme, 'freeze': optax.set_to_zero()},
    {'w': 'train', 'f': 'freeze'},
  )
  inner, (adam, _) = placed(optax.chain(partition, optax.adam(0.1)))
  memory = inner.inner_states['train'].inner_state.memory
  assert memory.velocity['w'] == P('replica', None, 'fsdp')
  assert adam.mu == {'w': P(None, 'fsdp'), 'f': P()}
