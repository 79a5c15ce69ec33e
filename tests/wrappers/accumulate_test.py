"""Several mini-steps, one exchange: beside a replay in NumPy."""

import functools
import warnings

import gradsparse as gs
from gradsparse.collectives import ReplicationError
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay
from tests.oracles import checks
from tests.oracles import gradient_dropping
from tests.replay import AXIS
from tests.replay import OWN
from tests.simulation import PARAMS
from tests.simulation import quickly

DENSITY, LEARNING_RATE, MOMENTUM = 0.1, 0.5, 0.9


def dropping(axis_name=AXIS):
  return gs.gradient_dropping(DENSITY, axis_name=axis_name)


def whole_chain(axis_name=AXIS):
  sgd = optax.sgd(LEARNING_RATE, momentum=MOMENTUM)
  return optax.chain(dropping(axis_name), optax.apply_if_finite(sgd, 3))


def program(tx, num_workers, runner='simulate'):
  """(compiled (grads, state) -> (each worker's update, state), state)."""
  params = [np.zeros(s, np.float32) for s in replay.SHAPES]
  specs = gs.workers.specs(tx, params, num_workers)
  state = replay.stacked(tx.init(params), specs, num_workers)

  def step(grads, state):
    updates, state = tx.update(grads, state, params)
    return updates, updates, state

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=(OWN, specs),
    out_specs=(gs.workers.params_spec(tx, params), OWN, specs),
    check_vma=runner == 'shard_map',
  )
  grads = replay.stack(replay.draw(num_workers, seed=0))
  if runner == 'shard_map':
    fn = fn.lower(grads, state).compile(replay.QUICKLY)
  return fn, state


@functools.cache
def chain_program(num_workers, every, runner):
  return program(gs.accumulate(whole_chain(), every=every), num_workers, runner)


def rounds(num_workers, every, count=2):
  """gradients[round][mini-step][worker][leaf]."""
  return [
    [replay.draw(num_workers, seed=every * t + i) for i in range(every)]
    for t in range(count)
  ]


def all_zero(tree):
  return not any(np.any(x) for x in jax.tree.leaves(tree))


# --- values -----------------------------------------------------------------


@pytest.mark.parametrize(
  'runner, num_workers, every',
  [
    pytest.param('simulate', 3, 4, marks=pytest.mark.slow),
    pytest.param('pmap', 1, 3, marks=pytest.mark.slow),
    ('shard_map', 2, 2),
  ],
)
def test_the_mean_of_several_gradients_is_exchanged_once(
  runner, num_workers, every
):
  fn, state = chain_program(num_workers, every, runner)
  oracle = gradient_dropping.GradientDropping(DENSITY)
  velocity = [np.zeros(s) for s in replay.SHAPES]
  planned = gs.plan(
    whole_chain(), list(map(jnp.zeros, replay.SHAPES)), num_workers
  )
  for done, steps in enumerate(rounds(num_workers, every)):
    for number, grads in enumerate(steps, 1):
      _, updates, state = fn(replay.stack(grads), state)
      assert state.mini_step.reshape(-1)[0] == number % every
      assert state.gradient_step.reshape(-1)[0] == done + number // every
      sent = float(gs.metrics(state)['sent_bytes'])
      if number < every:
        assert all_zero(updates) and sent == 0
    assert sent == planned.sent_bytes
    mean = [
      [np.mean(leaf, axis=0) for leaf in zip(*of_worker, strict=True)]
      for of_worker in zip(*steps, strict=True)
    ]
    got = oracle.step(mean)
    velocity = [MOMENTUM * v + g for v, g in zip(velocity, got, strict=True)]
    for of_worker in replay.unstack(updates):
      for u, v in zip(of_worker, velocity, strict=True):
        checks.close(u, -LEARNING_RATE * v)
    for w, owed in enumerate(replay.unstack(gs.pending(state))):
      for mine, wanted in zip(owed, oracle.pending[w], strict=True):
        checks.close(mine, wanted)
    assert all_zero(state.mean)


@pytest.mark.slow
def test_values_are_those_of_multi_steps():
  inner = optax.chain(gs.dgc(0.1, min_size=0, axis_name=None), optax.sgd(0.1))
  both = [optax.MultiSteps(inner, 3), gs.accumulate(inner, every=3)]
  grads = [replay.draw(1, seed=t)[0] for t in range(6)]
  out = []
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    for tx in both:
      state = tx.init(grads[0])
      fn = quickly(tx.update, grads[0], state)
      found = []
      for g in grads:
        updates, state = fn(g, state)
        found.append(updates)
      out.append(found)
  for one, other in zip(*map(jax.tree.leaves, out), strict=True):
    checks.close(one, other)


