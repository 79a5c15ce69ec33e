"""A step of one worker in a shard_map of one's own."""

import functools
from typing import Any, NamedTuple

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
from tests.workers.regression import batches
from tests.workers.regression import loss_fn

AXIS = 'data'
PARAMS = {'w': jnp.ones((6, 4)), 'b': jnp.zeros(4)}
WORKERS = 3


def mesh_of(**axes):
  count = int(np.prod(list(axes.values())))
  return jax.make_mesh(
    tuple(axes.values()),
    tuple(axes),
    axis_types=(AxisType.Auto,) * len(axes),
    devices=jax.devices()[:count],
  )


MESH = mesh_of(data=WORKERS)


def optimizer():
  return optax.chain(
    gs.sign_majority(memory=True, axis_name=AXIS),
    optax.sgd(0.1, momentum=0.9),
  )


TX = optimizer()
STATE = gs.workers.init(TX, PARAMS, WORKERS, AXIS)
SPECS = gs.workers.specs(TX, PARAMS, WORKERS, AXIS)


def step(params, state, batch, tx=TX):
  assert batch['x'].shape[0] == 5  # a block of the batch, not a row of it
  loss, grads = jax.value_and_grad(loss_fn)(
    gs.workers.local(params, AXIS), batch
  )
  updates, state = tx.update(grads, state, params)
  params = optax.apply_updates(params, updates)
  return params, state, gs.workers.mean(loss, AXIS)


def wrapped(step=step, mesh=MESH, axis_name=AXIS, **kwargs):
  return gs.workers.wrap(
    step,
    mesh=mesh,
    axis_name=axis_name,
    **{
      'in_specs': (P(), SPECS, P(AXIS)),
      'out_specs': (P(), SPECS, P()),
      **kwargs,
    },
  )


def flat(batch):
  """One batch of all workers, as a loop of one's own has it."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


@functools.cache
def expected():
  """By `gs.workers.parallel`."""
  tx = optax.chain(
    gs.sign_majority(memory=True, axis_name=gs.workers.AXIS),
    optax.sgd(0.1, momentum=0.9),
  )

  def step(params, state, batch):
    own = gs.workers.local(params)
    grads = jax.grad(loss_fn)(own, batch)
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(tx, PARAMS, WORKERS)
  run = gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(P(), specs, P(gs.workers.AXIS)),
    out_specs=(P(), specs),
  )
  params, state = PARAMS, gs.workers.init(tx, PARAMS, WORKERS)
  for batch in batches(2):
    params, state = run(params, state, batch)
  return jax.device_get((params, state))


@pytest.mark.slow
@pytest.mark.parametrize('check_vma', [True, False])
def test_it_trains_as_parallel_does_and_gives_its_arguments_up(check_vma):
  train = jax.jit(wrapped(check_vma=check_vma), donate_argnums=(0, 1))
  place = lambda x, spec: jax.device_put(
    jnp.array(x), NamedSharding(MESH, spec)
  )
  params = jax.tree.map(lambda x: place(x, P()), PARAMS)
  state = jax.tree.map(place, STATE, SPECS)
  for batch in batches(2):
    before = params, state
    params, state, loss = train(params, state, flat(batch))
  chex.assert_trees_all_close((params, state), expected(), rtol=1e-5, atol=1e-6)
  assert loss.shape == ()
  given_up = before[0], before[1][0].memory
  assert all(x.is_deleted() for x in jax.tree.leaves(given_up))


class TrainState(NamedTuple):
  params: Any
  opt_state: Any


def test_state_may_be_part_of_a_larger_one():
  specs = TrainState(P(), SPECS)

  def one(state, batch):
    params, opt_state, _ = step(*state, batch)
    return TrainState(params, opt_state)

  fn = wrapped(one, in_specs=(specs, P(AXIS)), out_specs=specs)
  out = jax.eval_shape(fn, TrainState(PARAMS, STATE), flat(batches(1)[0]))
  chex.assert_trees_all_equal_shapes(out, TrainState(PARAMS, STATE))


def test_state_alone_comes_back_with_its_worker_axes():
  """Also the part of a chain that is no scheme's, but differs."""
  tx = optax.chain(optax.trace(0.9), TX)
  state = gs.workers.init(tx, PARAMS, WORKERS, AXIS)
  specs = gs.workers.specs(tx, PARAMS, WORKERS, AXIS)
  fn = wrapped(
    lambda state, batch: step(PARAMS, state, batch, tx)[1],
    in_specs=(specs, P(AXIS)),
    out_specs=specs,
  )
  out = jax.eval_shape(fn, state, flat(batches(1)[0]))
  chex.assert_trees_all_equal_shapes(out, state)


@pytest.mark.slow
def test_other_axes_of_the_mesh_stay_automatic():
  """Each replica has two devices; JAX may divide what they have to do.

  A step may say how: by a bare spec, or on the mesh inside of it.
  """
  mesh = mesh_of(data=WORKERS, fsdp=2)
  tx = optax.chain(
    gs.sharded(gs.sign_majority(memory=True, axis_name=AXIS), P()),
    optax.sgd(0.1, momentum=0.9),
  )

  def constrained(params, state, batch):
    inside = jax.sharding.get_abstract_mesh()
    constrain = jax.lax.with_sharding_constraint
    batch = {**batch, 'x': constrain(batch['x'], P(None, 'fsdp'))}
    params = constrain(params, NamedSharding(inside, P('fsdp')))
    return step(params, state, batch, tx)

  fn = jax.jit(wrapped(constrained, mesh=mesh))
  params, state = PARAMS, STATE
  for batch in batches(2):
    params, state, _ = fn(params, state, flat(batch))
  chex.assert_trees_all_close((params, state), expected(), rtol=1e-5, atol=1e-6)


