"""Density schedules: the papers' stages, inside and outside of a program."""

from gradsparse import schedules
import jax
import jax.numpy as jnp
import numpy as np
import pytest


def test_dgc_warms_up_in_the_four_stages_of_the_paper():
  schedule = schedules.dgc_warmup(0.001, warmup_steps=400)
  assert schedule.stages == (
    (0, 0.25),
    (100, 0.0625),
    (200, 0.015625),
    (300, 0.004),
    (400, 0.001),
  )
  # Sparsity 75, 93.75, 98.4375, 99.6 and 99.9 %: section 4.1.
  sparsity = [100 * (1 - density) for _, density in schedule.stages]
  assert sparsity == pytest.approx([75, 93.75, 98.4375, 99.6, 99.9])


def test_gtopk_warms_up_as_printed():
  schedule = schedules.gtopk_warmup(0.001, warmup_steps=4)
  densities = [density for _, density in schedule.stages]
  assert densities == [0.25, 0.0725, 0.015, 0.004, 0.001]


def test_inside_and_outside_of_a_program_a_schedule_is_the_same():
  schedule = schedules.dgc_warmup(0.001, warmup_steps=10)
  inside = jax.jit(jax.vmap(schedule))(jnp.arange(15))
  outside = [schedule.at(step) for step in range(15)]
  np.testing.assert_array_equal(inside, np.float32(outside))
  assert sorted(set(outside)) == list(schedule.ladder)
  assert outside[9] == 0.004
  assert outside[10] == 0.001


@pytest.mark.parametrize('steps', [0, 1, 2, 3, 5, 7])
def test_a_short_warmup_skips_stages_but_ends_where_it_should(steps):
  schedule = schedules.dgc_warmup(0.001, warmup_steps=steps)
  first = [step for step, _ in schedule.stages]
  assert first[0] == 0
  assert schedule.stages[-1] == (steps, 0.001)
  assert sorted(set(first)) == first
  densities = [density for _, density in schedule.stages]
  assert sorted(densities, reverse=True) == densities


def test_stages_below_the_final_density_are_left_out():
  schedule = schedules.dgc_warmup(0.05, warmup_steps=40)
  assert schedule.stages == ((0, 0.25), (10, 0.0625), (40, 0.05))
  assert schedules.dgc_warmup(0.5, warmup_steps=40).stages == ((0, 0.5),)


def test_the_linear_drop_ratio_rises_to_its_end():
  schedule = schedules.LinearDropRatio(0.99, warmup_steps=100)
  densities = [float(schedule(step)) for step in (0, 50, 100, 1000)]
  assert densities == pytest.approx([1.0, 0.505, 0.01, 0.01], abs=1e-6)
  assert float(jax.jit(schedule)(jnp.int32(50))) == pytest.approx(0.505)


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda: schedules.DensitySchedule(()), 'begin at step 0'),
    (lambda: schedules.DensitySchedule(((1, 0.1),)), 'begin at step 0'),
    (lambda: schedules.DensitySchedule(((0, 0.1), (0, 0.2))), 'ascend'),
    (lambda: schedules.DensitySchedule(((0, 0.1), (5, 0.0))), 'density'),
    (lambda: schedules.DensitySchedule(((0, 1.5),)), '1.5'),
    (lambda: schedules.dgc_warmup(0.001, -1), 'warmup_steps'),
    (lambda: schedules.dgc_warmup(0.0, 4), 'density'),
    (lambda: schedules.LinearDropRatio(1.0), 'drop_ratio'),
    (lambda: schedules.LinearDropRatio(0.9, 0), 'warmup_steps'),
  ],
)
def test_what_is_no_schedule_is_an_error(call, message):
  with pytest.raises(ValueError, match=message):
    call()
