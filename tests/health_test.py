"""Finite gradients that are too large: kept, or rejected by all together."""

import functools

import gradsparse as gs
from gradsparse import health
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests import runs

AXIS = gs.workers.AXIS
OWN = P(AXIS)
WORKERS = 2
PARAMS = {'bias': jnp.zeros(300), 'kernel': jnp.zeros((12, 40))}
LARGE = health.LARGEST_GRADIENT / 2  # whose squares leave float32
TOO_LARGE = 3 * health.LARGEST_GRADIENT

_ALL = dict(min_size=0, axis_name=AXIS)
_PARTS = dict(exchange='reduce_scatter', **_ALL)

# Those whose updates are n times as large for gradients n times as large.
HOMOGENEOUS = {
  'dense': lambda: gs.dense(axis_name=AXIS),
  'dense_bfloat16': lambda: gs.dense(wire_dtype='bfloat16', axis_name=AXIS),
  'gradient_dropping': lambda: gs.gradient_dropping(0.05, **_ALL),
  'dropping_exponent4': lambda: gs.gradient_dropping(
    0.05, values='exponent4', **_ALL
  ),
  'dgc': lambda: gs.dgc(0.05, axis_name=AXIS),  # the bias stays dense
  'dgc_nesterov': lambda: gs.dgc(0.05, nesterov=True, axis_name=AXIS),
  'ef21': lambda: gs.ef21(0.05, **_ALL),
  'gtopk': lambda: gs.gtopk(0.05, **_ALL),
  'ada_comp': lambda: gs.ada_comp(bin_size=2, ladder=(0.2,), **_ALL),
  'qsgd': lambda: gs.qsgd(7, **_ALL),
  'qsgd_l2': lambda: gs.qsgd(3, norm='l2', **_ALL),
  'qsgd_parts': lambda: gs.qsgd(63, norm='l2', **_PARTS),
  'qsgd_descent': lambda: gs.qsgd_descent(**_ALL),
  'terngrad': lambda: gs.terngrad(clip=1.0, **_ALL),
  'one_bit': lambda: gs.one_bit_sgd(**_ALL),
  'one_bit_parts': lambda: gs.one_bit_sgd(**_PARTS),
  'dryden': lambda: gs.dryden(0.3, **_ALL),
  'random_k': lambda: gs.random_k(0.4, memory=True, **_ALL),
  'power_sgd': lambda: gs.power_sgd(2, axis_name=AXIS),
}
SCHEMES = HOMOGENEOUS | {
  'strom': lambda: gs.strom(0.5, ladder=(0.4,), **_ALL),
  'variance_based': lambda: gs.variance_based(2.0, ladder=(0.4,), **_ALL),
  'sign_majority': lambda: gs.sign_majority(memory=True, **_ALL),
}

# Sums, moments, and a memory at both ends of a reduce-scatter.
FAST = ('dgc', 'variance_based', 'qsgd_parts')


@functools.cache
def program(name):
  """(state, compiled (grads, state, moments) -> (updates, state, delivered)).

  Of simulated workers, all with leading worker axes.
  """
  tx = SCHEMES[name]()
  state = gs.workers.stack(tx.init(PARAMS), WORKERS)
  step = jax.vmap(
    lambda g, state, m: tx.step(g, state, second_moment=m), axis_name=AXIS
  )
  grads = gradients(0)
  lowered = jax.jit(step).lower(grads, state, grads)
  return state, lowered.compile(replay.QUICKLY)


