"""What init and update are handed: what is taken, and what run time tells.

What is refused is in tests/bad_input. Two tests compile a program.
"""

from __future__ import annotations

import warnings

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests.schemes import example

AXIS = gs.workers.AXIS
PARAMS = {'kernel': jnp.ones((4, 3)), 'bias': jnp.ones(3)}


def traced(tx, grads, state, **extra):
  """An update of one worker, traced only."""
  return jax.eval_shape(lambda g, s: tx.update(g, s, **extra), grads, state)


# --- leaves -----------------------------------------------------------------


@pytest.mark.parametrize(
  'dtype', marks.few([jnp.bfloat16, jnp.float16, jnp.float32], jnp.bfloat16)
)
def test_every_float_is_taken_also_inside_of_optax(dtype):
  params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)
  for wrap in (
    lambda tx: tx,
    lambda tx: optax.MultiSteps(tx, 2),
    lambda tx: optax.chain(optax.clip(1.0), tx, optax.sgd(0.1)),
  ):
    tx = wrap(gs.gradient_dropping(0.5, axis_name=None))
    with warnings.catch_warnings():
      warnings.simplefilter('ignore', UserWarning)
      updates, _ = traced(tx, params, tx.init(params))
    assert all(u.dtype == dtype for u in jax.tree.leaves(updates))


def test_the_cure_for_integer_leaves_works():
  params = PARAMS | {'count': jnp.zeros((), jnp.int32)}
  tx = optax.partition(
    {'own': gs.dgc(0.5, axis_name=AXIS), 'none': optax.set_to_zero()},
    {'kernel': 'own', 'bias': 'own', 'count': 'none'},
  )
  with pytest.raises(TypeError, match=r"\['count'\].*optax.partition"):
    gs.plan(gs.dgc(0.5, axis_name=AXIS), params, 2)
  assert gs.plan(tx, params, 2).payload_bytes > 0


def on_two_workers(tx, *args, **kwargs):
  """A compiled update of two simulated workers."""
  fn = jax.vmap(
    lambda g, s, kw: tx.update(g, s, **kw), axis_name=AXIS, axis_size=2
  )
  lowered = jax.jit(fn).lower(*args, kwargs)
  compiled = lowered.compile(replay.QUICKLY)
  return lambda *args, **kwargs: compiled(*args, kwargs)


def both(tree):
  return gs.workers.stack(tree, 2)


def test_a_negative_second_moment_of_one_worker_rejects_the_step_on_all():
  tx = gs.variance_based(1.0, values='float32', ladder=(1.0,), axis_name=AXIS)
  grads, state = both(PARAMS), both(tx.init(PARAMS))
  good = jax.tree.map(jnp.zeros_like, grads)
  bad = good | {'bias': good['bias'].at[1, 2].set(-1e-3)}
  update = on_two_workers(tx, grads, state, second_moment=good)
  updates, new = update(grads, state, second_moment=bad)
  assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
  np.testing.assert_array_equal(gs.metrics(new)['rejected_steps'], 1)
  # The worker that was right keeps its gradient, the other takes nothing in.
  np.testing.assert_array_equal(gs.pending(new)['bias'], [[1] * 3, [0] * 3])
  updates, new = update(grads, new, second_moment=good)
  np.testing.assert_allclose(updates['bias'], 1.5)
  np.testing.assert_array_equal(gs.metrics(new)['rejected_steps'], 1)


# --- schedules --------------------------------------------------------------


def fades(step):
  """A density that is zero from the second step on."""
  return jnp.where(step < 1, 1.0, jnp.where(step < 2, 0.0, jnp.nan))


def test_a_plan_names_the_step_at_which_a_schedule_is_out_of_range():
  tx = gs.gradient_dropping(fades, axis_name=AXIS)
  gs.plan(tx, PARAMS, 2, step=0)
  with pytest.raises(
    ValueError, match=r'step 1\) must be in \(0, 1\], got 0.0'
  ):
    gs.plan(tx, PARAMS, 2, step=1)


@pytest.mark.slow
def test_a_density_out_of_range_at_run_time_rejects_the_step_on_all():
  tx = gs.gradient_dropping(fades, axis_name=AXIS)
  grads, state = both(PARAMS), both(tx.init(PARAMS))
  update = on_two_workers(tx, grads, state)
  updates, state = update(grads, state)
  np.testing.assert_array_equal(updates['bias'], 1)
  for rejected in (1, 2):
    updates, state = update(grads, state)
    assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
    assert gs.metrics(state)['rejected_steps'] == rejected
    assert gs.metrics(state)['residual_norm'] == 0


def over_time(first, later):
  """A schedule for optax.inject_hyperparams."""
  return lambda step: jnp.where(step == 0, first, later)


TRACED = {
  'strom': (
    gs.strom,
    {'threshold': over_time(0.5, -0.5)},
    {'error_decay': 1.0},
  ),
  'alpha': (
    gs.variance_based,
    {'alpha': over_time(1.0, float('nan'))},
    {'values': 'float32', 'error_decay': 1.0},
  ),
  'decay': (
    gs.variance_based,
    {'decay': over_time(0.9, 1.5)},
    {'values': 'float32', 'alpha': 1.0, 'error_decay': 1.0},
  ),
  # Of 1 a memory cannot keep what comes: that would be rejected anyway.
  'momentum': (
    gs.dgc,
    {'momentum': over_time(0.9, 1.5)},
    {'density': 0.5, 'min_size': 0, 'error_decay': 1.0},
  ),
}