def test_one_in_one_is_the_transformation_itself():
  inner = whole_chain(None)
  tx = gs.accumulate(inner, every=1)
  assert (tx.init, tx.update) == (inner.init, inner.update)
  assert isinstance(
    gs.accumulate(optax.scale(2.0), every=1),
    optax.GradientTransformationExtraArgs,
  )


def test_a_nan_in_any_mini_step_spoils_its_round_and_no_other():
  fn, state = chain_program(2, 2, 'shard_map')
  healthy, poisoned = rounds(2, 2)
  poisoned[0][1][0][0, 0, 0] = np.nan  # in the first mini-step, on worker 1
  for steps, rejected in ((healthy, 0), (poisoned, 1), (healthy, 1)):
    for grads in steps:
      _, updates, state = fn(replay.stack(grads), state)
    assert gs.metrics(state)['rejected_steps'] == rejected
    assert all_zero(updates) == (steps is poisoned)  # by apply_if_finite
    assert all(np.all(np.isfinite(u)) for u in updates)
    assert all_zero(state.mean)


def test_a_mean_that_is_finite_does_not_overflow_on_its_way():
  tx = gs.accumulate(optax.sgd(1.0), every=4)
  grads = {'w': jnp.full(3, 3e38)}
  state = tx.init(grads)
  for _ in range(4):
    updates, state = tx.update(grads, state)
  np.testing.assert_allclose(updates['w'], -3e38, rtol=1e-6)


def test_low_precision_is_summed_in_float32():
  tx = gs.accumulate(optax.sgd(1.0), every=4)
  state = tx.init({'w': jnp.zeros(2, jnp.bfloat16)})
  for g in (256, 1, 1, 1):  # in bfloat16, 256 + 1 is 256
    updates, state = tx.update({'w': jnp.full(2, g, jnp.bfloat16)}, state)
    assert updates['w'].dtype == jnp.bfloat16
  assert state.mean['w'].dtype == jnp.float32
  np.testing.assert_array_equal(np.float32(updates['w']), -65.0)


def test_updates_have_the_dtype_that_the_chain_gives_them():
  tx = gs.accumulate(
    optax.chain(gs.dense(axis_name=None), optax.add_decayed_weights(0.5)),
    every=2,
  )
  params = {'w': jnp.ones(2)}
  state = tx.init(params)
  for expected in (0.0, 1.5):
    grads = {'w': jnp.ones(2, jnp.bfloat16)}
    updates, state = tx.update(grads, state, params)
    assert updates['w'].dtype == jnp.float32
    np.testing.assert_array_equal(updates['w'], expected)


# --- second moments, and other keywords -------------------------------------


@pytest.mark.slow
def test_second_moments_are_those_of_all_examples():
  """Two batches of four examples are one batch of eight."""
  variance = gs.variance_strom(2.0, threshold=0.1, axis_name=None)
  tx = gs.accumulate(variance, every=2)
  examples = np.float32(np.random.default_rng(0).normal(size=(8, 30)))
  params = {'w': jnp.zeros(30)}
  moments_of = jax.jit(
    gs.value_and_grad_moments(lambda p, x: jnp.vdot(p['w'], x))
  )
  _, grads, moments = moments_of(params, examples)
  wanted, after = quickly(
    lambda g, m, state: variance.update(g, state, second_moment=m),
    grads,
    moments,
    variance.init(params),
  )(grads, moments, variance.init(params))
  state = tx.init(params)
  fn = quickly(
    lambda g, m, state: tx.update(g, state, second_moment=m),
    grads,
    moments,
    state,
  )
  for batch in (examples[:4], examples[4:]):
    _, grads, moments = moments_of(params, batch)
    updates, state = fn(grads, moments, state)
  checks.close(updates['w'], wanted['w'])
  checks.close(state.inner.memory.variance['w'], after.memory.variance['w'])
  assert all_zero(state.second_moment)

  # A positive one that follows does not hide a negative one.
  for sign in (-1, 1):
    updates, state = fn(grads, {'w': sign * moments['w']}, state)
  assert np.all(np.isnan(updates['w']))
  assert gs.metrics(state)['rejected_steps'] == 1
  with pytest.raises(ValueError, match='needs the second moment'):
    tx.update(grads, state)


def test_who_does_not_ask_for_moments_keeps_none():
  state = gs.accumulate(whole_chain(None), every=2).init(PARAMS)
  assert state.second_moment == ()
  twice = gs.accumulate(
    gs.accumulate(optax.chain(gs.variance_based(1.0, axis_name=None)), every=2),
    every=2,
  )
  assert set(twice.init(PARAMS).second_moment) == set(PARAMS)