def gradients(seed, scale=1.0, num_workers=WORKERS):
  """Uniform in +-scale."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda p: np.asarray(
      scale * rng.uniform(-1, 1, (num_workers, *p.shape)), np.float32
    ),
    PARAMS,
  )


def moments(seed):
  return jax.tree.map(lambda g: g**2, gradients(100 + seed))


def times(tree, factor):
  return jax.tree.map(lambda x: np.asarray(x) * np.float32(factor), tree)


def only_last(bad, good):
  """The last worker's part of `bad`, the others' of `good`."""
  return jax.tree.map(lambda b, g: np.concatenate([g[:-1], b[-1:]]), bad, good)


def rejected(state):
  return np.asarray(state.stats.rejected_steps)


def check_finite(tree):
  for path, x in jax.tree_util.tree_leaves_with_path(tree):
    assert np.all(np.isfinite(x)), jax.tree_util.keystr(path)


def assert_same(actual, expected):
  jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize(
  'name',
  marks.few(HOMOGENEOUS, 'qsgd_parts'),
)
def test_large_gradients_give_as_much_larger_updates(name):
  """Powers of two change no digit, so this holds to the bit."""
  state, step = program(name)
  large_state = state
  for t in range(2):
    grads, m = gradients(t), moments(t)
    updates, state, delivered = step(grads, state, m)
    large, large_state, more = step(times(grads, LARGE), large_state, m)
    check_finite((large, large_state, more))
    assert_same(
      (large, more, gs.pending(large_state)),
      times((updates, delivered, gs.pending(state)), LARGE),
    )
  assert np.all(rejected(large_state) == 0)


# The coarse levels of qsgd_l2 are mostly zero, so that their mean is finite.
@pytest.mark.parametrize(
  'name', marks.few((name for name in SCHEMES if name != 'qsgd_l2'), *FAST)
)
def test_a_step_of_too_large_gradients_is_as_one_of_nan(name):
  state, step = program(name)
  nan_state = state
  ordinary = lambda t: step(gradients(t), state, moments(t))
  _, state, _ = ordinary(0)
  nan_state = state
  # The mean of one worker's may be finite, and then it is the mean.
  alone = not SCHEMES[name]().scheme.judged_on_arrival
  scale = TOO_LARGE if alone else 2e38
  for t, some in ((1, False), (2, alone), (3, False)):
    good = gradients(t)
    bad, nan = times(good, scale), times(good, np.nan)
    if some:
      bad, nan = only_last(bad, good), only_last(nan, good)
    updates, state, delivered = step(bad, state, moments(t))
    _, nan_state, _ = step(nan, nan_state, moments(t))
    assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
    assert not any(np.any(d) for d in jax.tree.leaves(delivered))
    check_finite(state)
    assert_same(state, nan_state)
    assert np.all(rejected(state) == t)
  updates, state, _ = ordinary(4)
  check_finite((updates, state))
  assert any(np.any(u) for u in jax.tree.leaves(updates))
  assert np.all(rejected(state) == 3)


@pytest.mark.parametrize('name', marks.few(['dgc', 'dgc_nesterov'], 'dgc'))
def test_a_rejected_step_leaves_the_momentum_of_dense_leaves_alone(name):
  state, step = program(name)
  _, before, _ = step(gradients(0), state, moments(0))
  good = gradients(1)
  _, after, _ = step(only_last(times(good, np.nan), good), before, moments(1))
  assert np.any(before.memory.momentum['bias'])  # there is what could decay
  assert_same(after.memory.momentum['bias'], before.memory.momentum['bias'])


def test_a_rejected_step_lets_no_variance_decay():
  state, step = program('variance_based')
  _, before, _ = step(gradients(0), state, moments(0))
  good, m = gradients(1), moments(1)
  _, after, _ = step(only_last(times(good, np.nan), good), before, m)
  for leaf, v in before.memory.variance.items():
    # The healthy worker has taken in its own.
    assert_same(after.memory.variance[leaf][0], v[0] + m[leaf][0])
    assert_same(after.memory.variance[leaf][-1], v[-1])


def test_a_variance_beside_a_large_residual_stays_a_number():
  """Its correction has squares of what is delivered."""
  state, step = program('variance_based')
  for t, scale in enumerate((LARGE, 1.0, 1.0)):
    updates, state, _ = step(gradients(t, scale), state, moments(t))
    check_finite((updates, state))
  assert np.all(rejected(state) == 0)


@pytest.mark.parametrize(
  'name', marks.few(['gradient_dropping', 'power_sgd'], 'gradient_dropping')
)
def test_ordinary_gradients_are_taken_in_whatever_the_memory_holds(name):
  """It may hold more than it would take in: `sent` can enlarge a number."""
  state, step = program(name)
  held = gradients(7, scale=1e36)
  if name == 'power_sgd':
    held['bias'] *= 0  # stays dense, and owes nothing
  memory = state.memory.with_pending(jax.tree.map(jnp.asarray, held))
  updates, state, _ = step(
    gradients(0), state._replace(memory=memory), moments(0)
  )
  check_finite((updates, state))
  assert np.all(rejected(state) == 0)


@pytest.mark.slow
def test_factors_that_are_too_large_reject_the_step():
  """PowerSGD's factors stand for its update, which nobody looks at."""
  state, step = program('power_sgd')
  held = gradients(7, scale=1e38) | {'bias': np.zeros((WORKERS, 300))}
  memory = state.memory.with_pending(
    jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), held)
  )
  full = state._replace(memory=memory)
  updates, after, _ = step(gradients(0), full, moments(0))
  assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
  check_finite(after)
  assert np.all(rejected(after) == 1)


def check_goes_on(step, state):
  """Ordinary steps are accepted."""
  before = rejected(state)
  for t in range(1, 4):
    updates, state, _ = step(gradients(t), state, moments(t))
    check_finite((updates, state))
  assert_same(rejected(state), before)


