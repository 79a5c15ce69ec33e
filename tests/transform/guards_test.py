"""Compositions that are refused, or warned of, while a program is traced."""

import warnings

import gradsparse as gs
import jax
import jax.numpy as jnp
import optax
import pytest
from tests import marks
from tests.replay import AXIS
from tests.simulation import PARAMS
from tests.simulation import gradients

# --- what is refused --------------------------------------------------------


def test_apply_if_finite_around_a_scheme_is_refused():
  for inner in (
    gs.dense(axis_name=AXIS),
    optax.chain(gs.dgc(0.1, axis_name=AXIS), optax.sgd(0.1)),
  ):
    tx = optax.apply_if_finite(inner, 3)
    state = gs.workers.stack(tx.init(PARAMS), 2)
    with pytest.raises(ValueError, match='apply_if_finite'):
      jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), gradients(), state)


def test_multi_steps_that_skips_by_gradient_is_refused():
  tx = optax.MultiSteps(
    gs.dense(axis_name=AXIS), 2, should_skip_update_fn=optax.skip_not_finite
  )
  state = gs.workers.stack(tx.init(PARAMS), 2)
  with pytest.raises(ValueError, match='should_skip_update_fn'):
    jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), gradients(), state)


def test_masked_is_refused():
  tx = optax.masked(
    gs.dgc(0.1, axis_name=AXIS), {'kernel': True, 'bias': False}
  )
  with pytest.raises(ValueError, match='optax.partition'):
    tx.init(PARAMS)


def of_all(label):
  return lambda tree: jax.tree.map(lambda _: label, tree)


def test_so_is_masked_around_a_partition_and_inside_of_one():
  dense, labels = gs.dense(axis_name=AXIS), {'kernel': 'a', 'bias': 'b'}
  partition = optax.partition({'a': dense, 'b': dense}, labels)
  some = {'kernel': True, 'bias': False}
  inside = optax.partition({'a': optax.masked(dense, some), 'b': dense}, labels)
  for tx in (optax.masked(partition, some), inside):
    with pytest.raises(ValueError, match='without averaging'):
      tx.init(PARAMS)
  nested = optax.partition(
    {'a': optax.partition({'a': dense}, of_all('a')), 'b': dense}, labels
  )
  for tx in (partition, nested):
    tx.init(PARAMS)


@pytest.mark.parametrize(
  'around', [optax.conditionally_transform, optax.conditionally_mask]
)
def test_steps_that_nobody_averages_are_refused(around):
  tx = around(gs.dense(axis_name=AXIS), lambda step: step % 2 == 0)
  state = gs.workers.stack(tx.init(PARAMS), 2)
  with pytest.raises(ValueError, match=r'gs\.accumulate'):
    jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), gradients(), state)


# --- what is warned of ------------------------------------------------------


def test_multi_steps_has_the_second_moment_of_one_batch():
  scheme = gs.variance_based(1.0, values='float32', axis_name=AXIS)
  tx = optax.MultiSteps(scheme, every_k_schedule=2)
  with pytest.warns(UserWarning, match='second moment of the last mini-batch'):
    gs.plan(tx, PARAMS, 2)


def test_multi_steps_of_every_step_is_not_warned_of():
  tx = optax.MultiSteps(gs.dense(axis_name=None), every_k_schedule=1)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    tx.update(PARAMS, tx.init(PARAMS), PARAMS)


def test_state_with_its_worker_axis_is_refused_inside_of_multi_steps():
  inner = gs.dgc(0.1, momentum=0.0, axis_name=AXIS)
  tx = optax.MultiSteps(inner, every_k_schedule=2)
  params = {'kernel': jnp.zeros((12, 10)), 'bias': jnp.zeros(11)}
  state = gs.workers.init(tx, params, 2)
  with pytest.raises(ValueError, match='worker axis of gs.workers.init'):
    jax.vmap(
      lambda grads: tx.update(grads, state, params),
      axis_name=AXIS,
      axis_size=2,
      in_axes=None,
    )(params)


