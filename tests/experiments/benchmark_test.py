"""The exchange benchmark: its arithmetic, and small runs of all of it."""

import json
import pathlib

from experiments import cost_model
from experiments.benchmarks import collectives
from experiments.benchmarks import exchange
from experiments.benchmarks import network as network_benchmark
from experiments.benchmarks import rows
from experiments.benchmarks import subjects
from experiments.benchmarks import training
import gradsparse as gs
import jax
import jax.numpy as jnp
import pytest

_ROOT = pathlib.Path(__file__).parents[2]

KEYS = {
  'scheme',
  'floats',
  'workers',
  'rate',
  'step_ms',
  'step_ms_spread',
  'wire_bytes',
  'plan_bytes',
}


@pytest.mark.parametrize(
  'wanted, kernels',
  [(32_000, 2), (399_999, 2), (10**6, 53), (10**7, 53), (25_600_000, 53)],
)
def test_shapes_add_up(wanted, kernels):
  shapes = subjects.shapes(wanted)
  assert abs(subjects.size(shapes) - wanted) < 0.01 * wanted
  assert sum(name.startswith('kernel') for name in shapes) == kernels
  assert shapes == subjects.shapes(wanted)
  sizes = [a * b for a, b in shapes.values()]
  assert sum(n % 64 == 0 for n in sizes) >= len(sizes) - 1


def test_the_largest_is_resnet_50():
  shapes = subjects.shapes(25_600_000)
  assert shapes['kernel_00'] == (147, 64)
  assert shapes['kernel_52'] == (512, 2048)
  assert shapes['classifier'][0] == 2048


def test_refuses_too_few_floats():
  with pytest.raises(ValueError, match='at least 32,000'):
    subjects.shapes(10_000)


@pytest.mark.parametrize('workers', [1, 2, 3, 4])
@pytest.mark.parametrize('name', subjects.SCHEMES)
def test_what_is_left_out_is_what_is_planned(name, workers):
  shapes = {
    k: jax.ShapeDtypeStruct(s, jnp.float32)
    for k, s in subjects.shapes(40_000).items()
  }
  tx = subjects.SCHEMES[name](subjects.DENSITY)
  with collectives.left_out(workers) as calls:
    jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), shapes)
  planned = gs.plan(tx, shapes, workers).sent_bytes
  serial = sum(call.serial_bytes(workers) for call in calls)
  if name.startswith('gtopk'):  # nobody sends in every round of a tree
    assert serial >= planned
  else:
    assert planned <= serial + 1 <= planned + 2 + 8 * workers


def test_break_even():
  dense = {'compute_ms': 10.0, 'serial_bytes': 12_500_000}
  lean = {'compute_ms': 110.0, 'serial_bytes': 0}
  # 100 ms more work, 12.5 MB less to send: equal at 125 MB/s.
  assert rows.break_even(lean, dense) == {
    'wins': 'below',
    'mbit': pytest.approx(1000),
  }
  # 5 ms less work, 6.25 MB more to send.
  quick = {'compute_ms': 5.0, 'serial_bytes': 18_750_000}
  assert rows.break_even(quick, dense) == {
    'wins': 'above',
    'mbit': pytest.approx(10_000),
  }
  for changes, wins in (
    ({**lean, 'compute_ms': 9.0}, 'always'),
    ({**lean, 'serial_bytes': 2e7}, 'never'),
  ):
    assert rows.break_even(changes, dense) == {'wins': wins, 'mbit': None}


def test_recorded_rows_say_when_a_scheme_wins():
  recorded = cost_model.read_rows(
    _ROOT / 'experiments' / 'results' / 'exchange.json'
  )
  dense = {
    (row['floats'], row['workers'], row['rate']): row
    for row in recorded
    if row['scheme'] == 'dense'
  }
  for row in recorded:
    if row['scheme'] == 'dense':
      assert row['break_even'] is None
      continue
    now = rows.break_even(
      row, dense[row['floats'], row['workers'], row['rate']]
    )
    found = row['break_even']
    assert found['wins'] == now['wins']
    # Some were measured again, beside a dense run that is not in the file.
    assert found['mbit'] == pytest.approx(now['mbit'], rel=0.15)


def test_bytes_limit_is_the_contracts():
  assert rows.bytes_limit(0) == 4096
  assert rows.bytes_limit(1448) == 1.05 * (1448 + 66) + 4096
  assert rows.bytes_limit(1449) == 1.05 * (1449 + 2 * 66) + 4096


def _measured(scheme, seconds, sent):
  return {
    'scheme': scheme,
    'plan_bytes': 1000,
    'serial_bytes': 1000,
    'sent_bytes': sent,
    'seconds': {
      'step': seconds,
      'compute': [s / 2 for s in seconds],
      'collectives': [s / 4 for s in seconds],
    },
  }


