"""Late messages: the updates of the scheme, one call later."""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests import schemes
from tests.between_sites.oracles import delayed as oracles
from tests.oracles import checks
from tests.replay import AXIS
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import simulated

WORKERS, STEPS = 3, 4


def run(tx, each, params, num_workers=WORKERS):
  """(updates, state) after each step, under vmap."""

  def step(state, grads):
    moments = jax.tree.map(jnp.square, grads)
    return tx.update(grads, state, second_moment=moments)

  state = gs.workers.stack(tx.init(params), num_workers)
  fn = jax.jit(jax.vmap(step, axis_name=AXIS))
  fn = fn.lower(state, each[0]).compile(replay.QUICKLY)
  out = []
  for grads in each:
    update, state = fn(state, grads)
    out.append(jax.tree.map(np.asarray, (update, state)))
  return out


@functools.cache
def drawn(name, count=STEPS):
  params = schemes.BY_NAME[name].params
  return [gradients(WORKERS, seed=t, params=params) for t in range(count)]


@pytest.mark.parametrize(
  'name', marks.few(['sign_memory', *schemes.FIRST_NAMES], 'sign_memory')
)
def test_the_same_updates_one_call_later(name):
  setting = schemes.BY_NAME[name]
  each = drawn(name)
  prompt = run(setting.make(), each[:-1], setting.params)
  late = run(gs.delayed(setting.make()), each, setting.params)
  (first, begun), *rest = late
  assert not any(np.any(x) for x in jax.tree.leaves(first))
  fresh = gs.workers.stack(setting.make().init(setting.params), WORKERS)
  for field in ('steps', 'memory', 'compressor', 'exchange'):
    jax.tree.map(
      np.testing.assert_array_equal,
      getattr(begun.scheme, field),
      getattr(fresh, field),
    )
  for (update, state), (expected, old) in zip(rest, prompt, strict=True):
    jax.tree.map(np.testing.assert_array_equal, update, expected)
    jax.tree.map(np.testing.assert_array_equal, state.scheme, old)
  jax.tree.map(np.testing.assert_array_equal, late[-1][1].gradient, each[-1])


@pytest.mark.parametrize('num_workers', marks.few([1, 3], 3))
def test_as_in_the_oracle_where_a_worker_is_not_finite(num_workers):
  oracle = oracles.Delayed(oracles.residual_top_k(0.3))
  tx = gs.gradient_dropping(0.3, scope='leaf', min_size=0, axis_name=AXIS)
  steps = [replay.draw(num_workers, seed=t) for t in range(8)]
  for t in (2, 3, 6):
    steps[t][t % num_workers][0].flat[0] = np.inf
  late = run(
    gs.delayed(tx), list(map(replay.stack, steps)), steps[0][0], num_workers
  )
  rejected = 0
  for t, (grads, (update, state)) in enumerate(zip(steps, late, strict=True)):
    expected = oracle.step(grads)
    for w, tree in enumerate(replay.unstack(update)):
      jax.tree.map(checks.close, tree, expected)
      # On its way here is the gradient itself, unless it is given up.
      if oracle.good[w]:
        memory = [x[w] for x in state.scheme.memory.pending()]
        held = [x[w] for x in state.gradient]
        both = oracles.add(memory, held)
        jax.tree.map(checks.close, both, oracle.pending[w])
    rejected += oracle.rejected
    assert state.scheme.stats.rejected_steps[0] == rejected, t
  assert rejected == 3


@pytest.mark.slow
def test_what_is_sent_does_not_depend_on_this_gradient():
  tx = gs.delayed(gs.dgc(0.1, axis_name=AXIS))
  state, fn = simulated(tx)
  _, state = fn(gradients(seed=0), state)
  outs = [fn(gradients(seed=s), state) for s in (1, 2)]
  (one, first), (two, second) = outs
  jax.tree.map(np.testing.assert_array_equal, one, two)
  jax.tree.map(np.testing.assert_array_equal, first.scheme, second.scheme)
  assert np.any(one['kernel'])


@pytest.mark.slow
def test_types_hold_on_a_mesh_and_resizing_keeps_the_gradient():
  tx = optax.chain(gs.delayed(gs.dgc(0.1, axis_name=AXIS)), optax.sgd(1.0))
  specs = gs.workers.specs(tx, PARAMS, WORKERS)

  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  fn = gs.workers.parallel(
    step,
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(gs.workers.params_spec(tx, PARAMS), specs, replay.OWN),
    out_specs=(gs.workers.params_spec(tx, PARAMS), specs),
  )
  params, state = PARAMS, gs.workers.init(tx, PARAMS, WORKERS)
  for t in range(2):
    params, state = fn(params, state, gradients(WORKERS, seed=t))
  assert np.any(params['kernel'])
  held = state[0].gradient
  for num_workers in (2, 6):
    state = gs.workers.resize(tx, state, num_workers, PARAMS)
    jax.tree.map(
      lambda new, old: np.testing.assert_allclose(
        np.mean(new, 0), np.mean(old, 0), atol=1e-6
      ),
      state[0].gradient,
      held,
    )


