"""The stages of a run, by the papers and in one program."""

from experiments.config import schemes
import pytest


def _stages(scheme, density, steps, warmup='paper'):
  section = {'name': scheme, 'density': density}
  return schemes.stages(section | {'warmup_steps': steps, 'warmup': warmup})


def test_every_paper_has_its_warmup_and_any_can_be_had():
  def densities(scheme, name):
    stages = _stages(scheme, 0.001, 8, name)
    return [stage.density for stage in stages]

  assert densities('dgc', 'paper')[1] == 0.0625
  assert densities('gtopk', 'paper')[1] == 0.0725
  assert densities('dgc', 'gtopk') == densities('gtopk', 'paper')
  assert densities('gtopk', 'dgc') == densities('dgc', 'paper')


def test_the_linear_drop_ratio_is_one_program_until_the_final_density():
  falling, final = _stages('gradient_dropping', 0.01, 10, 'linear_drop_ratio')
  found = [falling.density_at(step) for step in (0, 5, 9)]
  assert found == pytest.approx([1.0, 0.505, 0.109])
  assert final == (10, 0.01, 0.01) and final.density_at(10) == 0.01


def test_stages_share_a_program_where_the_scheme_takes_schedules():
  stages = _stages('dgc', 0.001, 8)
  (schedule,) = {stage.given for stage in stages}
  assert [schedule.at(stage.first_step) for stage in stages] == [
    stage.density for stage in stages
  ]
  fixed = _stages('dryden', 0.001, 8)
  assert len(fixed) == 5
  assert all(stage.given == stage.density for stage in fixed)