def test_rows_are_medians_over_rounds_and_the_largest_host():
  measured = {
    'floats': 50,
    'workers': 2,
    'schemes': [
      _measured('dense', [0.1, 0.4, 0.2], [[10, 30, 20], [1, 9000, 2]]),
      _measured('dgc', [0.1, 0.1, 0.1], [[6000, 7000, 6500], [1, 2, 3]]),
    ],
  }
  dense, dgc = rows.make_rows(measured, '1mbit', 0.001)
  assert dense.keys() >= KEYS
  assert dense['step_ms'] == pytest.approx(200)
  assert dense['step_ms_spread'] == pytest.approx(150)  # of 100, 200, 400
  assert dense['exchange_ms'] == pytest.approx(100)
  assert dense['wire_bytes'] == 20 and dense['bytes_ok']
  assert dense['serial_ms'] == pytest.approx(8)
  assert dense['speedup'] == 1 and dense['break_even'] is None
  assert dgc['wire_bytes'] == 6500 and not dgc['bytes_ok']
  assert dgc['speedup'] == pytest.approx(2)
  text = rows.table([dense, dgc])
  assert '50 floats, 2 workers, 1mbit' in text and 'dgc' in text
  # As many bytes, half the computation.
  assert dgc['break_even'] == {'wins': 'always', 'mbit': None}
  assert 'always' in text
  dgc['break_even'] = {'wins': 'below', 'mbit': 2741.5}
  assert 'below 2,742' in rows.table([dense, dgc])


def _run(tmp_path, *arguments):
  path = tmp_path / 'rows.json'
  status = exchange.main(
    [f'--json={path}', '--floats=32000', '--repeats=2', *arguments]
  )
  assert status == 0
  return json.loads(path.read_text())


def test_on_loopback(tmp_path):
  found = _run(
    tmp_path, '--loopback', '--workers=2', '--schemes=dense,gtopk_butterfly'
  )
  assert [row['scheme'] for row in found] == ['dense', 'gtopk_butterfly']
  for row in found:
    assert row.keys() >= KEYS
    assert row['rate'] == 'loopback' and row['wire_bytes'] is None
    assert row['step_ms'] > 0 and row['compute_ms'] > 0
    assert row['floats'] == 32_000 and row['workers'] == 2


@pytest.mark.usefixtures('namespaces')
def test_bytes_on_the_wire_are_the_planned_ones(tmp_path):
  schemes = 'dense,dgc,gtopk_tree,gtopk_butterfly,qsgd4,one_bit'
  found = _run(tmp_path, '--workers=3', '--rate=1gbit', f'--schemes={schemes}')
  assert [row['scheme'] for row in found] == schemes.split(',')
  for row in found:
    assert row['bytes_ok'], row
    assert row['wire_bytes'] > 0.95 * row['plan_bytes'], row


@pytest.mark.usefixtures('namespaces')
def test_the_network_alone(tmp_path):
  path = tmp_path / 'network.json'
  arguments = [f'--json={path}', '--workers=2', '--rate=1gbit', '--repeats=2']
  assert network_benchmark.main(arguments) == 0
  found = cost_model.read_rows(path)
  assert {row['scheme'] for row in found} == {'ping_pong', 'all_reduce'}
  assert all(row['rate'] == '1gbit' and row['step_ms'] > 0 for row in found)
  # 10 MB take 80 ms at 1 Gbit/s, and a burst of 256 kB passes at once.
  largest = [row for row in found if row['floats'] == 2_500_000]
  assert all(row['step_ms'] > 70 for row in largest)
  fitted = cost_model.fits(found)['1gbit']
  assert 1 / fitted.beta_s_per_byte < 140e6


def _line(step, seconds, **more):
  return {'step': step, 'time/seconds': seconds, **more}


def test_a_training_run_is_timed_between_its_lines():
  summary = {
    'scheme': 'dgc',
    'steps': 60,
    'num_workers': 2,
    'parameters': 7,
    'seconds': 9.0,
    'compile_seconds': 1.0,
    'final': {'test_accuracy': 0.5},
    'comm': {'sent_bytes_total': 600},
  }
  phases = dict.fromkeys(('compute', 'compress', 'exchange', 'update'), 1.0)
  profile = {f'time/{k}_ms': v for k, v in phases.items()}
  profile |= {'time/other_ms': 0.0, 'time/step_ms': 4.0}
  lines = [_line(10, 5.0), _line(20, 5.5), _line(30, 6.0), _line(40, 6.2)]
  lines += [_line(50, 8.0, **profile), _line(60, 8.4)]
  row = training.make_row(summary, lines, '1gbit', 1200)
  # Steps 31 to 40 took 20 ms each, 51 to 60 took 40; 41 to 50 have a profile.
  assert row['step_ms'] == pytest.approx(30)
  assert row['step_ms_spread'] == pytest.approx(10)
  assert row['plan_bytes'] == 10 and row['wire_bytes'] == 20
  assert row['breakdown_ms'] == {**phases, 'other': 0}


def test_training_on_loopback(tmp_path):
  path = tmp_path / 'rows.json'
  arguments = [f'--json={path}', '--loopback', '--workers=2', '--steps=20']
  assert training.main([*arguments, '--schemes=dense']) == 0
  (row,) = json.loads(path.read_text())
  assert row['scheme'] == 'dense' and row['rate'] == 'loopback'
  assert row['wire_bytes'] is None and row['plan_bytes'] > 1e6
  assert row['step_ms'] > 0 and row['breakdown_ms']['exchange'] > 0


def test_command_line_mistakes(tmp_path, capfd, monkeypatch):
  path = f'--json={tmp_path / "rows.json"}'
  with pytest.raises(SystemExit) as stop:
    exchange.main([path, '--schemes=dense,best'])
  assert stop.value.code == 2
  assert "unknown scheme 'best'" in capfd.readouterr().err
  assert exchange.main([path, '--rate=fast']) == 2
  assert 'the rate must be' in capfd.readouterr().err
  monkeypatch.setenv('PATH', str(tmp_path))
  assert exchange.main([path]) == 3
  assert '--loopback' in capfd.readouterr().err