def test_updates_are_typed_equal_in_a_shard_map_of_ones_own():
  tx = optax.chain(gs.delayed(gs.dense(axis_name=AXIS)), optax.sgd(1.0))
  params = PARAMS | {'empty': jnp.zeros((0, 3))}
  specs = gs.workers.specs(tx, params, WORKERS)
  grads = jax.tree.map(lambda x: jnp.ones((WORKERS, *x.shape)), params)

  def steps(params, state, grads):
    def step(carry, _):
      params, state = carry
      updates, state = tx.update(grads, state, params)
      return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, state), length=2)[0]

  mesh = jax.make_mesh((WORKERS,), (AXIS,), axis_types=(AxisType.Auto,))
  fn = gs.workers.wrap(
    lambda params, state, grads: steps(
      params, state, jax.tree.map(lambda x: x[0], grads)
    ),
    mesh=mesh,
    axis_name=AXIS,
    in_specs=(P(), specs, P(AXIS)),
    out_specs=(P(), specs),
  )
  made, state = fn(params, gs.workers.init(tx, params, WORKERS), grads)
  np.testing.assert_array_equal(made['kernel'], params['kernel'] - 1)


@pytest.mark.parametrize('around', marks.few(['chain', 'optimizer'], 'chain'))
def test_a_rejected_gradient_is_skipped_once(around):
  scheme = gs.delayed(gs.gradient_dropping(1.0, min_size=0, axis_name=AXIS))
  if around == 'chain':
    tx = gs.skip_rejected(optax.chain(scheme, optax.sgd(1.0)))
  else:
    tx = optax.chain(scheme, gs.skip_rejected(optax.sgd(1.0)))
  state, fn = simulated(tx)
  zeros = []
  for t in range(5):
    grads = gradients(seed=t)
    if t == 1:
      grads['bias'][1, 0] = np.nan
    updates, state = fn(grads, state)
    zeros.append(not np.any(updates['kernel']))
    assert np.all(np.isfinite(updates['kernel']))
  assert zeros == [True, False, True, False, False]
  assert gs.metrics(state)['rejected_steps'] == 1


def test_the_plan_is_that_of_the_scheme():
  tx = gs.variance_based(2.0, axis_name=AXIS)
  params = {'kernel': jnp.zeros((300, 100))}
  plans = [gs.plan(x, params, 4) for x in (tx, gs.delayed(tx))]
  assert str(plans[0]) == str(plans[1])
  assert plans[1].every == 1


def test_a_schedule_is_planned_one_call_later():
  tx = gs.dgc(gs.schedules.dgc_warmup(0.02, 4), min_size=0, axis_name=AXIS)
  prompt, late = (gs.plan(x, PARAMS, 4) for x in (tx, gs.delayed(tx)))
  assert [s.first_step for s in prompt.stages] == [0, 2, 4]
  assert [s.first_step for s in late.stages] == [0, 3, 5]
  assert late.payload_bytes == prompt.payload_bytes
  sent, sent_late = (
    [gs.plan(x, PARAMS, 4, step=step).sent_bytes for step in range(6)]
    for x in (tx, gs.delayed(tx))
  )
  assert sent_late == [sent[0], *sent[:-1]]
  assert late.over_run(6).sent_bytes == pytest.approx(sum(sent_late) / 6)


@pytest.mark.slow
def test_gradients_keep_their_dtype():
  params = {'kernel': jnp.zeros(30, jnp.bfloat16)}
  tx = gs.delayed(gs.dense(axis_name=None))
  state = tx.init(params)
  grads = {'kernel': jnp.arange(30, dtype=jnp.bfloat16)}
  _, state = tx.update(grads, state)
  update, _ = tx.update(params, state)
  assert update['kernel'].dtype == jnp.bfloat16
  np.testing.assert_array_equal(update['kernel'], grads['kernel'])


def test_optax_maps_its_parameters():
  tx = gs.delayed(gs.dgc(0.1, axis_name=AXIS))
  marked = optax.tree.map_params(
    tx, lambda _: True, tx.init(PARAMS), transform_non_params=lambda _: False
  )
  assert all(jax.tree.leaves(marked.gradient)) and not marked.step


def test_a_switch_keeps_or_refuses_the_gradient_that_was_not_sent():
  scheme = gs.gradient_dropping(0.1, axis_name=None)
  old = optax.chain(gs.delayed(scheme), optax.sgd(0.1))
  grads = jax.tree.map(jnp.ones_like, PARAMS)
  _, state = old.update(grads, old.init(PARAMS))
  new = optax.chain(gs.delayed(scheme), optax.adam(0.1))
  there = gs.switch(old, new, state)[0]
  jax.tree.map(np.testing.assert_array_equal, there, state[0])
  moments = gs.variance_based(1.0, axis_name=None)
  for lacks in (scheme, gs.delayed(moments)):
    with pytest.raises(ValueError, match='no place for the gradient'):
      gs.switch(old, optax.chain(lacks, optax.sgd(0.1)), state)


@pytest.mark.parametrize(
  'act, error, words',
  [
    (lambda tx: gs.delayed(optax.sgd(1.0)), TypeError, 'optax.chain'),
    (lambda tx: tx.init({'w': jnp.zeros(3, int)}), TypeError, 'floating'),
    (
      lambda tx: tx.update(PARAMS, gs.dense(axis_name=None).init(PARAMS)),
      ValueError,
      'DelayedState',
    ),
    (
      lambda tx: tx.update({'w': jnp.zeros(3)}, tx.init(PARAMS)),
      ValueError,
      'gradients',
    ),
  ],
)
def test_it_refuses(act, error, words):
  with pytest.raises(error, match=words):
    act(gs.delayed(gs.dgc(0.1, axis_name=None)))
