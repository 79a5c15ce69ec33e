"""The bytes of a run: in stages, of falling densities, of data."""

from typing import NamedTuple

from experiments.config import schemes
from experiments.run import byte_counter
import gradsparse as gs
import jax.numpy as jnp
import numpy as np
import pytest


class _Plan:
  dense_bytes = 1000

  def __init__(self, payload_bytes, rungs=(), every=1, rows=()):
    self.rows = rows
    self.payload_bytes = payload_bytes
    self.sent_bytes = 3 * payload_bytes
    self.rungs = rungs
    self.every = every


def _counter(stages, plans, **more):
  return byte_counter.ByteCounter(byte_counter.Plans(stages, plans, **more))


def _count(traffic, step, payload, sent, elements):
  names = ('comm/payload_bytes', 'comm/sent_bytes', 'comm/sent_elements')
  values = (payload, sent, elements)
  return traffic.count(step, dict(zip(names, values, strict=True)))


def _stages(name, density, warmup_steps, warmup='paper', **others):
  return schemes.stages(
    {
      'name': name,
      'density': density,
      'warmup_steps': warmup_steps,
      'warmup': warmup,
      **others,
    }
  )


def test_bytes_of_a_run_with_stages():
  stages = _stages('dgc', 0.001, 8)
  assert [stage.first_step for stage in stages] == [0, 2, 4, 6, 8]
  gtopk = _stages('gtopk', 0.001, 8)
  assert [stage.density for stage in gtopk] == [
    0.25,
    0.0725,
    0.015,
    0.004,
    0.001,
  ]
  payloads = np.repeat([500, 100, 50, 20, 10], 2)
  traffic = _counter(stages, [_Plan(p) for p in payloads[::2]])
  for step, sent in enumerate(np.cumsum(3 * payloads), 1):
    payload = int(payloads[step - 1])
    line = _count(traffic, step, payload, 3 * payload, 0)
    assert line['comm/sent_bytes_total'] == sent
    if step == 3:  # a run that ends inside the warm-up
      assert traffic.summary()['payload_bytes_per_step'] == 100
      assert traffic.summary()['sent_bytes_per_step'] == 300
      assert traffic.summary()['ratio'] == line['comm/ratio'] == 10
      assert traffic.summary()['sent_bytes_total'] == 3300
  summary = traffic.summary()
  assert summary['ratio'] == 100
  assert summary['run_average_payload_bytes_per_step'] == 136
  assert summary['run_average_sent_bytes_per_step'] == 3 * 136
  assert summary['run_average_ratio'] == pytest.approx(10_000 / 1360)


@pytest.mark.slow
def test_bytes_of_a_density_that_falls_each_step():
  stages = _stages(
    'gradient_dropping', 0.01, 4, warmup='linear_drop_ratio', min_size=0
  )

  def chain(density):
    return gs.gradient_dropping(density, min_size=0, axis_name='workers')

  falling, final = chains = [chain(stage.density) for stage in stages]
  params = {'w': jnp.zeros((50, 40)), 'b': jnp.zeros(40)}
  plans = [
    gs.plan(tx, params, 4, step=stage.first_step)
    for tx, stage in zip(chains, stages, strict=True)
  ]
  traffic = _counter(stages, plans)
  for step, tx in enumerate([falling] * 4 + [final] * 2):
    sent = gs.plan(tx, params, 4, step=step)
    assert sent.sent_bytes > 0
    line = _count(traffic, step + 1, sent.payload_bytes, sent.sent_bytes, 0)
    assert line['comm/payload_bytes'] == sent.payload_bytes
    assert line['comm/sent_bytes'] == sent.sent_bytes
    assert line['comm/density'] == pytest.approx(max(1 - 0.99 * step / 4, 0.01))
    # A run that ends here ends with this message, also inside the warm-up.
    assert traffic.summary()['payload_bytes_per_step'] == sent.payload_bytes
    assert traffic.summary()['sent_bytes_per_step'] == sent.sent_bytes
    assert traffic.summary()['ratio'] == line['comm/ratio']
  # The run ends at the density that was asked for, not at a message above it.
  summary = traffic.summary()
  static = gs.plan(chain(0.01), params, 4)
  assert summary['payload_bytes_per_step'] == static.payload_bytes
  assert summary['sent_bytes_per_step'] == static.sent_bytes
  assert summary['run_average_ratio'] < summary['ratio']


def test_bytes_that_depend_on_the_data_are_those_that_were_sent():
  stages = (schemes.Stage(0, None, None),)
  # Beside a message of 100, 200 or 400 bytes there are 8 of dense leaves.
  plan = _Plan(408, rungs=((100, 300), (200, 600), (400, 1200)))
  traffic = _counter(stages, [plan])
  lines = [
    _count(traffic, step, p, 3 * p, 0)
    for step, p in enumerate((108, 408, 108), 1)
  ]
  assert [line['comm/payload_bytes'] for line in lines] == [108, 408, 108]
  assert [line['comm/sent_bytes'] for line in lines] == [324, 1224, 324]
  again = _counter(stages, [plan])
  again.restore(traffic.to_dict())
  for counted in (traffic, again):
    assert counted.summary()['payload_bytes_per_step'] == 208
    assert counted.summary()['sent_bytes_total'] == 1872


