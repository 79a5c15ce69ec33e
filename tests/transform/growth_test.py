"""The program does not grow with the number of leaves, but elementwise."""

import collections
import re

import gradsparse as gs
import jax
import jax.numpy as jnp
import pytest
from tests import loops
from tests.schemes import AXIS
from tests.schemes import example

# What takes long to compile, and what is done once for many leaves. To cut one
# of many leaves out of a vector is a `dynamic_slice`, in loops that are equal
# for leaves of one shape, and so compiled once.
HEAVY = frozenset(
  'custom_call dot_general dynamic_update_slice reduce_window scatter sort '
  'while'.split()
)
ELEMENTS = 16 * 48 * 8
MANY = 24 << 12  # few would be sorted, leaf by leaf


def lowered(name, leaves, elements=ELEMENTS):
  """An update of so many leaves of one shape."""
  tx = example(name, axis_name=AXIS, min_size=0)
  params = [jax.ShapeDtypeStruct((elements // leaves // 8, 8), jnp.float32)]
  params *= leaves

  def update(grads, state):
    return tx.update(grads, state, second_moment=grads)

  def of_workers(tree):
    return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), tree
    )

  return jax.jit(jax.vmap(update, axis_name=AXIS)).lower(
    of_workers(params), of_workers(jax.eval_shape(tx.init, params))
  )


def heavy(name, leaves):
  """How many operations of each heavy kind it has."""
  found = collections.Counter(
    re.findall(r'stablehlo\.(\w+)', lowered(name, leaves).as_text())
  )
  return {kind: found[kind] for kind in HEAVY}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name == 'dgc' else pytest.mark.slow)
    for name in gs.recipes.RECIPES
  ],
)
def test_what_is_heavy_does_not_grow_with_the_number_of_leaves(name):
  few, many = heavy(name, 16), heavy(name, 48)
  assert all(many[kind] <= few[kind] for kind in HEAVY), (few, many)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  ['dgc', 'sign_majority', pytest.param('strom', marks=pytest.mark.slow)],
)
def test_leaves_of_one_shape_share_their_loops(name):
  few, many = (
    loops.distinct(lowered(name, leaves, MANY).compile().as_text())
    for leaves in (8, 24)
  )
  assert many <= few + 8, (few, many)
