"""JAX's settings for those who want no number converted behind their backs.

With `jax_numpy_rank_promotion='raise'` an array of fewer axes is not stretched,
and with `jax_numpy_dtype_promotion='strict'` two types do not become a third.
JAX says so while it traces, so nothing is compiled here.
"""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax
import pytest
from tests import marks
from tests import schemes

AXIS = schemes.AXIS
WORKERS = 3


@pytest.fixture(autouse=True)
def _strict():
  with (
    jax.numpy_rank_promotion('raise'),
    jax.numpy_dtype_promotion('strict'),
  ):
    yield


def simulated(fn, *args):
  """The types of what a function returns on each of the workers."""
  own = gs.workers.stack(args, WORKERS)
  return jax.eval_shape(jax.vmap(fn, axis_name=AXIS), *own)


def trace(tx, params):
  """One update, which is given a second moment too."""

  def step(grads):
    state = tx.init(params)
    return tx.update(grads, state, params, second_moment=grads)

  return simulated(step, params)


@pytest.mark.parametrize(
  'name',
  marks.few(['qsgd_scatter', *schemes.FIRST_NAMES], 'dgc', 'qsgd_scatter'),
)
def test_schemes(name):
  setting = schemes.BY_NAME[name]
  trace(setting.make(), setting.params)


@pytest.mark.slow
@pytest.mark.parametrize('recipe', ['dgc', 'gtopk', 'random_k', 'qsgd'])
def test_large_leaves(recipe):
  # Which are selected, joined and packed in other ways than small ones.
  params = schemes.zeros({'kernel': (3, 3, 40, 61), 'other': (200, 100)})
  trace(schemes.example(recipe, axis_name=AXIS), params)


@pytest.mark.parametrize(
  'around',
  [
    lambda tx: gs.accumulate(optax.chain(tx, optax.sgd(0.1)), every=2),
    lambda tx: optax.chain(gs.clip_local_norm(1.0, axis_name=AXIS), tx),
    lambda tx: gs.local_gradient(tx, mode='error'),
    pytest.param(
      lambda tx: gs.local_gradient(tx, mode='sum'), marks=pytest.mark.slow
    ),
    pytest.param(
      lambda tx: gs.local_gradient(tx, mode='partial'), marks=pytest.mark.slow
    ),
  ],
  ids=['accumulate', 'clip', 'error', 'sum', 'partial'],
)
def test_what_is_around_a_scheme(around):
  params = schemes.zeros(schemes.SMALL)
  trace(around(gs.dgc(0.1, axis_name=AXIS, min_size=0)), params)


@pytest.mark.slow
def test_checksums():
  for tx in (
    gs.dgc(0.1, axis_name=AXIS, verify=True),
    gs.gtopk(0.1, axis_name=AXIS, verify=True),
    gs.qsgd(7, axis_name=AXIS, exchange='reduce_scatter', verify=True),
  ):
    trace(tx, {'kernel': jnp.zeros((100, 110))})


@pytest.mark.slow
def test_workers():
  params = schemes.zeros(schemes.SMALL)
  clip = gs.clip_local_norm(1.0, axis_name=AXIS)

  def chained(scheme):
    return optax.chain(clip, scheme, optax.sgd(0.1, momentum=0.9))

  tx = chained(gs.gradient_dropping(0.1, axis_name=AXIS))
  state = gs.workers.init(tx, params, WORKERS)
  specs = gs.workers.specs(tx, params, WORKERS)
  run = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state, params),
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(P(AXIS), specs),
    out_specs=(P(), specs),
  )
  _, after = jax.eval_shape(run, gs.workers.stack(params, WORKERS), state)
  assert jax.tree.structure(after) == jax.tree.structure(state)
  assert gs.plan(tx, params, WORKERS).payload_bytes > 0
  assert float(gs.metrics(state)['residual_norm']) == 0
  assert len(jax.tree.leaves(gs.pending(state))) == 3
  for workers in (2, 5):
    gs.workers.resize(tx, state, workers)
  gs.switch(tx, chained(gs.ef21(0.1, axis_name=AXIS, min_size=0)), state)