@pytest.mark.parametrize('scheme', ['dgc', 'dryden'])
def test_an_exchange_has_the_density_of_its_first_step_in_one_program(scheme):
  stages = _stages(scheme, 0.001, 10)
  assert [stage.first_step for stage in stages] == [0, 2, 5, 7, 10]
  traffic = _counter(stages, [_Plan(p, every=4) for p in range(5)])
  found = [
    _count(traffic, step, 0, 0, 0)['comm/density'] for step in range(1, 13)
  ]
  if scheme == 'dgc':
    assert found == [0.25] * 4 + [0.0625] * 4 + [0.004] * 4
  else:  # a program for each stage: that of the last step exchanges
    assert found == [0.0625] * 4 + [0.004] * 4 + [0.001] * 4


def test_steps_that_only_accumulate_send_nothing():
  stages = (schemes.Stage(0, 0.5, 0.5), schemes.Stage(4, 0.1, 0.1))
  plans = [_Plan(500, every=2), _Plan(100, every=2)]
  traffic = _counter(stages, plans)
  assert _count(traffic, 1, 0, 0, 0)['comm/sent_bytes'] == 0
  assert _count(traffic, 2, 500, 1500, 0)['comm/ratio'] == 2
  # A run that ends inside the warm-up.
  assert traffic.summary()['ratio'] == 1000 / 250
  for step, payload in enumerate((0, 500, 0, 100), 3):
    line = _count(traffic, step, payload, 3 * payload, 0)
    assert line['comm/payload_bytes'] == payload
    assert ('comm/ratio' in line) == bool(payload)
  summary = traffic.summary()
  assert summary['payload_bytes_per_step'] == 50
  assert summary['sent_bytes_per_step'] == 150
  assert summary['ratio'] == 1000 / 50
  assert summary['sent_bytes_total'] == 3 * 1100
  assert summary['run_average_ratio'] == pytest.approx(6000 / 1100)


class _Row(NamedTuple):
  elements: int
  transport: str


def test_elements_of_compressed_and_of_dense_leaves():
  stages = (schemes.Stage(0, 0.5, 0.5), schemes.Stage(4, 0.1, 0.1))
  rows = (_Row(200, 'dgc, all-gather'), _Row(50, 'dense'))
  plans = [_Plan(500, every=2, rows=rows), _Plan(100, every=2, rows=rows)]
  traffic = _counter(stages, plans)
  _count(traffic, 1, 0, 0, 0)
  _count(traffic, 2, 500, 1500, 100)
  summary = traffic.summary()
  assert summary['element_ratio'] == 2 * 250 / 150  # a run that ends here
  assert summary['run_average_element_ratio'] == 2 * 250 / 150
  for step, (payload, elements) in enumerate(
    ((0, 0), (500, 100), (0, 0), (100, 15.5)), 3
  ):
    _count(traffic, step, payload, 3 * payload, elements)
  summary = traffic.summary()
  # Of 1000 bytes, 250 parameters. Steps that only accumulate count too.
  assert summary['element_ratio'] == 2 * 250 / 65.5
  assert summary['run_average_element_ratio'] == 6 * 250 / (150 + 150 + 65.5)
  again = _counter(stages, plans)
  again.restore(traffic.to_dict())
  assert again.summary() == summary


def test_averages_of_parameters_are_sent_beside_the_gradients():
  tx = gs.local_gradient(
    gs.gradient_dropping(0.1, axis_name='workers'), 'partial'
  )
  params = {'w': jnp.zeros((10, 5))}
  gradients = gs.plan(tx, params, 4)
  average = gs.workers.plan_average(tx, params, 4, every=3)
  assert (average.payload_bytes, average.sent_bytes) == (200, 300)
  stages = (schemes.Stage(0, 0.1, 0.1),)
  traffic = _counter(stages, [gradients], average=average)
  for step in range(1, 7):
    line = _count(
      traffic, step, gradients.payload_bytes, gradients.sent_bytes, 5
    )
    due = step % 3 == 0
    assert line['comm/sent_bytes'] == gradients.sent_bytes + 300 * due
    assert line['comm/payload_bytes'] == gradients.payload_bytes + 200 * due
  summary = traffic.summary()
  assert summary['sent_bytes_total'] == 6 * gradients.sent_bytes + 2 * 300
  assert summary['sent_bytes_per_step'] == gradients.sent_bytes + 100
  assert summary['ratio'] == 200 / (gradients.payload_bytes + 200 / 3)
  assert summary['run_average_ratio'] == pytest.approx(summary['ratio'])
  assert summary['element_ratio'] == 6 * 50 / (6 * 5 + 2 * 50)
  text = str(byte_counter.Plans(stages, [gradients], average=average))
  assert 'what averages parameters' in text and 'in one of 3 updates' in text
