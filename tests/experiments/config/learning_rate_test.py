"""The learning rate follows from the step alone, as the papers let it."""

from configs import default
from experiments.config import optimizer
from experiments.config import settings
from experiments.program import errors
import jax.numpy as jnp
import numpy as np
import pytest


def _make(base=0.1, *, steps=100, epoch=10, density_steps=0, **changes):
  config = default.get_config()
  config.train.update(steps=steps, learning_rate=base)
  config.optimizer.update(changes)
  config.compression.warmup_steps = density_steps
  return optimizer.learning_rate(config, epoch)


def _rates(schedule, *steps):
  found = [float(schedule(step)) for step in steps]
  return pytest.approx(found, rel=1e-5, abs=1e-8)


def test_schedules_that_know_the_length_of_the_run():
  assert [0.1, 0.05, 0.0] == _rates(_make(schedule='cosine'), 0, 50, 100)
  steps = _make(schedule='steps', steps=64_000)
  assert [0.1, 0.1, 0.01, 0.01, 0.001] == _rates(
    steps, 0, 31_999, 32_000, 47_999, 48_000
  )


def test_milestones_are_epochs():
  """ResNet-110 of Gross & Wilber: a tenth after 81 and after 122 epochs."""
  schedule = _make(schedule='milestones', milestones='81,122', epoch=390)
  first, second = 81 * 390, 122 * 390
  assert [0.1, 0.1, 0.01, 0.01, 0.001] == _rates(
    schedule, 0, first - 1, first, second - 1, second
  )
  half = _make(schedule='milestones', milestones='0.5', lr_decay_factor=0.5)
  assert [0.1, 0.05] == _rates(half, 4, 6)


def test_the_variance_papers_rate_is_halved_every_25_epochs():
  schedule = _make(
    schedule='periodic', lr_decay_factor=0.5, decay_epochs=25.0, epoch=97
  )
  period = 25 * 97
  assert [0.1, 0.1, 0.05, 0.05, 0.025] == _rates(
    schedule, 0, period - 1, period, 2 * period - 1, 2 * period
  )


def test_it_is_annealed_each_epoch():
  schedule = _make(schedule='periodic', lr_decay_factor=0.9, decay_epochs=1.0)
  found = [0.1 * 0.9**epoch for epoch in range(4)]
  assert found == _rates(schedule, 0, 10, 20, 39)


def test_it_rises_linearly_and_then_falls():
  """Goyal et al.: from 1/32 of the rate, over five epochs of 10 steps."""
  schedule = _make(
    3.2,
    schedule='milestones',
    milestones='30',
    linear_warmup_steps=50,
    linear_warmup_from=1 / 32,
  )
  assert [0.1, 1.65, 3.2, 3.2, 0.32] == _rates(schedule, 0, 25, 50, 299, 300)
  from_zero = _make(linear_warmup_steps=4)
  assert [0.0, 0.025, 0.05, 0.075, 0.1, 0.1] == _rates(from_zero, *range(6))


@pytest.mark.parametrize('name', ['constant', 'cosine', 'steps'])
def test_a_smaller_learning_rate_while_the_density_falls(name):
  plain = _make(schedule=name)
  warmed = _make(schedule=name, density_steps=20, warmup_factor=0.25)
  for step, factor in ((0, 0.25), (19, 0.25), (20, 1.0), (99, 1.0)):
    assert float(warmed(step)) == pytest.approx(factor * float(plain(step)))


def test_the_optimizer_follows_it():
  config = default.get_config()
  config.optimizer.momentum = 0.0
  rate = _make(0.5, density_steps=2, warmup_factor=0.1)
  tx = optimizer.make(config, rate, None, axis_name=None)
  params = {'w': jnp.zeros((2, 2))}
  state = tx.init(params)
  for expected in (0.05, 0.05, 0.5, 0.5):
    updates, state = tx.update({'w': jnp.ones((2, 2))}, state, params)
    np.testing.assert_allclose(updates['w'], -expected, rtol=1e-6)


@pytest.mark.parametrize('schedule', optimizer.SCHEDULES)
def test_a_longer_run_goes_on_where_the_rates_do_not_depend_on_it(schedule):
  config = default.get_config()
  config.optimizer.schedule = schedule
  before = config.to_dict()
  config.train.steps += 1
  if schedule in ('constant', 'milestones', 'periodic', 'plateau'):
    settings.check_resumable(before, config.to_dict())
    return
  with pytest.raises(errors.ResumeError, match='661, on which optimizer.sched'):
    settings.check_resumable(before, config.to_dict())
