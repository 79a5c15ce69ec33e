"""What init and update are handed: wrong leaves, trees, moments and states.

Nearly all of it is found while tracing: two tests compile a program.
"""

from __future__ import annotations

import warnings

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import replay

AXIS = gs.workers.AXIS
PARAMS = {'kernel': jnp.ones((4, 3)), 'bias': jnp.ones(3)}

SCHEMES = {
  'dense': lambda: gs.dense(axis_name=None),
  'gradient_dropping': lambda: gs.gradient_dropping(0.5, axis_name=None),
  'dgc': lambda: gs.dgc(0.5, min_size=0, axis_name=None),
  'variance_based': lambda: gs.variance_based(1.0, axis_name=None),
  'power_sgd': lambda: gs.power_sgd(1, axis_name=None),
  'one_bit_sgd': lambda: gs.one_bit_sgd(
    exchange='reduce_scatter', axis_name=None
  ),
}


def traced(tx, grads, state, **extra):
  """An update of one worker, traced only."""
  return jax.eval_shape(lambda g, s: tx.update(g, s, **extra), grads, state)


# --- leaves -----------------------------------------------------------------

NO_FLOATS = {
  'complex64': jnp.ones((4, 3), jnp.complex64),
  'int32': jnp.ones((4, 3), jnp.int32),
  'bool': jnp.ones((4, 3), bool),
}


@pytest.mark.parametrize('dtype', NO_FLOATS)
@pytest.mark.parametrize('name', SCHEMES)
def test_leaves_without_a_gradient_are_named_by_init_and_update(name, dtype):
  tx, wrong = SCHEMES[name](), PARAMS | {'kernel': NO_FLOATS[dtype]}
  for call in (
    lambda: tx.init(wrong),
    lambda: traced(tx, wrong, tx.init(PARAMS), second_moment=PARAMS),
    lambda: gs.plan(tx, wrong, 2),
  ):
    with pytest.raises(TypeError) as e:
      call()
    assert "['kernel']" in str(e.value) and dtype in str(e.value)


def test_other_things_that_are_no_gradient_are_named():
  tx = SCHEMES['gradient_dropping']()
  state = tx.init(PARAMS)
  nothing = np.zeros((4, 3), jax.dtypes.float0)
  with pytest.raises(TypeError, match=r"\['kernel'\].*float0"):
    tx.update(PARAMS | {'kernel': nothing}, state)
  with pytest.raises(TypeError, match=r"\['kernel'\].*got PjitFunction|func"):
    tx.init(PARAMS | {'kernel': jnp.tanh})
  clip = gs.clip_local_norm(1.0, axis_name=None)
  with pytest.raises(TypeError, match='gradients.*int32'):
    clip.update({'n': jnp.arange(3)}, clip.init(PARAMS))


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32])
def test_every_float_is_taken_also_inside_of_optax(dtype):
  params = jax.tree.map(lambda p: p.astype(dtype), PARAMS)
  for wrap in (
    lambda tx: tx,
    lambda tx: optax.MultiSteps(tx, 2),
    lambda tx: optax.chain(optax.clip(1.0), tx, optax.sgd(0.1)),
  ):
    tx = wrap(SCHEMES['gradient_dropping']())
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


# --- trees ------------------------------------------------------------------


@pytest.mark.parametrize('name', SCHEMES)
def test_gradients_unlike_the_parameters_are_named_by_their_difference(name):
  tx = SCHEMES[name]()
  state = tx.init(PARAMS)
  for wrong, said in (
    ({'kernel': jnp.ones((4, 3))}, "['bias'] is missing"),
    (PARAMS | {'more': jnp.ones(2)}, "['more'] is one too many"),
    (PARAMS | {'bias': jnp.ones(2)}, "['bias'] has shape (2,) and not (3,)"),
    (PARAMS | {'bias': jnp.ones((3, 1))}, '(3, 1) and not (3,)'),
    ([*PARAMS.values()], "['bias'] is missing"),
  ):
    with pytest.raises(ValueError) as e:
      traced(tx, wrong, state, second_moment=wrong)
    assert 'gradients must be a tree like the parameters' in str(e.value)
    assert said in str(e.value)


def test_another_container_is_named_too():
  tx = gs.dense(axis_name=None)
  with pytest.raises(ValueError, match='gradients .* it is .*not'):
    traced(tx, [jnp.ones(2)], tx.init((jnp.ones(2),)))


# --- second moments ---------------------------------------------------------