@pytest.mark.parametrize('name', marks.few(['dgc', 'dgc_nesterov'], 'dgc'))
def test_a_momentum_never_stops_ordinary_gradients(name):
  """It moves on without them, and enlarges what is pending."""
  state, step = program(name)
  most = health.LARGEST_GRADIENT
  for share in (0.09, 0.4, 0.6):
    _, state, _ = step(times(gradients(0), share * most), state, moments(0))
  assert np.any(np.abs(gs.pending(state)['kernel']) > 0.05 * most)
  check_goes_on(step, state)


def test_an_estimate_never_stops_ordinary_gradients():
  """It comes off them; corrections that can be kept add up."""
  state, step = program('ef21')
  most = health.LARGEST_GRADIENT
  for share in (0.3, 0.6, 0.9):
    grads = jax.tree.map(np.zeros_like, gradients(0))
    grads['kernel'][:, 0, 0] = share * most
    _, state, _ = step(grads, state, moments(0))
  assert np.all(state.memory.estimate['kernel'][:, 0, 0] > 0.7 * most)
  check_goes_on(step, state)


def test_a_bucket_whose_norm_overflows_rejects_the_step():
  """Norms stand for what they bound: nothing that is decoded is looked at."""
  tx = gs.qsgd(7, norm='l2', axis_name=None)
  params = {'w': jnp.zeros((100, 100))}
  update = jax.jit(tx.update)
  updates, state = update({'w': jnp.full((100, 100), 4e37)}, tx.init(params))
  assert np.all(np.isnan(updates['w'])) and rejected(state) == 1
  updates, state = update({'w': jnp.full((100, 100), 1e36)}, state)
  assert np.all(np.isfinite(updates['w'])) and rejected(state) == 1


@pytest.mark.slow
def test_what_an_exchange_owes_leaves_room_for_a_sum():
  state, step = program('one_bit_parts')
  memory = state.memory.with_pending(
    jax.tree.map(jnp.asarray, gradients(7, scale=4e37))
  )
  owed = jax.tree.map(jnp.asarray, gradients(8, scale=3.3e38))
  state = state._replace(memory=memory, exchange=owed)
  updates, state, _ = step(gradients(0), state, moments(0))
  check_finite((updates, state))
  assert np.all(rejected(state) == 0)


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_all_workers_reject_together_under_every_runner(runner):
  tx = gs.dgc(0.05, axis_name=AXIS)
  specs = gs.workers.specs(tx, PARAMS, WORKERS)
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state),
    runner=runner,
    num_workers=WORKERS,
    in_specs=(specs, OWN),
    out_specs=(OWN, specs),
  )
  state = gs.workers.init(tx, PARAMS, WORKERS)

  def take(state, grads, expected):
    updates, state = fn(state, grads)
    for u in jax.tree.leaves(updates):
      assert np.all(np.isnan(u)) == (expected == 'rejected')
      np.testing.assert_array_equal(u[0], u[-1])
    check_finite(state)
    return runs.to_numpy(state)

  ordinary = gradients(0)
  state = take(state, ordinary, 'accepted')
  large = times(ordinary, TOO_LARGE)
  after = take(state, only_last(large, ordinary), 'rejected')
  assert_same(after.memory.momentum['bias'], state.memory.momentum['bias'])
  after = take(after, ordinary, 'accepted')
  assert np.all(rejected(after) == 1)


@pytest.mark.slow
def test_an_update_that_its_own_type_cannot_hold_is_rejected():
  tx = gs.dgc(0.5, axis_name=None)  # a scalar stays dense
  params = {'kernel': jnp.zeros((2, 2)), 'scale': jnp.zeros(())}
  grads = jax.tree.map(lambda p: jnp.full(p.shape, 4e4, jnp.float16), params)
  grads['kernel'] = jnp.ones((2, 2), jnp.float16)
  update = jax.jit(tx.update)
  updates, state = update(grads, tx.init(params))
  assert np.isfinite(updates['scale'])
  before = state.memory.momentum['scale']
  updates, state = update(grads, state)
  assert np.isnan(updates['scale'])
  assert rejected(state) == 1
  assert state.memory.momentum['scale'] == before


@pytest.mark.slow
def test_the_norm_of_a_large_residual_is_a_number():
  tx = gs.gradient_dropping(0.1, axis_name=None)
  grads = {'w': jnp.full(100, 1e19)}
  _, state = tx.update(grads, tx.init(grads))
  norm = float(gs.metrics(state)['residual_norm'])
  assert norm == pytest.approx(1e19 * np.sqrt(90), rel=1e-5)


@pytest.mark.slow
def test_a_program_grows_with_the_leaves_and_not_with_their_square():
  """The verdict on all leaves is not written out in each leaf's kernel."""

  def size(leaves):
    params = {f'{n:02}': jnp.zeros((3, n + 1)) for n in range(leaves)}
    tx = gs.dense(axis_name=None)
    fn = jax.jit(tx.update).lower(params, tx.init(params))
    return len(fn.compile().as_text())

  assert size(40) < 6 * size(10)
