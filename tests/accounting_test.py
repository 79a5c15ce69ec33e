"""plan(): published sizes from shapes alone, ladders, axes, and its table."""

from __future__ import annotations

import gradsparse as gs
import jax
import jax.numpy as jnp
import optax
import pytest
from tests.oracles import wire_sizes

# Tables 3 and 4 of the DGC paper; the counts behind them are those of
# k = 0.001 n, and ours rounds k up leaf by leaf.
RATIOS = {
  'alexnet': 597.7,
  'resnet50': 276.7,
  'ptb_lstm': 461.8,
  'deepspeech': 608.1,
}


def shapes_of(model):
  return {
    name: jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, shape in wire_sizes.MODELS[model]().items()
  }


@pytest.mark.parametrize('model, ratio', RATIOS.items())
def test_plan_reproduces_the_published_sizes_of_dgc(model, ratio):
  tx = gs.dgc(0.001, indices='run_length', axis_name='workers')
  plan = gs.plan(tx, shapes_of(model), num_workers=4)
  assert plan.ratio == pytest.approx(ratio, rel=1e-3)
  # To the byte: k rounded up a leaf, 48 bits each, one word of health.
  whole = wire_sizes.dgc_bytes(wire_sizes.MODELS[model](), whole_k=True)
  assert plan.payload_bytes == pytest.approx(whole + 4, abs=4)


PARAMS = {'w': jnp.zeros((100, 64)), 'b': jnp.zeros(64)}


def test_sent_bytes_are_the_largest_over_workers():
  butterfly = gs.gtopk(0.01, axis_name='workers')
  hop = gs.plan(butterfly, PARAMS, 2).sent_bytes
  assert gs.plan(butterfly, PARAMS, 8).sent_bytes == 3 * hop
  # Rank 0 of three receives the fold, merges with rank 1, and hands down the
  # result with a mask of k = 65 bits.
  assert gs.plan(butterfly, PARAMS, 3).sent_bytes == 2 * hop + 4 * 3
  gather = gs.gradient_dropping(0.01, axis_name='workers')
  plan = gs.plan(gather, PARAMS, 5)
  assert plan.sent_bytes == 4 * plan.payload_bytes


def test_a_schedule_is_read_at_the_step_asked_for():
  schedule = gs.schedules.dgc_warmup(0.001, 40)
  tx = gs.dgc(schedule, axis_name='workers', min_size=0)
  last = gs.plan(tx, PARAMS, 2)
  first = gs.plan(tx, PARAMS, 2, step=0)
  assert last.payload_bytes < first.payload_bytes
  fixed = gs.dgc(0.001, axis_name='workers', min_size=0)
  assert last.payload_bytes == gs.plan(fixed, PARAMS, 2).payload_bytes
  assert len(last.rungs) == 5


def test_a_sampled_threshold_is_planned_with_its_slots():
  """13 slots for 10 elements expected, empty or not: as many as for 13."""
  shape = jax.ShapeDtypeStruct((100, 100), jnp.float32)
  sampled = gs.dgc(0.001, sample_rate=0.01, axis_name='workers')
  exact = gs.dgc(0.0013, axis_name='workers')
  assert gs.plan(sampled, shape, 4) == gs.plan(exact, shape, 4)


def test_two_levels_are_told_apart():
  tx = optax.chain(
    gs.dense(axis_name='device'), gs.dgc(0.01, axis_name='node'), optax.sgd(1)
  )
  plan = gs.plan(tx, PARAMS, {'device': 4, 'node': 2})
  assert plan.dense_bytes == 4 * 6464
  alone = gs.plan(gs.dgc(0.01, axis_name='node'), PARAMS, 2)
  assert plan.over('node').payload_bytes == alone.payload_bytes
  assert plan.over('node').sent_bytes == alone.sent_bytes
  assert plan.sent_bytes == alone.sent_bytes + plan.over('device').sent_bytes
  with pytest.raises(ValueError, match='nothing is exchanged over'):
    plan.over('workers')


def test_the_table_has_a_row_a_leaf_and_a_total():
  lines = str(gs.plan(gs.dgc(0.01, axis_name='w'), PARAMS, 2)).splitlines()
  assert [line.split()[0] for line in lines] == [
    'leaf', "['b']", "['w']", 'total',
  ]  # fmt: skip


def test_a_second_plan_counts_again():
  tx = gs.qsgd(7, axis_name='workers', min_size=0)
  assert gs.plan(tx, PARAMS, 4) == gs.plan(tx, PARAMS, 4)
  assert gs.plan(tx, PARAMS, 4).sent_bytes > 0


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: gs.plan(gs.dense(axis_name='w'), PARAMS, 0), 'num_workers'),
    (lambda: gs.plan(optax.sgd(0.1), PARAMS, 2), 'no gradsparse scheme'),
  ],
)
def test_what_cannot_be_planned_is_an_error(call, message):
  with pytest.raises(ValueError, match=message):
    call()
