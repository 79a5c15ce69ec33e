"""The optimizer chain: where momentum, weight decay and clipping go."""

import functools

from configs import default
from experiments.config import optimizer
import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay


def _chain(scheme, arguments, *, learning_rate=None, axis_name=None, **changes):
  """The chain of a configuration, with fields such as `optimizer__name`."""
  config = default.get_config()
  arguments = dict(arguments)
  density = arguments.pop('density', None)
  config.compression.update({'name': scheme, **arguments})
  for field, value in changes.items():
    section, _, name = field.partition('__')
    config[section][name] = value
  rate = learning_rate or optax.constant_schedule(0.5)
  return optimizer.make(config, rate, density, axis_name=axis_name)


def _run(tx, steps=4):
  params = {'w': jnp.arange(1.0, 5.0).reshape(2, 2)}
  state = tx.init(params)

  @functools.partial(jax.jit, compiler_options=replay.QUICKLY)
  def run(params, state, step):
    grads = {'w': jnp.cos(params['w'] + step)}
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for step in range(steps):
    params, state = run(params, state, step)
  return np.asarray(params['w'])


def _all_of_it():
  # Everything is sent and nothing masked: momentum SGD.
  return {'density': 1.0, 'factor_masking': False}


@pytest.mark.parametrize('nesterov', marks.few([False, True], True))
def test_momentum_is_inside_dgc_or_after_the_others_never_twice(nesterov):
  plain = _run(optax.sgd(0.5, 0.9, nesterov=nesterov))
  dense = _run(_chain('dense', {}, optimizer__nesterov=nesterov))
  dgc = _run(_chain('dgc', _all_of_it(), optimizer__nesterov=nesterov))
  np.testing.assert_allclose(dense, plain, rtol=1e-6)
  # DGC's Nesterov (eq. 10) is the same sum in another order.
  np.testing.assert_allclose(dgc, plain, rtol=1e-5)


def test_an_explicit_momentum_wins():
  named = _run(_chain('dgc', {**_all_of_it(), 'momentum': 0.5}))
  np.testing.assert_allclose(named, _run(optax.sgd(0.5, 0.5)), rtol=1e-5)


def test_adam_after_dgc_leaves_no_momentum_inside():
  dgc = _run(_chain('dgc', _all_of_it(), optimizer__name='adam'))
  np.testing.assert_allclose(dgc, _run(optax.adam(0.5)), rtol=1e-5)


def test_weight_decay_is_on_the_local_gradient():
  decayed = _run(_chain('dense', {}, optimizer__weight_decay=0.1))
  expected = _run(
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5, 0.9))
  )
  np.testing.assert_allclose(decayed, expected, rtol=1e-6)


@pytest.mark.parametrize('after', marks.few([False, True], True))
def test_weight_decay_can_stay_out_of_what_is_sent(after):
  # Strom sends multiples of its threshold: what decay adds to a gradient is
  # rounded to them, what it adds to an update is not.
  tx = _chain(
    'strom',
    {'threshold': 0.25},
    optimizer__momentum=0.0,
    optimizer__weight_decay=0.1,
    optimizer__decay_after_exchange=after,
  )
  params = {'w': jnp.arange(1.0, 5.0).reshape(2, 2)}
  updates, _ = tx.update({'w': jnp.zeros((2, 2))}, tx.init(params), params)
  found = -updates['w'] / 0.5
  expected = 0.1 * params['w'] if after else [[0, 0], [0.25, 0.25]]
  np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
def test_weight_decay_is_after_the_exchange_of_second_moments():
  params = {'w': jnp.ones((2, 2))}
  tx = _chain('variance_based', {'alpha': 1.0}, optimizer__weight_decay=0.1)
  zero = {'w': jnp.zeros((2, 2))}
  updates, _ = tx.update(zero, tx.init(params), params, second_moment=zero)
  np.testing.assert_allclose(updates['w'], -0.05, rtol=1e-6)


def test_clipping_precedes_the_scheme():
  clipped = _run(_chain('dense', {}, compression__clip_norm=0.25))
  expected = _run(
    optax.chain(optax.clip_by_global_norm(0.25), optax.sgd(0.5, 0.9))
  )
  np.testing.assert_allclose(clipped, expected, rtol=1e-5)


@pytest.mark.parametrize(
  'density',
  [
    pytest.param(
      lambda step: jnp.where(step < 4, 1.0, 0.25), marks=pytest.mark.slow
    ),
    gs.schedules.DensitySchedule(((0, 1.0), (1, 0.5), (2, 1.0), (3, 0.25))),
  ],
)
def test_accumulated_steps_are_as_far_in_the_schedules(density):
  schedule = lambda step: jnp.where(step < 4, 0.1, 0.5)
  tx = _chain(
    'gradient_dropping',
    {'density': density},
    learning_rate=schedule,
    optimizer__momentum=0.0,
    optimizer__accumulate=2,
  )
  params = {'w': jnp.zeros((2, 2))}
  state = tx.init(params)
  update = jax.jit(tx.update)
  for step in range(6):
    grads = {'w': jnp.arange(1.0, 5.0).reshape(2, 2) + 2 * (step % 2)}
    updates, state = update(grads, state)
    # Steps 0 and 1, and 2 and 3, send all of it; 4 and 5 a quarter.
    wanted = {1: [0.2, 0.3, 0.4, 0.5], 3: [0.2, 0.3, 0.4, 0.5]}
    wanted = wanted.get(step, [0, 0, 0, 2.5 if step == 5 else 0])
    np.testing.assert_allclose(updates['w'].ravel(), -np.float32(wanted))


@pytest.mark.slow
def test_messages_of_accumulated_steps_have_the_sizes_of_the_stages():
  params = {'w': jnp.zeros((50, 40))}
  stages = gs.schedules.dgc_warmup(0.01, 10)

  def planned(density, exchange):
    arguments = {'density': density, 'min_size': 0}
    tx = _chain(
      'gradient_dropping',
      arguments,
      axis_name='workers',
      optimizer__accumulate=4,
    )
    return gs.plan(tx, params, 2, step=exchange).payload_bytes

  for exchange in range(4):
    now = stages.at(4 * exchange)
    assert planned(stages, exchange) == planned(now, exchange)


@pytest.mark.parametrize('name', marks.few(optimizer.OPTIMIZERS, 'adamw'))
def test_the_optimizer_hears_nothing_of_a_rejected_step(name):
  tx = _chain('gradient_dropping', {'density': 0.5}, optimizer__name=name)
  params = {'w': jnp.arange(1.0, 5.0)}
  grads = {'w': jnp.arange(4.0)}
  spoiled = {'w': grads['w'].at[1].set(jnp.nan)}
  update = jax.jit(tx.update)
  _, before = update(grads, tx.init(params), params)
  state = before
  for count in (1, 2):
    updates, state = update(spoiled, state, params)
    np.testing.assert_array_equal(updates['w'], 0)
    assert optax.tree.get(state, 'consecutive') == count
  jax.tree.map(np.testing.assert_array_equal, state[-1].inner, before[-1].inner)
  updates, state = update(grads, state, params)
  assert np.any(updates['w']) and np.all(np.isfinite(updates['w']))
  assert optax.tree.get(state, 'consecutive') == 0