@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.variance_based(1.0, axis_name=None),
    lambda: gs.variance_strom(1.0, threshold=1.0, axis_name=None),
  ],
)
def test_a_missing_or_foreign_second_moment_is_an_error(make):
  tx, grads = make(), {'w': np.ones(3, np.float32)}
  state = tx.init(grads)
  with pytest.raises(ValueError, match='second_moment=.*gradsparse|gs.value'):
    tx.update(grads, state)
  with pytest.raises(ValueError, match='tree like the gradients'):
    tx.update(grads, state, second_moment={'v': grads['w']})


@pytest.mark.parametrize(
  'moments, error, said',
  [
    ({'kernel': PARAMS['kernel']}, ValueError, "['bias'] is missing"),
    (PARAMS | {'bias': jnp.ones(4)}, ValueError, '(4,) and not (3,)'),
    (PARAMS | {'bias': jnp.ones(())}, ValueError, '() and not (3,)'),
    (PARAMS | {'bias': -jnp.ones(3)}, ValueError, "got -1.0 in ['bias']"),
    (PARAMS | {'bias': jnp.arange(3)}, TypeError, "['bias']"),
    (
      PARAMS | {'bias': jnp.ones(3, jnp.complex64)},
      TypeError,
      "['bias'] must be floating-point numbers, got complex64",
    ),
  ],
)
def test_a_wrong_second_moment_is_named_by_its_leaf(moments, error, said):
  for tx in (
    gs.variance_based(1.0, axis_name=None),
    gs.variance_strom(1.0, threshold=1.0, axis_name=None),
  ):
    with pytest.raises(error) as e:
      traced(tx, PARAMS, tx.init(PARAMS), second_moment=moments)
    assert 'second_moment' in str(e.value) and said in str(e.value)


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


@pytest.mark.parametrize(
  'value, error', [(7.0, ValueError), (np.nan, ValueError), (0, ValueError),
                   ('0.1', TypeError), (np.ones(2), TypeError)]
)  # fmt: skip
@pytest.mark.parametrize('recipe', [gs.dgc, gs.gtopk, gs.gradient_dropping])
def test_what_a_schedule_returns_first_is_checked_by_init(recipe, value, error):
  tx = recipe(lambda step: value, axis_name=AXIS)
  for call in (
    lambda: tx.init(PARAMS),
    lambda: jax.eval_shape(tx.init, PARAMS),
    lambda: gs.workers.specs(tx, PARAMS, 2),
    lambda: gs.plan(tx, PARAMS, 2),
  ):
    with pytest.raises(error, match='density .* step 0.* must be .* got'):
      call()


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


# --- another scheme's state -------------------------------------------------

# (scheme, whose state it gets, words)
FOREIGN = (
  ('gradient_dropping', 'dgc', 'MomentumCorrectionState and not ResidualState'),
  ('gradient_dropping', 'variance_based', 'VarianceState and not Residual'),
  ('dgc', 'gradient_dropping', 'ResidualState and not MomentumCorrectionState'),
  ('dense', 'gradient_dropping', 'ResidualState and not NoMemoryState'),
  ('gradient_dropping', 'power_sgd', 'compressor: [0] is one too many'),
  ('power_sgd', 'gradient_dropping', 'compressor: [0] is missing'),
  ('gradient_dropping', 'one_bit_sgd', "exchange: ['bias'] is one too many"),
  ('one_bit_sgd', 'gradient_dropping', "exchange: ['bias'] is missing"),
)


@pytest.mark.parametrize('own, foreign, said', FOREIGN)
def test_another_schemes_state_is_refused(own, foreign, said):
  tx = SCHEMES[own]()
  with pytest.raises(ValueError) as e:
    traced(tx, PARAMS, SCHEMES[foreign]().init(PARAMS))
  assert str(e.value).startswith(f"{own} was given another scheme's state")
  assert said in str(e.value) and 'gs.switch' in str(e.value)


def test_another_rank_is_another_state_and_another_density_is_not():
  low = SCHEMES['power_sgd']()
  with pytest.raises(ValueError, match=r'shape \(3, 1\) and not \(3, 2\)'):
    traced(gs.power_sgd(2, axis_name=None), PARAMS, low.init(PARAMS))
  dgc = gs.dgc(0.1, momentum=0.0, min_size=0, axis_name=None)
  traced(dgc, PARAMS, SCHEMES['dgc']().init(PARAMS))


@pytest.mark.parametrize('wrong', [None, (), optax.EmptyState(), 3])
def test_what_is_no_state_of_a_scheme_is_refused(wrong):
  tx = SCHEMES['dgc']()
  for state in (wrong, (tx.init(PARAMS),)):
    with pytest.raises(ValueError, match='dgc needs the state .* its own init'):
      tx.update(PARAMS, state)
  local = gs.local_gradient(SCHEMES['gradient_dropping']())
  with pytest.raises(ValueError, match='local_gradient needs the state'):
    local.update(PARAMS, wrong)
