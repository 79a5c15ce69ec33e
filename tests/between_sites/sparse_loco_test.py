"""SparseLoCo beside its oracle, which was written from the paper alone."""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests.between_sites.oracles import sparse_loco

AXIS, EVERY = gs.workers.AXIS, 2
SHAPES = [(24, 20), (6, 10, 7), (9,)]


@functools.cache
def stepper(tx, num_workers):
  params = [np.zeros(shape, np.float32) for shape in SHAPES]
  specs = gs.workers.specs(tx, params, num_workers)

  def step(params, state, move):
    return tx.sync(jax.tree.map(jnp.add, params, move), state)

  own = P(AXIS)
  return gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=num_workers,
    in_specs=(own, specs, own),
    out_specs=(own, specs),
  )


@pytest.mark.parametrize(
  'mean, values, workers',
  [
    ('senders', 'table4', 3),
    pytest.param('workers', 'float32', 3, marks=pytest.mark.slow),
    pytest.param('workers', 'table4', 1, marks=pytest.mark.slow),
    pytest.param('senders', 'float32', 5, marks=pytest.mark.slow),
  ],
)
def test_it_does_what_the_oracle_does(mean, values, workers):
  k, tile, decay = 5, 8, 0.9
  scheme = gs.gradient_dropping(
    k / tile**2,
    scope='tile',
    tile=tile,
    values=values,
    mean=mean,
    error_decay=decay,
    axis_name=AXIS,
  )
  tx = gs.outer(scheme, optax.sgd(0.5), sync_every=EVERY)
  rng = np.random.default_rng(workers)
  start = [np.float32(rng.normal(size=shape)) for shape in SHAPES]
  method, compressor = sparse_loco.sparse_loco(
    start,
    sync_every=EVERY,
    learning_rate=0.5,
    k=k,
    tile=tile,
    mean=mean,
    error_decay=decay,
    values=values,
    dense=(2,),
  )
  params = gs.workers.stack(start, workers)
  state = gs.workers.init(tx, start, workers)
  expected = [[x.copy() for x in start] for _ in range(workers)]
  for _ in range(3 * EVERY):
    move = [np.float32(rng.normal(size=(workers, *shape))) for shape in SHAPES]
    params, state = stepper(tx, workers)(params, state, move)
    expected = method.step(
      [
        [x + m[w] for x, m in zip(tree, move, strict=True)]
        for w, tree in enumerate(expected)
      ]
    )
    for leaf, found in enumerate(params):
      for w in range(workers):
        np.testing.assert_allclose(found[w], expected[w][leaf], atol=1e-5)
  pending = gs.pending(state)
  found = gs.metrics(state)
  forgotten = (1 - decay) * found['residual_norm']
  assert found['forgotten_norm'] == pytest.approx(forgotten)
  for leaf in (0, 1):
    for w in range(workers):
      np.testing.assert_allclose(
        pending[leaf][w], compressor.pending[w][leaf], atol=1e-5
      )


def test_an_entry_takes_ten_bits():
  """k = 64 of 4096: 8 bits for its place, 2 for its value."""
  shapes = {'w': jax.ShapeDtypeStruct((2048, 2048), jnp.float32)}
  tx = gs.sparse_loco(axis_name=AXIS)
  plan = gs.plan(tx, shapes, 4)
  bits = 8 * plan.payload_bytes / (64 * 32 * 32)
  assert plan.every == 30 and 10 <= bits < 10.2
