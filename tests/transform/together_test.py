"""Leaves of one shape are computed together, as each would be by itself."""

import functools
import importlib

import chex
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import pytest
from tests.replicas import REPLICA
from tests.replicas import Program
from tests.replicas import draw
from tests.replicas import mesh_of
from tests.schemes import AXIS

# In its package the function of this name hides the module.
low_rank = importlib.import_module('gradsparse.codes.low_rank')

SIZES = {REPLICA: 2, 'fsdp': 2}
# Two shapes in turn, and one alone among them.
PARAMS = {
  'a': jnp.zeros((12, 6)),
  'b': jnp.zeros((4, 10)),
  'c': jnp.zeros((8, 8)),
  'd': jnp.zeros((12, 6)),
  'e': jnp.zeros((4, 10)),
  'f': jnp.zeros((12, 6)),
}
TOGETHER = [[0, 3, 5], [1, 4], [2]]

FACTORIES = {
  'dgc': functools.partial(gs.dgc, 0.1),
  'dryden': functools.partial(gs.dryden, 0.1),
  'gradient_dropping_chunk': functools.partial(
    gs.gradient_dropping, 0.1, scope='chunk', chunk_size=16
  ),
  'qsgd': functools.partial(gs.qsgd, 7),
  'random_k': functools.partial(gs.random_k, 0.1),
  'power_sgd': functools.partial(gs.power_sgd, 2),
}


@pytest.fixture
def many(monkeypatch):
  """Sets how many leaves of one shape are looped over."""
  return functools.partial(monkeypatch.setattr, low_rank, '_MANY')


def test_leaves_of_one_shape_are_found(many):
  shapes = [x.shape for x in jax.tree.leaves(PARAMS)]
  assert low_rank.classes_of(shapes) == [[i] for i in range(len(shapes))]
  many(2)
  assert low_rank.classes_of(shapes) == TOGETHER


def updates_of(factory, steps=3):
  """What steps of three workers return, and their last state."""
  tx = factory(axis_name=AXIS, min_size=0)
  step = jax.jit(jax.vmap(tx.update, axis_name=AXIS))
  state = jax.tree.map(lambda x: jnp.stack([x] * 3), tx.init(PARAMS))
  out = []
  for t in range(steps):
    updates, state = step(draw(PARAMS, 3, seed=t), state)
    out.append(updates)
  return out, state


@pytest.mark.slow
@pytest.mark.parametrize('name', FACTORIES)
def test_together_is_as_each_alone(name, many):
  alone = updates_of(FACTORIES[name])
  many(2)
  together = updates_of(FACTORIES[name])
  chex.assert_trees_all_close(together, alone, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [pytest.param(2, marks=pytest.mark.slow), 3])
def test_shards_of_one_shape_but_cut_otherwise_are_kept_apart(rank, many):
  # Each device has (6, 6) of every leaf: rows of some, columns of others.
  params = {k: jnp.zeros((12, 6)) for k in ('a', 'c', 'd')}
  params |= {k: jnp.zeros((6, 12)) for k in ('b', 'e', 'f')}
  specs = {k: P('fsdp') if k in 'acd' else P(None, 'fsdp') for k in params}

  def run():
    tx = gs.sharded(gs.power_sgd(rank, axis_name=REPLICA), specs)
    program = Program(tx, mesh_of(SIZES), specs=specs, params=params)
    state, out = program.state, []
    for t in range(2):
      updates, _, state = program(state, draw(params, 2, seed=t))
      out.append(updates)
    return out, state

  alone = run()
  many(2)
  chex.assert_trees_all_close(run(), alone, rtol=2e-5, atol=2e-5)
