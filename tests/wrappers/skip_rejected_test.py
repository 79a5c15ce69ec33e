"""A rejected step passes, and leaves the optimizer what it was."""

import functools

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests.replay import AXIS
from tests.replay import OWN
from tests.replicas import MESHES
from tests.replicas import REPLICA
from tests.replicas import Program
from tests.replicas import check_copies
from tests.replicas import draw
from tests.replicas import mesh_of
from tests.simulation import PARAMS
from tests.simulation import gradients
from tests.simulation import quickly

MOMENTUM = optax.sgd(0.5, momentum=0.9)


def dropping(axis_name=AXIS):
  return gs.gradient_dropping(0.1, axis_name=axis_name)


def after(axis_name=AXIS, **options):
  inner = gs.skip_rejected(MOMENTUM, **options)
  return optax.chain(dropping(axis_name), inner)


def around(axis_name=AXIS, **options):
  chain = optax.chain(dropping(axis_name), MOMENTUM)
  return gs.skip_rejected(chain, **options)


FORMS = {'after': after, 'around': around}


PLAIN = optax.chain(dropping(), MOMENTUM)


@functools.cache
def plain_program():
  return program(PLAIN, 2)


def program(tx, num_workers, runner='simulate'):
  """(compiled (grads, state) -> (each worker's update, state), state)."""
  specs = gs.workers.specs(tx, PARAMS, num_workers)
  state = gs.workers.init(tx, PARAMS, num_workers)

  def step(grads, state):
    return tx.update(grads, state, PARAMS)

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=(OWN, specs),
    out_specs=(OWN, specs),
  )
  compiled = fn.lower(gradients(num_workers), state)
  return compiled.compile(replay.QUICKLY), state


def spoiled(num_workers, seed=0, value=np.nan):
  """One element of the last worker's gradient is no number."""
  grads = gradients(num_workers, seed)
  grads['kernel'][-1, 2, 3] = value
  return grads


def counts(state):
  """(skipped, consecutive)."""
  return tuple(
    int(np.reshape(optax.tree.get(state, name), -1)[0])
    for name in ('skipped', 'consecutive')
  )


def all_zero(tree):
  return not any(np.any(x) for x in jax.tree.leaves(tree))


def all_nan(tree):
  return all(np.all(np.isnan(x)) for x in jax.tree.leaves(tree))


def all_finite(tree):
  return all(np.all(np.isfinite(x)) for x in jax.tree.leaves(tree))


def scheme_of(state):
  (found,) = (
    x
    for x in jax.tree.leaves(
      state, is_leaf=lambda x: isinstance(x, gs.CompressedMeanState)
    )
    if isinstance(x, gs.CompressedMeanState)
  )
  return found


# --- one verdict ------------------------------------------------------------


@pytest.mark.parametrize(
  ('runner', 'form'),
  [
    pytest.param('simulate', 'after', marks=pytest.mark.slow),
    ('shard_map', 'around'),
    pytest.param('simulate', 'around', marks=pytest.mark.slow),
    pytest.param('shard_map', 'after', marks=pytest.mark.slow),
    pytest.param('pmap', 'after', marks=pytest.mark.slow),
    pytest.param('pmap', 'around', marks=pytest.mark.slow),
  ],
)
def test_a_rejected_step_passes_on_all_workers(runner, form):
  fn, state = program(FORMS[form](max_consecutive=2), 2, runner)
  plain_fn, plain = plain_program()
  # Without a rejection all is as without it.
  updates, state = fn(gradients(2, 0), state)
  expected, plain = plain_fn(gradients(2, 0), plain)
  chex.assert_trees_all_close(updates, expected, rtol=1e-6)
  before = optax.tree.get(jax.device_get(state), 'trace')
  for number, value in enumerate((np.nan, np.inf, np.nan), 1):
    bad = spoiled(2, number, value)
    updates, state = fn(bad, state)
    _, plain = plain_fn(bad, plain)
    assert all_nan(updates) if number > 2 else all_zero(updates)
    assert counts(state) == (number, number)
    chex.assert_trees_all_equal(optax.tree.get(state, 'trace'), before)
    # The exchange ran: the scheme's state is what a rejected step leaves.
    assert int(scheme_of(state).steps) == number + 1
    assert gs.metrics(state)['rejected_steps'] == number
    chex.assert_trees_all_close(
      gs.pending(state), gs.pending(plain), rtol=1e-6, atol=1e-7
    )
  updates, state = fn(gradients(2, 9), state)
  assert all_finite((updates, state)) and not all_zero(updates)
  assert counts(state) == (3, 0)
  for u in jax.tree.leaves(updates):
    assert np.array_equal(u[0], u[1])
  updates, state = fn(spoiled(2), state)
  assert all_zero(updates) and counts(state) == (4, 1)


@pytest.mark.parametrize('form', FORMS)
def test_the_counters_are_the_same_on_all_workers_by_type(form):
  tx = FORMS[form]()
  specs = gs.workers.specs(tx, PARAMS, 2)
  for name in ('skipped', 'consecutive', 'trace'):
    found = jax.tree.leaves(optax.tree.get(specs, name))
    assert set(found) == {P()}, name
  assert gs.plan(tx, PARAMS, 2) == gs.plan(PLAIN, PARAMS, 2)


