"""plan(): published sizes from shapes alone, ladders, axes, and its table."""

from __future__ import annotations

import itertools
import math

import gradsparse as gs
import jax
import jax.numpy as jnp
import optax
import pytest
from tests import marks
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


@pytest.mark.parametrize(
  'model, ratio', marks.few(RATIOS.items(), ('alexnet', RATIOS['alexnet']))
)
def test_plan_reproduces_the_published_sizes_of_dgc(model, ratio):
  tx = gs.dgc(0.001, indices='run_length', axis_name='workers')
  plan = gs.plan(tx, shapes_of(model), num_workers=4)
  assert plan.ratio == pytest.approx(ratio, rel=2e-3)
  # To the byte: k rounded up a leaf, 48 bits each, one word of health, and
  # the end of the last row.
  shapes = wire_sizes.MODELS[model]()
  beside = 4 * wire_sizes.one_dimensional(shapes)
  entries = wire_sizes.dgc_bytes(shapes, whole_k=True) - beside
  message = wire_sizes.message_bytes(math.ceil(entries / 4))
  assert plan.payload_bytes == message + beside


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


@pytest.mark.slow
def test_a_schedule_is_read_at_the_step_asked_for():
  schedule = gs.schedules.dgc_warmup(0.001, 40)
  tx = gs.dgc(schedule, axis_name='workers', min_size=0)
  last = gs.plan(tx, PARAMS, 2)
  first = gs.plan(tx, PARAMS, 2, step=0)
  assert last.payload_bytes < first.payload_bytes
  fixed = gs.dgc(0.001, axis_name='workers', min_size=0)
  assert last.payload_bytes == gs.plan(fixed, PARAMS, 2).payload_bytes
  assert len(last.rungs) == 5


SCHEDULES = {
  'staged': (gs.schedules.dgc_warmup(0.01, 6), 0.01),
  'linear': (gs.schedules.LinearDropRatio(0.99, 6), 0.01),
  'drop_ratio_that_rounds_up': (
    gs.schedules.LinearDropRatio(0.997, 6),
    1 - 0.997,
  ),
  'optax': (optax.linear_schedule(1.0, 0.3, 6), 0.3),
  'rising': (lambda step: jnp.minimum(0.1 + 0.1 * step, 0.5), 0.5),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEDULES)
