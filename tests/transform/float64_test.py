"""Gradients of float64: what stays dense is not rounded."""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay
from tests import schemes
from tests import simulation

AXIS = gs.workers.AXIS
WORKERS = 3
# Of which one leaf stays dense in most schemes.
SHAPES = {'kernel': (64, 40), 'bias': (11,)}


@pytest.fixture(autouse=True)
def _x64():
  with jax.enable_x64(True):
    yield


def numbers(dtype=np.float64):
  """Of each worker; those of the bias have no place in float32."""
  rng = np.random.default_rng(0)
  draw = lambda shape: rng.normal(size=(WORKERS, *shape)).astype(dtype)
  grads = {name: jnp.asarray(draw(shape)) for name, shape in SHAPES.items()}
  if dtype == np.float64:
    scale = np.array([1e-42, 1e39, *[1.0] * 9])
    grads['bias'] = grads['bias'] * scale
  return grads


def zeros(grads):
  return jax.tree.map(lambda g: jnp.zeros(g.shape[1:], g.dtype), grads)


def mapped(fn, *args):
  """What a function returns on each worker."""
  return simulation.quickly(jax.vmap(fn, axis_name=AXIS), *args)(*args)


def updated(tx, grads, params=None, **extra):
  """(update, state) after one step, of the first worker."""
  params = zeros(grads) if params is None else params

  def step(grads, extra):
    return tx.update(grads, tx.init(params), params, **extra)

  out = mapped(step, grads, extra)
  return jax.tree.map(lambda x: x[0], out)


def pmean(grads):
  mean = mapped(lambda g: jax.lax.pmean(g, AXIS), grads)
  return jax.tree.map(lambda x: x[0], mean)


def same(a, b):
  assert a.dtype == b.dtype
  np.testing.assert_array_equal(a, b)


def test_dense_is_pmean():
  grads = numbers()
  updates, state = updated(gs.dense(axis_name=AXIS), grads)
  jax.tree.map(same, updates, pmean(grads))
  elements = 64 * 40 + 11
  assert gs.metrics(state)['payload_bytes'] == 8 * elements


@pytest.mark.slow
@pytest.mark.parametrize('name', gs.recipes.RECIPES)
def test_leaves_that_stay_dense_are_pmean(name):
  tx = schemes.example(name, axis_name=AXIS, min_size=100, dense_paths='bias')
  params = zeros(numbers())
  layout = tx.layout(params)
  stays = "['bias']" in [layout.names[i] for i in layout.dense]
  if not stays and not tx.scheme.adds_leaves:
    pytest.skip('it compresses all leaves')
  grads = numbers()
  moments = jax.tree.map(jnp.square, jax.tree.map(lambda g: g * 0.1, grads))
  moments['bias'] = jnp.ones_like(moments['bias'])
  updates, state = updated(tx, grads, second_moment=moments)
  same(updates['bias'], pmean(grads)['bias'])
  assert updates['kernel'].dtype == jnp.float64
  assert np.isfinite(updates['kernel']).all()
  for x in jax.tree.leaves(state):
    assert x.dtype != jnp.float64 and np.isfinite(x).all()


@pytest.mark.slow
def test_the_momentum_of_dense_leaves_stays_finite():
  tx = gs.dgc(0.1, axis_name=AXIS)
  grads = numbers()
  params = zeros(grads)

  def steps(grads):
    state = tx.init(params)
    for _ in range(2):
      updates, state = tx.update(grads, state, params)
    return updates, state

  updates, state = mapped(steps, grads)
  mean = pmean(grads)['bias']
  np.testing.assert_allclose(updates['bias'][0, 2:], 1.9 * mean[2:], rtol=1e-6)
  assert np.isfinite(updates['bias']).all()
  momentum = optax.tree.get(state, 'momentum')['bias']
  assert momentum.dtype == jnp.float32 and np.isfinite(momentum).all()


@pytest.mark.slow
@pytest.mark.parametrize(
  'tx', [gs.dense(axis_name=AXIS), gs.dgc(0.1, axis_name=AXIS)], ids=repr
)
def test_plan_metrics_and_program_agree(tx):
  grads = numbers()
  params = zeros(grads)
  specs = gs.workers.specs(tx, params, WORKERS)
  run = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state, params),
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(P(AXIS), specs),
    out_specs=(P(), specs),
  )
  state = gs.workers.init(tx, params, WORKERS)
  compiled = run.lower(grads, state).compile(replay.QUICKLY)
  updates, state = compiled(grads, state)
  np.testing.assert_array_equal(updates['bias'], pmean(grads)['bias'])
  plan = gs.plan(tx, params, WORKERS)
  bias = [row for row in plan.rows if row.name == "['bias']"]
  assert [row.payload_bytes for row in bias] == [88]
  assert plan.dense_bytes == 4 * (64 * 40 + 11)
  assert gs.audit(compiled).sent_bytes == pytest.approx(plan.sent_bytes, abs=64)
  assert gs.metrics(state)['sent_bytes'] == pytest.approx(
    plan.sent_bytes, abs=64
  )


def test_leaves_of_both_types_share_no_bytes():
  params = {'a': jnp.zeros(10, jnp.float64), 'b': jnp.zeros(10, jnp.float32)}
  plan = gs.plan(gs.dense(axis_name=AXIS), params, WORKERS)
  assert [row.payload_bytes for row in plan.rows] == [80, 40]


@pytest.mark.slow
def test_what_is_around_dense_keeps_it():
  grads = numbers()
  mean = pmean(grads)
  dense = gs.dense(axis_name=AXIS)
  clip = gs.clip_local_norm(1e300, axis_name=AXIS)
  updates, _ = updated(optax.chain(clip, dense), grads)
  jax.tree.map(same, updates, mean)
  updates, _ = updated(gs.local_gradient(dense, mode='partial'), grads)
  jax.tree.map(same, updates, mean)
  params = zeros(grads)
  tx = gs.accumulate(dense, every=2)

  def twice(grads):
    _, state = tx.update(grads, tx.init(params), params)
    return tx.update(grads, state, params)[0]

  updates = mapped(twice, grads)
  jax.tree.map(lambda u, m: same(u[0], m), updates, mean)
  averaged = mapped(
    lambda p: gs.periodic_average(p, (), 1, every=1, axis_name=AXIS)[0], grads
  )
  jax.tree.map(lambda u, m: same(u[0], m), averaged, mean)


@pytest.mark.slow
def test_compressed_leaves_are_of_float32():
  grads = {'kernel': numbers()['kernel']}
  narrow = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
  tx = gs.dgc(0.1, axis_name=AXIS)
  wide, state = updated(tx, grads)
  expected, _ = updated(tx, narrow)
  same(wide['kernel'], expected['kernel'].astype(jnp.float64))
  assert gs.pending(state)['kernel'].dtype == jnp.float32
  text = ' '.join(gs.compressed_mean.__doc__.split())
  assert 'of float64 (`jax_enable_x64`) the last 29 bits are rounded' in text