@pytest.mark.parametrize('name', marks.few(TRACED, 'strom', 'momentum'))
def test_a_traced_number_out_of_range_rejects_the_step(name):
  scheme, numbers, known = TRACED[name]
  fixed = {'axis_name': None} | known
  tx = optax.inject_hyperparams(scheme, static_args=tuple(fixed))(
    **fixed, **numbers
  )
  grads = {'w': jnp.arange(1.0, 9.0)}
  update = jax.jit(
    lambda s: tx.update(grads, s, second_moment={'w': grads['w'] ** 2 / 9})
  )
  updates, state = update(tx.init(grads))
  assert np.all(np.isfinite(updates['w']))
  held = gs.pending(state)
  updates, state = update(state)
  assert np.all(np.isnan(updates['w']))
  assert gs.metrics(state)['rejected_steps'] == 1
  np.testing.assert_array_equal(gs.pending(state)['w'], held['w'])


def test_numbers_of_python_are_leaves():
  tx = optax.chain(
    gs.clip_local_norm(3.0, axis_name=None), gs.dense(axis_name=None)
  )
  params = {'a': 1.0, 'b': np.float32(2)}
  updates, _ = tx.update({'a': 3.0, 'b': np.float32(4)}, tx.init(params))
  np.testing.assert_allclose(updates['a'], 1.8, rtol=1e-6)
  np.testing.assert_allclose(updates['b'], 2.4, rtol=1e-6)


@pytest.mark.slow
def test_a_partition_masks_second_moments_too():
  tx = optax.partition(
    {
      'variance': gs.variance_based(1.0, values='float32', axis_name=None),
      'dense': gs.dense(axis_name=None),
    },
    {'kernel': 'variance', 'bias': 'dense'},
  )
  moments = jax.tree.map(lambda g: g / 9, PARAMS)
  updates, _ = tx.update(PARAMS, tx.init(PARAMS), second_moment=moments)
  chex.assert_trees_all_close(updates, PARAMS)
  with pytest.raises(ValueError, match="'kernel'.*is missing"):
    tx.update(PARAMS, tx.init(PARAMS), second_moment={'bias': moments['bias']})


# --- states -----------------------------------------------------------------


def test_a_state_of_other_dense_leaves_is_refused():
  every, large = (gs.dgc(0.5, min_size=n, axis_name=None) for n in (0, 5))
  small = {'w': jnp.ones(9), 'b': jnp.ones(4)}
  for tx, other in ((every, large), (large, every)):
    with pytest.raises(ValueError, match=r"leaf \['b'\] is dense.*min_size"):
      traced(tx, small, other.init(small))


def test_the_state_of_another_density_is_a_schemes_own():
  dgc = [gs.dgc(k, min_size=0, axis_name=None) for k in (0.5, 0.1)]
  traced(dgc[1], PARAMS, dgc[0].init(PARAMS))


# --- nothing ----------------------------------------------------------------


# One of each kind of message.
KINDS = ('dense', 'dgc', 'gtopk', 'qsgd', 'power_sgd', 'variance_based')


@pytest.mark.parametrize(
  'empty',
  [{}, *(pytest.param(x, marks=pytest.mark.slow) for x in ((), None))],
  ids=repr,
)
@pytest.mark.parametrize('name', marks.few(gs.recipes.RECIPES, *KINDS))
def test_a_tree_without_leaves_is_sent_by_doing_nothing(name, empty):
  on, off = (example(name, axis_name=axis) for axis in (AXIS, None))
  updates, state = off.update(empty, off.init(empty), second_moment=empty)
  assert updates == empty and gs.metrics(state)['payload_bytes'] == 0
  assert state.steps == 1 and gs.pending(state) == empty
  assert gs.plan(on, empty, 2).payload_bytes == 0
  assert jax.tree.leaves(gs.workers.init(on, empty, 2).memory) == []


@pytest.mark.parametrize('name', marks.few(gs.recipes.RECIPES, *KINDS))
def test_so_is_a_tree_of_leaves_without_elements(name):
  empty = {'w': jnp.zeros((0, 3))}
  tx = example(name, axis_name=None)
  state = tx.init(empty)
  updates, state = tx.update(empty, state, second_moment=empty)
  assert updates['w'].shape == (0, 3)
  assert gs.metrics(state)['rejected_steps'] == 0
  assert gs.plan(example(name, axis_name=AXIS), empty, 2).payload_bytes < 20


def test_a_label_that_no_leaf_has_is_no_mistake():
  tx = optax.partition(
    {
      'a': gs.dgc(0.5, min_size=0, axis_name=AXIS),
      'b': gs.qsgd(7, axis_name=AXIS),
    },
    {'kernel': 'a', 'bias': 'a'},
  )
  assert gs.plan(tx, PARAMS, 2).payload_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  'recipe',
  gs.recipes.RECIPES,
)
def test_float32_parameters_take_steps_where_float64_is_enabled(recipe):
  with jax.enable_x64(True):
    grads = {'w': jnp.ones((20, 30), jnp.float32), 'b': jnp.ones(3, 'float32')}
    tx = example(recipe, axis_name=None, min_size=0)
    extra = {}
    if recipe in ('variance_based', 'variance_strom'):
      extra['second_moment'] = jax.tree.map(lambda g: 0.1 * g, grads)
    state, update = tx.init(grads), jax.jit(tx.update)
    for _ in range(2):
      updates, state = update(grads, state, **extra)
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {
      jnp.dtype('float32')
    }