def test_after_its_warmup_a_schedule_sends_what_a_fixed_density_does(name):
  schedule, final = SCHEDULES[name]
  plan = gs.plan(gs.gradient_dropping(schedule, axis_name='w'), PARAMS, 3)
  fixed = gs.plan(gs.gradient_dropping(final, axis_name='w'), PARAMS, 3)
  assert plan.payload_bytes == fixed.payload_bytes
  assert plan.sent_bytes == fixed.sent_bytes
  assert plan.stages[-1][2:] == (
    fixed.payload_bytes,
    fixed.sent_bytes,
    fixed.ratio,
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', ['staged', 'linear'])
def test_stages_and_the_average_of_a_run_are_those_of_its_steps(name):
  schedule, _ = SCHEDULES[name]
  tx = gs.dgc(schedule, axis_name='workers')
  steps = [gs.plan(tx, PARAMS, 3, step=t) for t in range(9)]
  plan = steps[2]
  firsts = [0]
  for t, (before, after) in enumerate(itertools.pairwise(steps), 1):
    firsts += [t] if after.sent_bytes != before.sent_bytes else []
  assert [stage.first_step for stage in plan.stages] == firsts
  for stage in plan.stages:
    at = steps[stage.first_step]
    assert stage.density >= schedule(stage.first_step) * (1 - 1e-6)
    assert stage[2:] == (at.payload_bytes, at.sent_bytes, at.ratio)
  for count in (1, 2, 5, 9):
    run = plan.over_run(count)
    payload = sum(at.payload_bytes for at in steps[:count]) / count
    sent = sum(at.sent_bytes for at in steps[:count]) / count
    assert run == (payload, sent, plan.dense_bytes / payload)


def test_without_a_schedule_every_step_is_alike():
  plan = gs.plan(gs.dgc(0.01, axis_name='workers'), PARAMS, 3)
  assert plan.stages == ()
  assert plan.over_run(7) == (plan.payload_bytes, plan.sent_bytes, plan.ratio)
  # A schedule without warm-up is none; sizes that data decide are no stages.
  no_warmup = gs.schedules.dgc_warmup(0.01, 0)
  assert gs.plan(gs.dgc(no_warmup, axis_name='workers'), PARAMS, 3) == plan
  plan = gs.plan(gs.strom(1.0, axis_name='workers'), PARAMS, 3)
  assert plan.rungs and not plan.stages
  assert plan.over_run(7).sent_bytes == plan.sent_bytes


@pytest.mark.slow
def test_two_schedules_are_added_up():
  schedules = {
    'w': gs.schedules.DensitySchedule(((0, 0.2), (4, 0.1))),
    'b': gs.schedules.DensitySchedule(((0, 0.2), (2, 0.1), (4, 0.05))),
  }
  tx = optax.partition(
    {
      label: gs.gradient_dropping(schedule, axis_name='workers')
      for label, schedule in schedules.items()
    },
    {'w': 'w', 'b': 'b'},
  )
  plan = gs.plan(tx, PARAMS, 2)
  at = [(stage.first_step, stage.density) for stage in plan.stages]
  assert at == [(0, 0.2), (2, None), (4, None)]
  steps = [gs.plan(tx, PARAMS, 2, step=t) for t in range(6)]
  for stage in plan.stages:
    assert stage.sent_bytes == steps[stage.first_step].sent_bytes
  mean = sum(at.payload_bytes for at in steps) / 6
  assert plan.over_run(6).payload_bytes == mean


@pytest.mark.slow
def test_a_schedule_on_the_upper_of_two_levels():
  upper = gs.dgc(gs.schedules.dgc_warmup(0.01, 6), axis_name='node')
  tx = optax.chain(gs.dense(axis_name='device'), upper)
  plan = gs.plan(tx, PARAMS, {'device': 4, 'node': 2})
  alone = gs.plan(upper, PARAMS, 2)
  assert plan.over('node').sent_bytes == alone.sent_bytes
  assert plan.over('node').stages == alone.stages
  assert plan.over('device').stages == ()
  below = plan.over('device').sent_bytes
  assert [s.sent_bytes - below for s in plan.stages] == [
    s.sent_bytes for s in alone.stages
  ]


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
  with pytest.raises(ValueError, match='axis_name must be an axis'):
    plan.over('workers')


def test_the_table_has_a_row_a_leaf_and_a_total():
  lines = str(gs.plan(gs.dgc(0.01, axis_name='w'), PARAMS, 2)).splitlines()
  assert [line.split()[0] for line in lines] == [
    'leaf', "['b']", "['w']", 'total',
  ]  # fmt: skip


def test_below_the_table_is_a_line_a_stage():
  schedule = gs.schedules.DensitySchedule(((0, 0.25), (1500, 0.01)))
  plan = gs.plan(gs.dgc(schedule, axis_name='w'), PARAMS, 2)
  head, first, last = str(plan).splitlines()[4:]
  assert head.split() == [
    'steps', 'density', 'payload', 'B', 'sent', 'B', 'ratio',
  ]  # fmt: skip
  assert first.split()[:4] == ['0', 'to', '1,499', '0.25']
  assert last.split() == [
    '1,500', 'on', '0.01', f'{plan.payload_bytes:,}', f'{plan.sent_bytes:,}',
    f'{plan.ratio:.1f}',
  ]  # fmt: skip


def test_a_second_plan_counts_again():
  tx = gs.qsgd(7, axis_name='workers', min_size=0)
  assert gs.plan(tx, PARAMS, 4) == gs.plan(tx, PARAMS, 4)
  assert gs.plan(tx, PARAMS, 4).sent_bytes > 0


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: gs.plan(gs.dense(axis_name='w'), PARAMS, 0), 'num_workers'),
    (
      lambda: gs.plan(optax.sgd(0.1), PARAMS, 2),
      'must hold a gradsparse scheme',
    ),
    (
      lambda: gs.plan(gs.dense(axis_name='w'), PARAMS, 2).over_run(0),
      'steps must be at least 1, got 0',
    ),
  ],
)
def test_what_cannot_be_planned_is_an_error(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@pytest.mark.parametrize(
  'shape, ratio',
  [((1000, 1000), 250), ((10_000, 10), 10 / 2.002), ((25, 40, 100), 500 / 11)],
)
def test_both_factors_of_a_matrix_are_in_the_payload(shape, ratio):
  tx = gs.power_sgd(2, axis_name='workers')
  plan = gs.plan(tx, jnp.zeros(shape), 4)
  assert plan.ratio == pytest.approx(ratio)


def test_a_leaf_no_larger_than_its_two_factors_stays_dense():
  tx = gs.power_sgd(2, axis_name='workers', min_size=0)
  shapes = {'a': (64, 1), 'b': (4, 4), 'c': (4, 5), 'd': (1000, 10)}
  plan = gs.plan(tx, {k: jnp.zeros(s) for k, s in shapes.items()}, 4)
  sizes = [row.payload_bytes for row in plan.rows]
  assert sizes == [4 * 64, 4 * 16, 4 * 2 * 9, 4 * 2 * 1010]
  with pytest.raises(ValueError, match='no larger than their two factors'):
    tx.init({'a': jnp.zeros((64, 1)), 'b': jnp.zeros((4, 4))})
