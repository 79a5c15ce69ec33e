"""The program that draws the papers' figures."""

import json

from experiments.cost_model import measured
from experiments.cost_model.costs import Network
from experiments.program import errors
import pytest
from tests.bad_input import programs


@pytest.mark.slow
def test_draws_with_measured_points(tmp_path, capsys):
  network = Network(1e-4, 8.4e-9)
  rows = [
    {
      'scheme': 'ping_pong',
      'floats': floats,
      'workers': 2,
      'rate': '1gbit',
      'step_ms': 1e3 * network.seconds(4 * floats),
    }
    for floats in (1, 10_000, 1_000_000)
  ]
  for scheme in ('dense', 'gtopk_tree', 'one_bit'):
    for rate in ('1gbit', 'loopback'):
      rows.append(
        {
          'scheme': scheme,
          'floats': 25_600_000,
          'workers': 4,
          'rate': rate,
          'step_ms': 500.0,
          'plan_bytes': 153_600_000 if scheme == 'dense' else None,
        }
      )
  # A bare list, as benchmarks write it, and one with its history.
  pings, steps = tmp_path / 'pings.json', tmp_path / 'rows.json'
  pings.write_text(json.dumps(rows[:3]))
  steps.write_text(json.dumps({'environment': {}, 'rows': rows[3:]}))
  out = tmp_path / 'out'
  command = ['cost_model', f'--workdir={out}']
  status, said = programs.run(*command, f'--measured={pings},{steps}')
  assert status == 0, said
  assert 'AlexNet, 32 GPUs, dense: table VII' in capsys.readouterr().out
  numbers = json.loads((out / 'cost_model.json').read_text())
  for name in numbers['figures']:
    assert (out / f'{name}.png').read_bytes().startswith(b'\x89PNG')
  assert len(numbers['figures']) == 7
  fitted = numbers['fitted_networks']['1gbit']
  assert fitted['alpha_s'] == pytest.approx(1e-4)
  assert fitted['beta_s_per_byte'] == pytest.approx(8.4e-9)
  (row,) = [
    row
    for row in numbers['printed_and_model']
    if row['what'].startswith('AlexNet, 32 GPUs, dense')
  ]
  assert row['printed'] == pytest.approx(52.5, abs=0.02)
  assert row['model'] == pytest.approx(4.7, abs=0.06)

  (tmp_path / 'rows.json').write_text('[{"scheme": "dense"}]')
  status, said = programs.run(*command, f'--measured={tmp_path / "rows.json"}')
  assert status == 1
  assert 'row 0' in said and 'floats' in said
  assert 'Traceback' not in said


def test_times_that_do_not_grow_are_the_users_mistake():
  row = {'scheme': 'ping_pong', 'workers': 2, 'rate': '1gbit'}
  rows = [
    {**row, 'floats': floats, 'step_ms': ms} for floats, ms in ((1, 2), (9, 1))
  ]
  with pytest.raises(errors.UserError, match='rate 1gbit: the times do not'):
    measured.fits(rows)
