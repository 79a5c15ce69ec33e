"""Large models and large buckets: what a message of QSGD counts."""

import gradsparse as gs
from gradsparse.codes import norm_buckets
from gradsparse.wire import streams
import jax
import jax.numpy as jnp
import numpy as np
import pytest

AXIS = 'workers'
# A layer of 8,388,608 elements.
LEAF = jax.ShapeDtypeStruct((1 << 13, 1 << 10), jnp.float32)


@pytest.mark.parametrize('code', ['elias_sparse', 'elias_dense'])
def test_no_message_has_more_than_a_stream_can_count(code):
  tx = gs.qsgd(7, code=code, axis_name=AXIS)
  layout = tx.layout([LEAF] * 100)
  groups = [len(group.compressed) for group in layout.groups()]
  assert sum(groups) == 100 and len(groups) >= 2
  most = layout.limits.group_elements
  assert most - LEAF.size < max(groups) * LEAF.size <= most
  # The longest gap takes 42 bits in omega, the longest level 6 or 7 and a sign.
  bits = {'elias_sparse': 49, 'elias_dense': 8}[code]
  assert most * bits < 2**32 - 64 <= (most + 1) * bits


@pytest.mark.slow
def test_a_model_of_a_hundred_million_has_a_plan():
  plan = gs.plan(gs.qsgd(7, code='elias', axis_name=AXIS), [LEAF] * 12, 2)
  assert 0 < plan.payload_bytes < 4 * 12 * LEAF.size / 7


def test_a_leaf_that_no_stream_can_count_is_sent_in_fixed_width():
  large = {'w': jax.ShapeDtypeStruct((1 << 14, 1 << 13), jnp.float32)}
  plans = [
    gs.plan(gs.qsgd(7, code=code, axis_name=AXIS), large, 2)
    for code in ('fixed', 'elias')
  ]
  assert plans[0].payload_bytes == plans[1].payload_bytes


@pytest.mark.slow
def test_such_leaves_arrive(monkeypatch):
  """As if streams could count hundreds."""
  monkeypatch.setattr(streams, 'most', lambda bits: 100)
  rng = np.random.default_rng(0)
  grads = {k: jnp.asarray(rng.normal(size=n), 'float32') for k, n in SIZES}
  tx = gs.qsgd(7, code='elias', axis_name=None, min_size=0)
  assert len(tx.layout(grads).groups()) == 2
  updates, _ = jax.jit(tx.update)(grads, tx.init(grads))
  for name, g in grads.items():
    step = np.max(np.abs(g)) / 7
    assert np.all(np.abs(updates[name] - g) <= 1.001 * step)
    assert np.count_nonzero(updates[name]) > 10


SIZES = (('large', 300), ('small', 90))


def test_a_bucket_is_no_larger_than_its_leaf():
  """It would be filled up with zeros, as many as nobody has memory for."""
  for shape, tile in (((10,), (1, 10)), ((3, 3, 4, 5), (9, 20)), ((), (1, 1))):
    how = norm_buckets.buckets(shape, 2**31)
    assert how.tile == tile and how.count == 1