def test_other_keywords_are_those_of_the_last_call():
  def update(updates, state, params=None, *, value, **extra):
    del params, extra
    return jax.tree.map(lambda u: u * value, updates), state

  scaled = optax.GradientTransformationExtraArgs(
    lambda params: optax.EmptyState(), update
  )
  tx = gs.accumulate(scaled, every=2)
  state = tx.init({'w': jnp.ones(2)})
  for value in (7.0, 3.0):
    updates, state = tx.update({'w': jnp.ones(2)}, state, value=value)
  np.testing.assert_array_equal(updates['w'], 3.0)


# --- bytes ------------------------------------------------------------------


def test_a_program_exchanges_in_a_branch_only():
  fn, _ = chain_program(2, 2, 'shard_map')
  audit = gs.audit(fn)
  params = list(map(jnp.zeros, replay.SHAPES))
  planned = gs.plan(gs.accumulate(whole_chain(), every=2), params, 2)
  assert audit.collectives == () and audit.fixed_bytes == 0
  assert audit.branches == ((0, planned.sent_bytes),)
  assert planned.sent_bytes > 0


def test_a_plan_is_that_of_the_last_call_and_says_so():
  inner = whole_chain()
  plain, seldom = (
    gs.plan(gs.accumulate(inner, every=k), PARAMS, 2) for k in (1, 4)
  )
  assert plain == gs.plan(inner, PARAMS, 2)
  assert (plain.every, seldom.every) == (1, 4)
  assert seldom.payload_bytes == plain.payload_bytes
  assert seldom.sent_by_axis == plain.sent_by_axis
  said = '\nin one of 4 updates; nothing in the others'
  assert str(seldom) == str(plain) + said
  average = seldom.over_run(10)  # two exchanges
  assert average.sent_bytes == 2 * plain.sent_bytes / 10
  assert average.ratio == pytest.approx(5 * plain.ratio)
  assert seldom.over_run(3).ratio == np.inf
  twice = gs.accumulate(gs.accumulate(inner, every=2), every=3)
  assert gs.plan(twice, PARAMS, 2).every == 6


@pytest.mark.slow
def test_the_stages_of_a_plan_count_exchanges():
  schedule = gs.schedules.DensitySchedule(((0, 0.5), (2, 0.1)))
  tx = gs.gradient_dropping(schedule, axis_name=AXIS)
  plain = gs.plan(tx, PARAMS, 2)
  seldom = gs.plan(gs.accumulate(tx, every=3), PARAMS, 2)
  assert seldom.stages == plain.stages
  assert 'exchanges  density' in str(seldom)
  total = plain.over_run(4).payload_bytes * 4
  assert seldom.over_run(12).payload_bytes == pytest.approx(total / 12)


def test_a_plan_of_some_schemes_that_accumulate_is_refused():
  tx = optax.partition(
    {'a': gs.accumulate(dropping(), every=4), 'b': gs.dense(axis_name=AXIS)},
    {'kernel': 'a', 'bias': 'b'},
  )
  with pytest.raises(ValueError, match='once in 4 updates, others once in 1'):
    gs.plan(tx, PARAMS, 2)


# --- with the rest of the library -------------------------------------------


