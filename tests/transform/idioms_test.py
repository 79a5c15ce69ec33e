"""The ways in which Equinox, NNX and Haiku call an optax transformation."""

import dataclasses
from typing import Any

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks

AXIS = gs.workers.AXIS
WORKERS = 2
# A leaf that every recipe compresses, and one that most keep dense.
PARAMS = {'kernel': jnp.ones((100, 100)), 'bias': jnp.zeros(4)}


@pytest.mark.parametrize('name', marks.few(gs.recipes.RECIPES, 'dgc', 'ef21'))
def test_what_all_share_leaves_a_vmap_by_out_axes_none(name):
  tx = gs.recipes.RECIPES[name].make(axis_name=AXIS)
  state = gs.workers.init(tx, PARAMS, WORKERS)
  axes = jax.tree.map(
    lambda spec: None if spec == P() else 0,
    gs.workers.specs(tx, PARAMS, WORKERS),
  )

  def step(grads, state):
    return tx.update(grads, state, second_moment=grads)

  fn = jax.vmap(step, axis_name=AXIS, in_axes=(0, axes), out_axes=(None, axes))
  grads = gs.workers.stack(PARAMS, WORKERS)
  updates, after = jax.eval_shape(fn, grads, state)
  chex.assert_trees_all_equal_shapes(updates, PARAMS)
  chex.assert_trees_all_equal_shapes(after, state)


def test_the_update_that_all_share_is_that_of_each():
  tx = gs.gradient_dropping(0.1, axis_name=AXIS)
  grads = np.random.default_rng(0).normal(size=(WORKERS, 30))

  def step(grads):
    return tx.update(grads, tx.init(grads))[0]

  one = jax.vmap(step, axis_name=AXIS, out_axes=None)
  each = jax.vmap(lambda g: gs.workers.local(step(g)), axis_name=AXIS)
  grads = jnp.asarray(grads, jnp.float32)
  np.testing.assert_array_equal(jax.jit(each)(grads), [jax.jit(one)(grads)] * 2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Module:
  """Like an eqx.Module: its fields are leaves, functions too."""

  kernel: Any
  activation: Any


TX = optax.chain(gs.dgc(0.1, axis_name=AXIS), optax.sgd(0.1))


@pytest.mark.parametrize(
  'call',
  [
    lambda model: gs.dgc(0.1, axis_name=AXIS).init(model),
    lambda model: gs.workers.init(TX, model, 2),
    lambda model: gs.workers.specs(TX, model, 2),
    lambda model: gs.plan(TX, model, 2),
  ],
  ids=['scheme', 'init', 'specs', 'plan'],
)
@pytest.mark.parametrize('leaf', [jax.nn.relu, jnp.tanh, 'relu'])
def test_a_model_with_functions_in_it_must_be_divided_first(call, leaf):
  with pytest.raises(TypeError) as e:
    call(Module(jnp.ones((4, 4)), leaf))
  for said in (
    '.activation must be an array',
    f'got {leaf!r}'[:20],
    'eqx.partition(model, eqx.is_inexact_array)',
  ):
    assert said in str(e.value)


def test_its_arrays_are_taken_as_they_are():
  params = Module(jnp.ones((4, 4)), None)
  state = gs.workers.init(TX, params, 2)
  assert gs.pending(state).kernel.shape == (2, 4, 4)
