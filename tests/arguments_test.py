"""What is a number. What is refused is in tests/bad_input."""

from __future__ import annotations

import gradsparse as gs
from gradsparse import arguments
import jax.numpy as jnp
import numpy as np
import optax
import pytest

PARAMS = {'kernel': jnp.zeros((40, 25)), 'bias': jnp.zeros(11)}
DENSE = gs.dense(axis_name=gs.workers.AXIS)


def test_numpy_scalars_outside_of_recipes():
  gs.clip_local_norm(np.float32(1), axis_name=None)
  gs.qsvrg(
    lambda params, x: 0.0,
    learning_rate=np.float32(0.1),
    inner_steps=np.int64(2),
    axis_name=None,
  )
  gs.accumulate(DENSE, every=np.int64(2))
  gs.value_and_grad_moments(lambda p, x: 0.0, microbatch=np.array(2))
  schedule = gs.schedules.DensitySchedule(((np.int64(0), np.float32(0.1)),))
  assert schedule.stages == ((0, 0.1),)
  assert type(schedule.stages[0][1]) is float
  falling = gs.schedules.LinearDropRatio(np.float32(0.9), np.array(5))
  assert falling == gs.schedules.LinearDropRatio(0.9, 5)
  plan = gs.plan(DENSE, PARAMS, 2)
  assert gs.plan(DENSE, PARAMS, np.int64(2), step=np.int32(1)) == plan
  assert plan.over_run(np.int64(3)) == plan.over_run(3)


def test_a_jax_scalar_is_checked_and_stays_one():
  given = jnp.float32(0.5)
  kept = arguments.number('x', given, arguments.FRACTION, traced=True)
  assert kept is given


@pytest.mark.parametrize(
  'value, words',
  [
    (1e-50, 'must be a finite number > 0 in float32, got 1e-50'),
    (1e50, r'must be a finite number > 0 in float32, got 1e\+50'),
    (10**400, 'must be a finite number > 0 in float32, got 1000'),
  ],
)
def test_what_float32_cannot_hold_is_refused(value, words):
  with pytest.raises(ValueError, match=f'threshold {words}'):
    gs.strom(value, axis_name=None)


def test_large_whole_numbers_are_floats_where_numbers_belong():
  tx = gs.strom(10**30, axis_name=None)
  _, state = tx.update(PARAMS, tx.init(PARAMS))
  assert gs.metrics(state)['rejected_steps'] == 0


@pytest.mark.parametrize(
  'make',
  [
    lambda n: gs.accumulate(DENSE, every=n),
    lambda n: gs.diloco(sync_every=n, axis_name=None),
    lambda n: gs.ada_comp(bin_size=n, axis_name=None),
    lambda n: gs.one_bit_adam(0.1, freeze_step=n, axis_name=None),
    lambda n: gs.skip_rejected(optax.sgd(0.1), max_consecutive=n),
  ],
)
def test_a_count_fits_int32(make):
  with pytest.raises(ValueError, match=r'must be in 1\.\.2147483647, got 2147'):
    make(2**31)
  make(2**31 - 1)
