"""What an average of parameters sends: as planned, and as compiled."""

import gradsparse as gs
import jax.numpy as jnp
import optax
import pytest
from tests import replay

AXIS = gs.workers.AXIS
PARAMS = {'kernel': jnp.ones((6, 5)), 'bias': jnp.ones(4, jnp.bfloat16)}
FLOATS = 34


def local(*others):
  dropping = gs.gradient_dropping(0.1, axis_name=AXIS)
  return optax.chain(gs.local_gradient(dropping, 'partial'), *others)


def sent_when_compiled(tx, num_workers):
  """Bytes a worker, of a program that averages in every step."""
  own = gs.workers.params_spec(tx, PARAMS)
  specs = gs.workers.specs(tx, PARAMS, num_workers)
  params = gs.workers.stack(PARAMS, num_workers)
  state = gs.workers.init(tx, PARAMS, num_workers)
  fn = gs.workers.parallel(
    lambda p, s: gs.periodic_average(p, s, 0, every=1, axis_name=AXIS),
    runner='shard_map',
    num_workers=num_workers,
    in_specs=(own, specs),
    out_specs=(own, specs),
  )
  compiled = fn.lower(params, state).compile(replay.QUICKLY)
  return gs.audit(compiled).sent_bytes


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [2, 3])
@pytest.mark.parametrize(
  'others, vectors',
  [
    ((optax.sgd(0.1),), 1),
    ((optax.sgd(0.1, momentum=0.9),), 2),
    ((optax.inject_hyperparams(optax.adam)(0.1),), 3),
    # What a worker owes, and gradients that wait for the next exchange, stay.
    ((), 1),
  ],
)
def test_a_plan_is_what_the_program_sends(num_workers, others, vectors):
  tx = local(*others)
  if not others:
    tx = gs.accumulate(tx, every=2)
  plan = gs.workers.plan_average(tx, PARAMS, num_workers, every=5)
  assert plan.payload_bytes == 4 * vectors * FLOATS
  assert plan.sent_bytes == sent_when_compiled(tx, num_workers)
  assert plan.sent_by_axis == {AXIS: plan.sent_bytes}
  assert plan.every == 5
  assert plan.over_run(14).sent_bytes == 2 * plan.sent_bytes / 14


def test_where_no_parameters_differ_nothing_is_averaged():
  tx = optax.chain(gs.gradient_dropping(0.1, axis_name=AXIS), optax.adam(0.1))
  plan = gs.workers.plan_average(tx, PARAMS, 2)
  assert not plan.rows and not plan.sent_bytes


def test_one_worker_sends_nothing():
  plan = gs.workers.plan_average(local(optax.sgd(0.1)), PARAMS, 1)
  assert plan.payload_bytes == 4 * FLOATS and not plan.sent_bytes


@pytest.mark.parametrize(
  'given, message',
  [
    ({'num_workers': 0}, 'num_workers must be'),
    ({'num_workers': 2, 'every': 0}, 'every must be at least 1'),
  ],
)
def test_what_is_out_of_range_is_refused(given, message):
  with pytest.raises(ValueError, match=message):
    gs.workers.plan_average(local(optax.sgd(0.1)), PARAMS, **given)
