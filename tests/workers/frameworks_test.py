"""Other people's loops: their trees, their optimizers, their saving."""

import functools

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

AXIS = gs.workers.AXIS
WORKERS = 2
OWN = P(AXIS)
# Nested, with slashes in its names, as Haiku has it; a small one in bfloat16.
PARAMS = {
  'mlp/~/linear_0': {'w': jnp.ones((6, 4)), 'b': jnp.zeros(4, jnp.bfloat16)},
  'mlp/~/linear_1': {'w': jnp.ones((4, 2), jnp.bfloat16)},
}
TX = optax.chain(
  gs.random_k(0.3, memory=True, axis_name=AXIS), optax.sgd(0.1, momentum=0.9)
)


@jax.checkpoint
def hidden(layer, x):
  return jnp.tanh(x @ layer['w'] + layer['b'])


def loss_fn(params, batch):
  x = hidden(params['mlp/~/linear_0'], batch)
  return jnp.mean((x @ params['mlp/~/linear_1']['w'] - 1) ** 2)


def batch_of(seed):
  draw = np.random.default_rng(seed).normal
  return draw(size=(WORKERS, 5, 6)).astype(np.float32)


@functools.cache
def program(runner):
  """(params, state, batch) -> (params, state), and what it starts from."""

  def step(params, state, batch):
    own = gs.workers.local(params)
    updates, state = TX.update(jax.grad(loss_fn)(own, batch), state, params)
    return optax.apply_updates(params, updates), state

  specs = gs.workers.specs(TX, PARAMS, WORKERS)
  run = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=WORKERS,
    in_specs=(P(), specs, OWN),
    out_specs=(P(), specs),
    donate_argnums=(0, 1),
  )
  copy = functools.partial(jax.tree.map, jnp.array)
  return run, lambda: (copy(PARAMS), gs.workers.init(TX, PARAMS, WORKERS))


@functools.cache
def trained(runner, steps):
  run, start = program(runner)
  held = start()
  for seed in range(steps):
    held = run(*held, batch_of(seed))
  return jax.device_get(held)


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_nested_names_bfloat16_and_rematerialisation(runner):
  params, state = trained(runner, 3)
  chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)
  owed = gs.pending(state)
  assert all(x.dtype == np.float32 for x in jax.tree.leaves(owed))
  assert all(np.any(x) for x in jax.tree.leaves(owed))
  chex.assert_trees_all_close(
    params, trained('simulate', 3)[0], rtol=1e-2, atol=1e-2
  )


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_orbax_saves_and_restores(runner, tmp_path):
  """What is restored goes on to the same bits, wherever it was made."""
  ocp = pytest.importorskip('orbax.checkpoint')
  run, start = program(runner)
  held = start()
  for seed in range(2):
    held = run(*held, batch_of(seed))
  with ocp.StandardCheckpointer() as saver:
    saver.save(tmp_path / 'at_2', held)
    saver.wait_until_finished()
  if runner == 'simulate':
    alone = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    where = jax.tree.map(lambda _: alone, held)
  else:
    mesh = jax.make_mesh(
      (WORKERS,), (AXIS,), (AxisType.Auto,), devices=jax.devices()[:WORKERS]
    )
    where = (
      jax.tree.map(lambda _: NamedSharding(mesh, P()), PARAMS),
      gs.workers.shardings(TX, PARAMS, mesh),
    )
  like = jax.tree.map(
    lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), held, where
  )
  with ocp.StandardCheckpointer() as saver:
    restored = saver.restore(tmp_path / 'at_2', like)
  chex.assert_trees_all_equal(run(*restored, batch_of(2)), trained(runner, 3))


@pytest.mark.slow
def test_nnx_optimizer():
  """As a pytree of arrays; and by nnx.Optimizer inside of the step."""
  nnx = pytest.importorskip('flax.nnx')
  rngs = nnx.Rngs(0)
  model = nnx.Sequential(
    nnx.Linear(6, 4, rngs=rngs),
    nnx.BatchNorm(4, use_bias=False, use_scale=False, rngs=rngs),
  )
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  params, rest = nnx.as_pure((params, rest))
  specs = gs.workers.specs(TX, params, WORKERS)

  def loss_of(model, batch):
    return jnp.mean((model(batch) - 1) ** 2)

  def plain(params, state, batch):
    def loss(params):
      return loss_of(nnx.merge(graph, params, rest), batch)

    grads = jax.grad(loss)(gs.workers.local(params))
    updates, state = TX.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  def by_optimizer(params, state, batch):
    own = nnx.merge(graph, gs.workers.local(params), rest)
    grads = nnx.grad(loss_of)(own, batch)
    model = nnx.merge(graph, params, rest)
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)
    nnx.update(optimizer.opt_state, nnx.state(state))
    optimizer.update(model, grads)
    return (
      nnx.as_pure(nnx.state(model, nnx.Param)),
      nnx.as_pure(optimizer.opt_state),
    )

  results = []
  for step in (plain, by_optimizer):
    run = gs.workers.parallel(
      step,
      runner='shard_map',
      num_workers=WORKERS,
      in_specs=(P(), specs, OWN),
      out_specs=(P(), specs),
    )
    held = params, gs.workers.init(TX, params, WORKERS)
    for seed in range(2):
      held = run(*held, batch_of(seed))
    results.append(held)
  assert jax.tree.structure(results[0]) == jax.tree.structure(results[1])
  chex.assert_trees_all_close(*results, rtol=1e-6)
  assert np.any(gs.pending(results[1][1])['layers'][0]['kernel'])


@pytest.mark.slow
def test_boxed_parameters():
  """Linen's, which hold the names of the axes that they are sharded over."""
  nn = pytest.importorskip('flax.linen')
  mesh = jax.make_mesh(
    (WORKERS, 2),
    (AXIS, 'model'),
    (AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  kernel = nn.with_partitioning(nn.initializers.ones, (None, 'model'))
  model = nn.Dense(4, kernel_init=kernel)
  batch = batch_of(0).reshape(-1, 6)
  shapes = jax.eval_shape(model.init, jax.random.key(0), batch)
  scheme = gs.random_k(0.3, memory=True, axis_name=AXIS)
  tx = optax.chain(
    gs.sharded(scheme, nn.get_partition_spec(shapes)),
    optax.sgd(0.1, momentum=0.9),
  )
  init = jax.jit(model.init, out_shardings=nn.get_sharding(shapes, mesh))
  params = init(jax.random.key(0), batch)

  def step(params, state, batch):
    loss = lambda params: jnp.mean((model.apply(params, batch) - 1) ** 2)
    grads = jax.grad(loss)(gs.workers.local(params))
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  where = gs.workers.shardings(tx, params, mesh)
  specs = gs.workers.specs(tx, params, WORKERS)
  state = jax.device_put(gs.workers.init(tx, params, WORKERS), where)
  train = gs.workers.wrap(
    step, mesh=mesh, in_specs=(P(), specs, OWN), out_specs=(P(), specs)
  )
  out = jax.eval_shape(train, params, state, batch)
  chex.assert_trees_all_equal_shapes_and_dtypes(out, (params, state))
  # Behind the axis of the workers, which a box does not know.
  memory = nn.unbox(gs.pending(state))['params']['kernel']
  assert memory.shape == (WORKERS, 6, 4)
  for x, spec in (
    (memory, P(AXIS, None, 'model')),
    (nn.unbox(state[1][0].trace)['params']['kernel'], P(None, 'model')),
  ):
    assert x.sharding == NamedSharding(mesh, spec)