def refused(match, fn, *args, error=ValueError):
  with pytest.raises(error, match=match):
    jax.eval_shape(fn, *args)


@pytest.mark.parametrize('spec', [P(AXIS), P(None, 'fsdp'), P(AXIS, 'fsdp')])
@pytest.mark.parametrize('named', [False, True])
def test_a_constraint_on_the_whole_mesh_is_told_how_to_be_written(spec, named):
  mesh = mesh_of(data=WORKERS, fsdp=2)
  where = NamedSharding(mesh, spec) if named else spec

  def constrained(params, batch):
    def loss(params):
      x = jax.lax.with_sharding_constraint(batch['x'], where)
      return jnp.sum(x @ params['w'])

    return jax.grad(loss)(gs.workers.local(params, AXIS))

  specs = dict(in_specs=(P(), P(AXIS)), out_specs=P(AXIS))
  fn = wrapped(constrained, mesh=mesh, **specs)
  args = PARAMS, flat(batches(1)[0])
  if spec == P(None, 'fsdp') and not named:
    jax.eval_shape(fn, *args)
    return
  refused(
    r"constraint inside the step names 'data'.*axis of the workers.*"
    r"spec alone: .*constraint\(x, P\(None, 'fsdp'\)\).*abstract_mesh",
    fn,
    *args,
  )


def test_other_errors_of_a_step_are_its_own():
  def failing(params, state, batch):
    raise ValueError('should be of type int')

  args = PARAMS, STATE, flat(batches(1)[0])
  refused('^should be of type int', wrapped(failing), *args)


def test_a_memory_under_no_axis_is_refused_where_types_are_not_checked():
  batch, alone = flat(batches(1)[0]), TX.init(PARAMS)
  everyone = dict(out_specs=(P(), P(), P()), check_vma=False)
  match = r'args\[1\].*memory.*its spec P.*says that it is the same on all'
  fn = wrapped(in_specs=(P(), P(), P(AXIS)), **everyone)
  refused(match, fn, PARAMS, alone, batch)
  match = r'output.*memory.*its spec P.*says that it is the same on all'
  refused(match, wrapped(**everyone), PARAMS, STATE, batch)


def test_sizes_are_checked():
  batch = flat(batches(1)[0])
  few = gs.workers.init(TX, PARAMS, 2, AXIS)
  match = (
    r'args\[1\].*has shape \(2, .*needs leading worker axes.*\(3, \.\.\.\)'
    '.*gs.workers.resize'
  )
  refused(match, wrapped(), PARAMS, few, batch)
  odd = jax.tree.map(lambda x: x[:14], batch)
  match = r"args\[2\]\['x'\] has shape \(14, 6\).*P\('data',?\).*3 equal parts"
  refused(match, wrapped(), PARAMS, STATE, odd)
  refused('3 equal parts', wrapped(), PARAMS, STATE, {'x': jnp.float32(1)})
  match = 'in_specs must have a spec for each argument, got 3 for 2'
  refused(match, wrapped(), PARAMS, STATE, error=TypeError)


def test_the_state_of_another_scheme_is_told_to_be_switched():
  dgc = gs.dgc(0.5, min_size=0, axis_name=AXIS)
  other = optax.chain(dgc, optax.sgd(0.1))
  state = gs.workers.init(other, PARAMS, WORKERS, AXIS)
  match = 'ResidualState for MomentumCorrectionState.*gs.switch'
  refused(match, wrapped(), PARAMS, state, flat(batches(1)[0]))


def test_what_lies_on_the_mesh_compiles_once():
  where = gs.workers.shardings(TX, PARAMS, MESH, AXIS)
  state = jax.device_put(STATE, where)
  params = jax.device_put(PARAMS, NamedSharding(MESH, P()))
  run = jax.jit(wrapped())
  for batch in batches(2):
    params, state, _ = run(params, state, flat(batch))
  assert run._cache_size() == 1


def test_what_differs_must_not_come_back_as_the_same():
  def own_loss(params, state, batch):
    return *step(params, state, batch)[:2], loss_fn(params, batch)

  match = r'output\[2\] differs between workers.*P\(\).*gs.workers.mean'
  args = PARAMS, STATE, flat(batches(1)[0])
  refused(match, wrapped(own_loss), *args)

  def averaged(params, state, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return params, TX.update(grads, state)[1], 0.0

  refused("summed over axis 'data'", wrapped(averaged), *args)


def test_arguments_are_checked():
  with pytest.raises(ValueError, match=r"axis of the mesh.*'data'.*got 'node'"):
    wrapped(axis_name='node')
  with pytest.raises(TypeError, match='mesh must be a Mesh, got dict'):
    wrapped(mesh={'data': 3})
  with pytest.raises(TypeError, match='in_specs must be a tuple'):
    wrapped(in_specs=P())
  with pytest.raises(ValueError, match="axes of the workers.*'data'.*'fsdp'"):
    wrapped(mesh=mesh_of(data=2, fsdp=2), out_specs=P('fsdp'))
  with pytest.raises(TypeError, match='step must be a function'):
    wrapped(None)