@pytest.mark.slow
def test_local_gradients_inside():
  tx = gs.accumulate(
    optax.chain(gs.local_gradient(dropping()), optax.adam(0.1)), every=2
  )
  out = []
  for runner in ('simulate', 'shard_map'):
    fn, state = program(tx, 2, runner)
    for t in range(2):
      updates, _, state = fn(replay.stack(replay.draw(2, seed=t)), state)
      assert all_zero(updates) == (t == 0)
    out.append(jax.tree.leaves((updates, state)))
  for one, other in zip(*out, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
  assert np.any(updates[0][0] != updates[0][1])


def test_a_periodic_average_leaves_unfinished_rounds_alone():
  tx = gs.accumulate(gs.local_gradient(dropping()), every=2)
  state = gs.workers.stack(tx.init(PARAMS), 2)
  own = jax.tree.map(
    lambda x: x + jnp.arange(2.0).reshape(2, *[1] * (x.ndim - 1)), state.mean
  )
  params, after = jax.vmap(
    lambda p, s: gs.periodic_average(p, s, 4, every=4, axis_name=AXIS),
    axis_name=AXIS,
  )(own, state._replace(mean=own))
  np.testing.assert_array_equal(params['bias'], 0.5)
  jax.tree.map(np.testing.assert_array_equal, after.mean, own)


def test_a_switch_keeps_what_is_pending_and_an_unfinished_round():
  old, new = (
    gs.accumulate(optax.chain(scheme, optax.sgd(0.5, 0.9)), every=4)
    for scheme in (dropping(), gs.dgc(0.1, min_size=0, axis_name=AXIS))
  )
  other = gs.accumulate(gs.dgc(0.1, min_size=0, axis_name=AXIS), every=2)
  state = gs.workers.init(old, PARAMS, 2)
  ones = jax.tree.map(jnp.ones_like, state.mean)
  owed = state.inner[0]._replace(memory=type(state.inner[0].memory)(ones))
  state = state._replace(mean=ones, inner=(owed, *state.inner[1:]))
  switched = gs.switch(old, new, state)
  jax.tree.map(np.testing.assert_array_equal, switched.mean, ones)
  jax.tree.map(np.testing.assert_array_equal, gs.pending(switched), ones)
  for tx, words in (
    (gs.dgc(0.1, min_size=0, axis_name=AXIS), 'no place for the gradients of'),
    (other, 'must have every=4 as tx_old within a round .* got 2'),
  ):
    with pytest.raises(ValueError, match=words):
      gs.switch(old, tx, state)
  # Another optimizer inside keeps the round.
  plain = gs.accumulate(gs.dgc(0.1, min_size=0, axis_name=AXIS), every=4)
  switched = gs.switch(old, plain, state)
  jax.tree.map(np.testing.assert_array_equal, switched.mean, ones)
  done = state._replace(mean=jax.tree.map(jnp.zeros_like, state.mean))
  shapes = lambda tree: [x.shape for x in jax.tree.leaves(tree)]
  fresh = gs.workers.init(other, PARAMS, 2)
  assert shapes(gs.switch(old, other, done)) == shapes(fresh)


@pytest.mark.slow
def test_two_levels():
  tx = gs.accumulate(
    optax.chain(gs.dense(axis_name='device'), dropping('node')), every=2
  )
  mesh = jax.make_mesh(
    (2, 2),
    ('node', 'device'),
    axis_types=(AxisType.Auto,) * 2,
    devices=jax.devices()[:4],
  )
  both = ('node', 'device')

  def own(scheme, axis):
    return jax.tree.map(
      lambda x, local: gs.workers.local(x, axis) if local else x,
      scheme,
      ownership.is_local(scheme),
    )

  def two(grads):
    grads = grads[0, 0]
    state = tx.init(grads)
    state = state._replace(
      mean=gs.workers.local(state.mean, both),
      inner=tuple(map(own, state.inner, ('device', 'node'))),
    )
    first, state = tx.update(grads, state)
    second, _ = tx.update(3 * grads, state)
    return first, second

  grads = np.float32(np.random.default_rng(0).normal(size=(2, 2, 20)))
  specs = dict(in_specs=(P(*both),), out_specs=(P(), P()))
  for check_vma in (True, False):
    fn = jax.shard_map(two, mesh=mesh, check_vma=check_vma, **specs)
    first, second = jax.jit(fn)(grads)
    assert all_zero(first) and np.any(second)
  oracle = gradient_dropping.GradientDropping(DENSITY)
  (wanted,) = oracle.step([[2 * g.mean(axis=0)] for g in grads])
  checks.close(second, wanted)


# --- what is refused --------------------------------------------------------


def test_gradients_that_were_averaged_already_are_refused():
  tx = gs.accumulate(dropping(), every=2)
  specs = gs.workers.specs(tx, PARAMS, 2)
  fn = gs.workers.parallel(
    lambda g, state: tx.update(gs.workers.mean(g), state),
    runner='simulate',
    num_workers=2,
    in_specs=(OWN, specs),
    out_specs=(P(), specs),
  )
  state = gs.workers.init(tx, PARAMS, 2)
  with pytest.raises(ReplicationError, match='already summed'):
    jax.eval_shape(fn, gs.workers.stack(PARAMS, 2), state)


def test_wrong_states_and_gradients():
  tx = gs.accumulate(dropping(None), every=2)
  state = tx.init(PARAMS)
  with pytest.raises(ValueError, match='its own init returned.*got Compressed'):
    tx.update(PARAMS, state.inner)
  with pytest.raises(ValueError, match=r"gradients.*\['bias'\] is missing"):
    tx.update({'kernel': PARAMS['kernel']}, state)
  with pytest.raises(TypeError, match='gradients.*int32'):
    tx.update(jax.tree.map(jnp.int32, PARAMS), state)
  with pytest.raises(ValueError, match=r'mini_step must have .* got \(2,\)'):
    tx.update(PARAMS, gs.workers.stack(state, 2))
