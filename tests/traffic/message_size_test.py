"""No message is larger than the gradient that it stands for."""

import inspect

import gradsparse as gs
import jax
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests import schemes

WORKERS = 5
# Scalars and other small leaves, for settings as they are.
SMALL = ({'a': ()}, {'a': (), 'b': (2,), 'c': (), 'd': (1, 1)})
# Where each of these arguments in turn makes messages large.
LARGE = {'a': (30, 40)}
EXTREMES = {
  'density': (1e-6, 0.5, 0.97, 1.0),
  'levels': (1, 2**14),
  'rank': (1, 17),
  'bucket_size': (1,),
  'chunk_size': (1,),
  'bin_size': (1,),
  'ladder': ((1e-6, 0.5, 0.97, 1.0),),
}


def cases(setting):
  """(keywords, shapes) pairs."""
  taken = inspect.signature(setting.recipe).parameters
  own = dict(zip(taken, setting.args, strict=False)) | setting.kwargs
  if 'min_size' in taken:
    own['min_size'] = 0
  yield from ((own, shapes) for shapes in (*SMALL, LARGE))
  for name in set(EXTREMES) & set(own):
    yield from ((own | {name: value}, LARGE) for value in EXTREMES[name])


# Entries, a rule's, levels, and bits.
FAST = ('dgc', 'variance', 'qsgd', 'one_bit')


@pytest.mark.parametrize('name', marks.few(schemes.BY_NAME, *FAST))
def test_no_message_is_larger_than_the_dense_one(name):
  setting = schemes.BY_NAME[name]
  for kwargs, shapes in cases(setting):
    params = {k: jax.ShapeDtypeStruct(s, np.float32) for k, s in shapes.items()}
    tx = setting.recipe(axis_name=schemes.AXIS, **kwargs)
    try:
      plan = gs.plan(tx, params, WORKERS)
    except ValueError as e:
      assert 'has nothing to compress' in str(e)
      continue
    payloads = [plan.payload_bytes, *(payload for payload, _ in plan.rungs)]
    assert max(payloads) <= plan.dense_bytes, (kwargs, shapes)


@pytest.mark.slow
@pytest.mark.parametrize('topology', ['butterfly', 'tree', 'allgather'])
@pytest.mark.parametrize('density', [0.97, 1.0])
def test_entries_of_gtopk_may_travel_as_a_whole_vector(density, topology):
  """Zeros among them, too: an entry that cancels out is still an entry."""
  workers, n = 3, 40
  tx = gs.gtopk(density, topology=topology, axis_name=replay.AXIS)
  rng = np.random.default_rng(0)
  grads = rng.normal(size=(workers, n)).astype(np.float32)
  grads[:, 3] = 4.0, -4.0, 0.0
  grads[:, 5] = -0.0
  state = gs.workers.stack(tx.init(np.zeros(n, np.float32)), workers)
  step = jax.jit(jax.vmap(tx.step, axis_name=replay.AXIS))
  updates, state, delivered = step(grads, state)
  for update in updates:
    np.testing.assert_array_equal(update, updates[0])
  assert np.all(np.count_nonzero(updates, axis=1) <= np.ceil(density * n))
  close = dict(rtol=1e-6, atol=1e-6)
  np.testing.assert_allclose(delivered.sum(0) / workers, updates[0], **close)
  np.testing.assert_allclose(gs.pending(state) + delivered, grads, **close)
  if density == 1:
    np.testing.assert_allclose(updates[0], grads.mean(0), **close)
  # A worker that is not healthy makes all of them reject the step.
  grads[2, 0] = np.nan
  updates, after, _ = step(grads, state)
  assert np.all(np.isnan(updates))
  np.testing.assert_array_equal(after.stats.rejected_steps, 1)
  np.testing.assert_array_equal(
    gs.pending(after)[:2], (gs.pending(state) + grads)[:2]
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [
    lambda **how: gs.qsgd(7, bucket_size=1, **how),
    lambda **how: gs.one_bit_sgd(exchange='reduce_scatter', **how),
    lambda **how: gs.sign_majority(scale=0.5, memory=True, **how),
  ],
)
def test_what_is_too_small_to_code_keeps_the_laws(make):
  gs.testing.check_scheme(
    lambda axis_name: make(axis_name=axis_name, min_size=0),
    trees={'one': {'a': ()}},
    num_workers=(3,),
    runners=('simulate',),
  )