def test_multi_steps_is_warned_of_once():
  tx = optax.MultiSteps(gs.dense(axis_name=AXIS), every_k_schedule=2)
  with pytest.warns(UserWarning) as caught:
    for _ in range(2):
      gs.plan(tx, PARAMS, 2)
  (text,) = [str(w.message) for w in caught]
  for said in (
    'optax.MultiSteps',
    'every mini-step',
    'gs.accumulate(tx, every=k) gives the same updates',
  ):
    assert said in text


def dgc(**kwargs):
  return gs.dgc(0.5, axis_name=AXIS, **kwargs)


def labels(kernel, bias):
  return {'kernel': kernel, 'bias': bias}


MOMENTUM = optax.sgd(0.1, momentum=0.9)

TWICE = {
  'sgd': lambda: optax.chain(dgc(), MOMENTUM),
  'adam': lambda: optax.chain(dgc(), optax.adam(0.1)),
  'lion': lambda: optax.chain(dgc(momentum=0.5), optax.lion(0.1)),
  'behind_others': lambda: optax.chain(
    dgc(), optax.add_decayed_weights(0.1), optax.chain(MOMENTUM)
  ),
  'wrapped': lambda: optax.chain(dgc(), optax.apply_if_finite(MOMENTUM, 3)),
  'named': lambda: optax.named_chain(('dgc', dgc()), ('sgd', MOMENTUM)),
  'of_a_part': lambda: optax.chain(
    optax.partition(
      {'a': dgc(), 'b': gs.dense(axis_name=AXIS)}, labels('a', 'b')
    ),
    MOMENTUM,
  ),
  'before': lambda: optax.chain(optax.trace(0.9), dgc(), optax.sgd(0.1)),
  'named_before': lambda: optax.named_chain(('sgd', MOMENTUM), ('dgc', dgc())),
  'inside': lambda: optax.chain(optax.chain(dgc(), optax.identity()), MOMENTUM),
}
ONCE = {
  'sgd': lambda: optax.chain(dgc(), optax.sgd(0.1)),
  'no_momentum': lambda: optax.chain(dgc(momentum=0.0), optax.adam(0.1)),
  'residual': lambda: optax.chain(
    gs.gradient_dropping(0.5, axis_name=AXIS), MOMENTUM
  ),
  'labels': lambda: optax.partition(
    {
      'a': optax.chain(dgc(), optax.sgd(0.1)),
      'b': optax.chain(gs.dense(axis_name=AXIS), MOMENTUM),
    },
    labels('a', 'b'),
  ),
  'labels_apart': lambda: optax.chain(
    optax.partition(
      {'a': dgc(), 'b': gs.dense(axis_name=AXIS)}, labels('a', 'b')
    ),
    optax.partition({'a': optax.sgd(0.1), 'b': MOMENTUM}, labels('a', 'b')),
  ),
  'two_levels': lambda: optax.chain(
    gs.dense(axis_name=AXIS), gs.dgc(0.5, axis_name=None), optax.sgd(0.1)
  ),
}


def said_of(call):
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    call()
  return [str(w.message) for w in caught if w.category is UserWarning]


@pytest.mark.parametrize(
  'name', marks.few(TWICE, 'sgd', 'behind_others', 'of_a_part', 'before')
)
def test_a_second_momentum_is_warned_of_once(name):
  tx = TWICE[name]()
  (text,) = said_of(lambda: gs.plan(tx, PARAMS, 2))
  for said in ('second momentum', 'optax.sgd(lr)', 'gs.dgc(momentum=0.0)'):
    assert said in text
  assert not said_of(lambda: gs.workers.init(tx, PARAMS, 2))


def test_a_chain_alone_is_warned_of_when_its_update_is_traced():
  tx = optax.chain(gs.dgc(0.5, axis_name=None), optax.adam(0.1))
  state = tx.init(PARAMS)
  (text,) = said_of(lambda: jax.jit(tx.update).lower(PARAMS, state))
  assert 'ScaleByAdamState' in text
  for tx in (TWICE['sgd'](), TWICE['adam']()):
    assert len(said_of(lambda tx=tx: gs.workers.init(tx, PARAMS, 2))) == 1


@pytest.mark.parametrize('name', marks.few(ONCE, 'sgd', 'labels'))
def test_one_momentum_is_not_warned_of(name):
  tx = ONCE[name]()
  assert not said_of(lambda: gs.plan(tx, PARAMS, 2))