def test_the_verdict_is_that_of_the_whole_update():
  """Not that of its first element, nor that of one leaf."""
  tx = gs.skip_rejected(MOMENTUM)
  state = tx.init(PARAMS)
  grads = jax.tree.map(jnp.ones_like, PARAMS)
  for name in PARAMS:
    bad = grads | {name: grads[name].at[-1].set(jnp.inf)}
    updates, state = tx.update(bad, state)
    assert all_zero((updates, state.inner))
  assert counts(state) == (2, 2)


def test_an_update_that_overflows_after_the_exchange():
  """Around a whole chain what comes out is judged; the scheme has accepted."""
  dense = gs.dense(axis_name=None)
  tx = gs.skip_rejected(optax.chain(dense, optax.scale(1e38)))
  updates, state = tx.update(
    jax.tree.map(lambda p: jnp.full(p.shape, 1e3), PARAMS), tx.init(PARAMS)
  )
  assert all_zero(updates) and counts(state) == (1, 1)
  assert gs.metrics(state)['rejected_steps'] == 0


@pytest.mark.slow
def test_what_stands_before_the_scheme_stays_what_it_was():
  dense = gs.dense(axis_name=AXIS)
  tx = gs.skip_rejected(optax.chain(optax.trace(0.9), dense, optax.sgd(0.5)))
  fn, state = program(tx, 2)
  _, state = fn(gradients(2, 0), state)
  before = jax.device_get(state.inner[0])
  assert before.trace['kernel'].shape == (2, *PARAMS['kernel'].shape)
  updates, state = fn(spoiled(2, 1), state)
  chex.assert_trees_all_equal(state.inner[0], before)
  updates, state = fn(gradients(2, 2), state)
  assert all_finite((updates, state)) and not all_zero(updates)


# --- keywords ---------------------------------------------------------------


@pytest.mark.parametrize('form', marks.few(FORMS, 'around'))
def test_keywords_reach_what_is_inside(form):
  plateau = optax.contrib.reduce_on_plateau(patience=1)
  follows = optax.chain(optax.sgd(1.0), plateau)
  scheme = gs.dense(axis_name=None)
  tx = {
    'after': optax.chain(scheme, gs.skip_rejected(follows)),
    'around': gs.skip_rejected(optax.chain(scheme, follows)),
  }[form]
  state = tx.init(PARAMS)
  grads = jax.tree.map(jnp.ones_like, PARAMS)
  fn = quickly(
    lambda g, s, value: tx.update(g, s, PARAMS, value=value),
    grads,
    state,
    jnp.float32(1),
  )
  for _ in range(4):  # a loss that does not fall
    updates, state = fn(grads, state, jnp.float32(1))
  assert 0 < -float(updates['bias'][0]) < 1
  scale = optax.tree.get(state, 'scale')
  bad = jax.tree.map(lambda g: g * jnp.nan, grads)
  updates, state = fn(bad, state, jnp.float32(jnp.nan))
  assert all_zero(updates) and optax.tree.get(state, 'scale') == scale


@pytest.mark.slow
def test_second_moments_reach_a_scheme_inside():
  variance = gs.variance_based(1.0, min_size=0, axis_name=AXIS)
  tx = gs.skip_rejected(optax.chain(variance, MOMENTUM))
  assert gs.plan(tx, PARAMS, 2) == gs.plan(variance, PARAMS, 2)
  specs = gs.workers.specs(tx, PARAMS, 2)
  assert specs.skipped == specs.consecutive == P()


# --- rounds of mini-steps ---------------------------------------------------


NESTED = {
  'after a scheme': gs.accumulate(after(), every=2),
  'inside': gs.accumulate(around(), every=2),
  'outside': gs.skip_rejected(gs.accumulate(PLAIN, every=2), max_consecutive=1),
}


