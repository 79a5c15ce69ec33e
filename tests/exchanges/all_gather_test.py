"""Which way a sparse message goes: gathered, or in a dense all-reduce."""

from __future__ import annotations

import math

import gradsparse as gs
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import wire_sizes

# Bits of a value on the wire.
BITS = {'float32': 32, 'exponent4': 4}


def message_bytes(slots, n, values):
  """A word of health, Elias-Fano indices, values (one byte of exponent)."""
  low = max(0, math.floor(math.log2(n / slots)))
  high = slots + math.ceil(n / 2**low)
  words = math.ceil(slots * low / 32) + math.ceil(high / 32)
  words += math.ceil(slots * BITS[values] / 32) + (values == 'exponent4')
  return wire_sizes.message_bytes(words)


@pytest.mark.parametrize('values', BITS)
@pytest.mark.parametrize('workers', marks.few([2, 3, 4, 8, 64], 2, 64))
@pytest.mark.parametrize(
  'density', marks.few([0.01, 0.1, 0.25, 0.5, 1.0], 0.1, 1.0)
)
def test_a_message_goes_the_way_that_sends_fewer_bytes(
  density, workers, values
):
  n = 100_000
  shape = jax.ShapeDtypeStruct((n,), np.float32)
  tx = gs.gradient_dropping(density, values=values, axis_name='workers')
  plan = gs.plan(tx, shape, workers)
  # Known from elsewhere: within a few words.
  message = message_bytes(math.ceil(density * n), n, values)
  gathered = (workers - 1) * message
  reduced = 2 * (workers - 1) / workers * 4 * n
  assert plan.sent_bytes == pytest.approx(min(gathered, reduced), rel=1e-3)
  own = message if gathered < reduced else 4 * n
  assert plan.payload_bytes == pytest.approx(own, rel=1e-3)


@pytest.mark.parametrize(
  'values, sent', [('float32', 3.4e6), ('exponent4', 0.75e6)]
)
def test_a_quarter_of_a_million_among_four(values, sent):
  """It was 6.0 MB, dense."""
  shape = jax.ShapeDtypeStruct((1_000_000,), np.float32)
  tx = gs.gradient_dropping(0.25, values=values, axis_name='workers')
  assert gs.plan(tx, shape, 4).sent_bytes == pytest.approx(sent, rel=0.05)


@pytest.mark.parametrize('density', [0.01, 0.5, 1.0])
def test_one_worker_reports_what_each_of_two_would(density):
  """It sends nothing; its payload never exceeds the dense gradient."""
  params = np.zeros(1000, np.float32)
  alone, of_two = (
    gs.plan(gs.gradient_dropping(density, axis_name=axis), params, workers)
    for axis, workers in ((None, 1), ('workers', 2))
  )
  assert alone.sent_bytes == 0
  assert alone.payload_bytes == of_two.payload_bytes <= 4000


@pytest.mark.parametrize(
  'topology', marks.few(['butterfly', 'tree', 'allgather'], 'butterfly')
)
def test_gtopk_never_becomes_dense(topology):
  params = np.zeros(1000, np.float32)
  tx = gs.gtopk(1.0, topology=topology, axis_name='workers')
  (row,) = gs.plan(tx, params, 8).rows
  assert 'dense' not in row.transport


N, WORKERS = 400, 4


def on_a_mesh(density, values):
  """One step of gradient dropping on four devices.

  Returns:
    (tx, gradients, mean, delivered, pending, payload bytes, audit).
  """
  tx = gs.gradient_dropping(density, values=values, axis_name=replay.AXIS)
  params = np.zeros(N, np.float32)
  specs = gs.workers.specs(tx, params, WORKERS)
  state = gs.workers.init(tx, params, WORKERS)
  fn = gs.workers.parallel(
    lambda state, g: tx.step(g, state),
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(specs, replay.OWN),
    out_specs=(P(), specs, replay.OWN),
  )
  grads = np.random.default_rng(0).normal(size=(WORKERS, N))
  grads = grads.astype(np.float32)
  compiled = fn.lower(state, grads).compile(replay.QUICKLY)
  mean, state, delivered = compiled(state, grads)
  payload = gs.metrics(state)['payload_bytes']
  pending = np.asarray(gs.pending(state))
  return tx, grads, mean, delivered, pending, payload, gs.audit(compiled)


# With four workers messages of more than 2 N bytes go densely: between 0.4
# and 0.5 of all as float32, never with four bits.
@pytest.mark.parametrize(
  'density, values, way',
  [
    pytest.param(0.4, 'float32', 'all-gather', marks=pytest.mark.slow),
    (0.5, 'float32', 'dense all-reduce'),
    (1.0, 'exponent4', 'all-gather'),
  ],
)
def test_plan_payload_and_program_agree_on_either_way(density, values, way):
  tx, grads, mean, delivered, pending, payload, audit = on_a_mesh(
    density, values
  )
  plan = gs.plan(tx, np.zeros(N, np.float32), WORKERS)
  (row,) = plan.rows
  assert row.transport.endswith(way)
  assert plan.sent_bytes == audit.sent_bytes
  assert plan.payload_bytes == payload
  (collective,) = {c.kind for c in audit.collectives}
  assert collective == ('all_reduce' if 'dense' in way else 'all_gather')
  # Selection and memory do not know which way it went.
  k = round(density * N)
  for g, sent, owed in zip(grads, np.asarray(delivered), pending, strict=True):
    where = np.argsort(-np.abs(g), kind='stable')[:k]
    assert set(np.flatnonzero(sent)) <= set(where)
    np.testing.assert_allclose(sent + owed, g, atol=1e-6)
    if values == 'float32':
      np.testing.assert_array_equal(sent[where], g[where])
  np.testing.assert_allclose(mean, np.mean(delivered, axis=0), atol=1e-6)


@pytest.mark.slow
def test_rounded_values_stay_rounded_in_a_dense_all_reduce():
  """Of 32 workers, four bits too go densely; they are powers of two."""
  tx = gs.gradient_dropping(1.0, values='exponent4', axis_name=replay.AXIS)
  drawn = replay.drawn_steps(32, count=1, shapes=((40,),))
  (step,) = replay.replay(tx, drawn)
  assert step.metrics['payload_bytes'] == 4 * 40
  for w in range(32):
    sent = step.delivered[w][0]
    np.testing.assert_array_equal(np.log2(np.abs(sent[sent != 0])) % 1, 0)
    total = sent + step.pending[w][0]
    np.testing.assert_allclose(total, step.grads[w][0], atol=1e-6)
