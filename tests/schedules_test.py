"""Density schedules: the papers' stages, inside and outside of a program."""

from typing import NamedTuple

from gradsparse import schedules
import jax
import jax.numpy as jnp
import numpy as np
import optax
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


SHORT = {
  0: (),
  1: ((0, 0.004),),
  2: ((0, 0.0625), (1, 0.004)),
  3: ((0, 0.0625), (1, 0.015625), (2, 0.004)),
  5: ((0, 0.25), (1, 0.0625), (2, 0.015625), (3, 0.004)),
}


@pytest.mark.parametrize('steps', SHORT)
def test_a_short_warmup_skips_stages_but_ends_where_it_should(steps):
  schedule = schedules.dgc_warmup(0.001, warmup_steps=steps)
  assert schedule.stages == (*SHORT[steps], (steps, 0.001))


def test_the_stages_above_the_final_density_share_all_of_the_warmup():
  """PTB at density 0.005: the fourth of gTop-k's stages would be below it."""
  schedule = schedules.gtopk_warmup(0.005, warmup_steps=42)
  assert schedule.stages == ((0, 0.25), (14, 0.0725), (28, 0.015), (42, 0.005))
  schedule = schedules.dgc_warmup(0.05, warmup_steps=40)
  assert schedule.stages == ((0, 0.25), (20, 0.0625), (40, 0.05))
  # A stage of the final density itself is none.
  schedule = schedules.dgc_warmup(0.004, warmup_steps=3)
  assert schedule.stages == ((0, 0.25), (1, 0.0625), (2, 0.015625), (3, 0.004))
  assert schedules.dgc_warmup(0.5, warmup_steps=40).stages == ((0, 0.5),)


@pytest.mark.parametrize('final', [0.001, 0.005, 0.0625])
@pytest.mark.parametrize('steps', [2, 3, 5, 40, 103])
def test_stages_are_equal_to_one_step(final, steps):
  stages = schedules.gtopk_warmup(final, steps).stages
  firsts = [first for first, _ in stages]
  lengths = np.diff(firsts)
  assert firsts[0] == 0 and stages[-1] == (steps, final)
  assert 1 <= min(lengths) and max(lengths) <= min(lengths) + 1
  used = [d for d in schedules.GTOPK_DENSITIES if d > final]
  assert len(lengths) == min(steps, len(used))
  assert stages[-2][1] == used[-1]


def test_the_linear_drop_ratio_rises_to_its_end():
  schedule = schedules.LinearDropRatio(0.99, warmup_steps=100)
  densities = [float(schedule(step)) for step in (0, 50, 100, 1000)]
  assert densities == pytest.approx([1.0, 0.505, 0.01, 0.01], abs=1e-6)
  assert float(jax.jit(schedule)(jnp.int32(50))) == pytest.approx(0.505)


@pytest.mark.parametrize('ratio', [0.0, 0.9, 0.985, 0.99, 0.997, 0.9999])
def test_the_linear_drop_ratio_ends_on_its_lowest_rung(ratio):
  """1 - R in float32 could be more than the rung 1 - R by rounding."""
  schedule = schedules.LinearDropRatio(ratio, warmup_steps=3)
  ladder = schedule.ladder
  assert (ladder[0], ladder[-1]) == (pytest.approx(1 - ratio, rel=1e-12), 1.0)
  last = jax.jit(schedule)(jnp.int32(3))
  assert last == np.float32(ladder[0])


@pytest.mark.parametrize(
  'density, rungs', [(1.0, 1), (0.9, 2), (0.25, 2), (0.24, 3), (0.001, 6)]
)
def test_a_ladder_leads_to_one_by_equal_factors_of_at_most_four(density, rungs):
  ladder = schedules.ladder_up(density)
  assert len(ladder) == rungs
  assert (ladder[0], ladder[-1]) == (density, 1.0)
  factors = np.divide(ladder[1:], ladder[:-1])
  np.testing.assert_allclose(factors, density ** (-1 / max(1, rungs - 1)))
  assert np.all(factors <= 4 + 1e-9)


class Listed(NamedTuple):
  """A schedule that lists its densities."""

  ladder: tuple[float, ...]

  def __call__(self, step):
    return jnp.where(step < 3, 0.5, 0.1)


def test_a_ladder_holds_the_last_density_whatever_the_schedule_is():
  assert schedules.ladder_of(Listed((0.5, 0.1, 0.5))) == (0.1, 0.5)
  # As the user wrote it: float32 has 0.100000001.
  linear = optax.linear_schedule(1.0, 0.1, 20)
  assert schedules.ladder_of(linear) == schedules.ladder_up(0.1)
  assert schedules.ladder_of(lambda step: 1 / 3) == schedules.ladder_up(1 / 3)


def test_a_ladder_for_what_is_traced_is_fixed():
  seen = []

  def trace(density):
    seen.append(schedules.ladder_of(density))
    seen.append(schedules.ladder_of(lambda step: density * step))
    seen.append(schedules.ladder_of(lambda step: jnp.where(step < 3, 1.0, 0.1)))

  jax.eval_shape(trace, jnp.float32(0.1))
  traced = schedules.TRACED_LADDER
  assert seen == [traced, traced, schedules.ladder_up(0.1)]


@pytest.mark.slow
def test_changes_are_found_wherever_they_are():
  staged = schedules.DensitySchedule(
    ((0, 0.4), (7, 0.2), (8, 0.4), (9, 0.1), (70_000, 0.05), (10**9, 0.01))
  )
  number = lambda step: jnp.round(100 * staged(step)).astype(jnp.int32)
  assert schedules.changes(number) == tuple(
    (first, round(100 * density)) for first, density in staged.stages
  )
  # Several between two powers of two, and one at the very end.
  slow = lambda step: step // 900_000_000 + (step == schedules.LAST_STEP)
  assert schedules.changes(slow) == (
    (0, 0),
    (900_000_000, 1),
    (1_800_000_000, 2),
    (schedules.LAST_STEP, 3),
  )


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
    (lambda: schedules.ladder_of(Listed((0.1, 2.0))), r'ladder .*2\.0'),
    (lambda: schedules.ladder_of(Listed(())), r'got \(\)'),
  ],
)
def test_what_is_no_schedule_is_an_error(call, message):
  with pytest.raises(ValueError, match=message):
    call()