@pytest.mark.parametrize('name', marks.few(NESTED, 'outside'))
def test_a_round_of_accumulate_passes_as_a_whole(name):
  fn, state = program(NESTED[name], 2)
  for seed in (0, 1):
    _, state = fn(gradients(2, seed), state)
  before = optax.tree.get(jax.device_get(state), 'trace')
  for number, bad in enumerate([(1, 0), (0, 1)], 1):
    for is_bad in bad:
      updates, state = fn((spoiled if is_bad else gradients)(2, 5), state)
    # Two rejected rounds are in a row, whatever was between their ends.
    assert counts(state) == (number, number)
    refused = number == 2 and name == 'outside'
    assert all_nan(updates) if refused else all_zero(updates)
    assert gs.metrics(state)['rejected_steps'] == number
    assert all_zero(optax.tree.get(state, 'mean'))
    chex.assert_trees_all_equal(optax.tree.get(state, 'trace'), before)
  updates, state = fn(gradients(2, 6), state)
  assert all_zero(updates)
  updates, state = fn(gradients(2, 7), state)
  assert all_finite((updates, state)) and not all_zero(updates)
  assert counts(state) == (2, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_for_multi_steps_inside_a_rejected_call_never_happened():
  several = optax.MultiSteps(PLAIN, 2).gradient_transformation()
  fn, state = program(gs.skip_rejected(several), 2)
  plain_fn, plain = program(several, 2)
  for seed in range(4):
    for bad in range(seed):
      updates, state = fn(spoiled(2, bad), state)
      assert all_zero(updates) and counts(state)[1] == bad + 1
    updates, state = fn(gradients(2, seed), state)
    expected, plain = plain_fn(gradients(2, seed), plain)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(state.inner, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_inside_multi_steps(form):
  several = optax.MultiSteps(FORMS[form](), 2).gradient_transformation()
  fn, state = program(several, 2)
  plain_fn, plain = plain_program()
  first, second = gradients(2, 0), gradients(2, 1)
  _, state = fn(first, state)
  updates, state = fn(second, state)
  mean = jax.tree.map(lambda a, b: (a + b) / 2, first, second)
  expected, _ = plain_fn(mean, plain)
  chex.assert_trees_all_close(updates, expected, rtol=1e-5, atol=1e-6)
  _, state = fn(spoiled(2), state)
  updates, state = fn(first, state)
  assert all_zero(updates) and counts(state) == (1, 1)


# --- with the rest of the library -------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('form', marks.few(FORMS, 'around'))
def test_between_replicas_of_several_devices(form):
  specs = {'a': P('fsdp'), 'b': P(None, 'fsdp'), 'c': P()}
  params = {'a': jnp.zeros((8, 5)), 'b': jnp.zeros((5, 8)), 'c': jnp.ones(7)}
  scheme = gs.sharded(
    gs.dgc(0.2, momentum=0.0, min_size=0, axis_name=REPLICA), specs
  )
  adam = optax.adam(0.1)
  tx = {
    'after': optax.chain(scheme, gs.skip_rejected(adam)),
    'around': gs.skip_rejected(optax.chain(scheme, adam)),
  }[form]
  mesh = mesh_of(MESHES['2x2'])
  own = Program(tx, mesh, specs=specs, params=params)
  # Across the axis of the replicas nothing is sent for the verdict.
  sent = gs.audit(own.compiled, mesh).sent_by_axis[REPLICA]
  planned = gs.plan(scheme, params, MESHES['2x2']).sent_by_axis[REPLICA]
  assert sent == planned
  grads = draw(params, 2, seed=0)
  _, _, state = own(own.state, grads)
  before = jax.device_get(optax.tree.get(state, 'mu'))
  bad = grads | {'b': grads['b'].at[1, 4, 7].set(jnp.nan)}
  updates, _, state = own(state, bad)
  check_copies((updates, state))
  assert all_zero(updates) and counts(state) == (1, 1)
  chex.assert_trees_all_equal(optax.tree.get(state, 'mu'), before)
  updates, _, state = own(state, grads)
  check_copies((updates, state))
  assert all_finite((updates, state)) and not all_zero(updates)


@pytest.mark.slow
def test_after_local_gradients():
  """Updates differ between workers by type, and so do the counters."""
  local = gs.local_gradient(dropping(), 'partial')
  tx = optax.chain(local, gs.skip_rejected(optax.adam(0.1)))
  fn, state = program(tx, 2, 'shard_map')
  updates, state = fn(gradients(2, 0), state)
  assert np.any(updates['kernel'][0] != updates['kernel'][1])
  updates, state = fn(spoiled(2, 1), state)
  assert all_zero(updates)
  np.testing.assert_array_equal(optax.tree.get(state, 'consecutive'), [1, 1])


def test_another_number_of_workers():
  state = gs.workers.init(around(), PARAMS, 2)
  state = gs.workers.resize(around(), state._replace(skipped=jnp.int32(5)), 3)
  assert gs.pending(state)['kernel'].shape[0] == 3 and state.skipped == 5


def test_each_of_two_schemes_side_by_side_needs_its_own():
  labels = {'a': 'x', 'b': 'y'}

  def sides(one, other):
    return optax.partition({'x': one, 'y': other}, labels)

  params = {name: jnp.zeros((4, 5)) for name in labels}
  optimizer = gs.skip_rejected(MOMENTUM)
  scheme = gs.gradient_dropping(0.1, min_size=0, axis_name=AXIS)
  both = sides(scheme, scheme)
  with pytest.raises(ValueError, match='several schemes of optax.partition'):
    gs.skip_rejected(optax.chain(both, MOMENTUM)).init(params)
  with pytest.raises(ValueError, match='several schemes of optax.partition'):
    gs.workers.init(optax.chain(both, optimizer), params, 2)
  each = optax.chain(scheme, optimizer)
  gs.workers.init(sides(each, each), params, 2)
  # Nothing is lost where no scheme has a memory, or only one part has a scheme.
  plain = gs.dense(axis_name=AXIS)
  gs.workers.init(optax.chain(sides(plain, plain), optimizer), params, 2)
  frozen = sides(scheme, optax.set_to_zero())
  gs.workers.init(optax.chain(frozen, optimizer), params, 2)
