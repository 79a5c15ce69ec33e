"""Small runs of the benchmarks, as a user starts them."""

import json

import pytest
from tests.bad_input import programs

# What the contract names of a row.
_KEYS = {
  'scheme',
  'floats',
  'workers',
  'rate',
  'step_ms',
  'step_ms_spread',
  'wire_bytes',
  'plan_bytes',
}


@pytest.fixture
def rows_of(tmp_path, program):
  """Returns a function that runs a benchmark and reads its rows."""

  def run(name, *arguments):
    path = tmp_path / 'rows.json'
    done = program(f'benchmarks.{name}', f'--json={path}', *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())

  return run


@pytest.mark.slow
def test_exchange_on_loopback(rows_of):
  found = rows_of(
    'exchange',
    '--num_params=32000',
    '--repeats=2',
    '--loopback',
    '--workers=2',
    '--schemes=dense,gtopk_butterfly',
  )
  assert [row['scheme'] for row in found] == ['dense', 'gtopk_butterfly']
  for row in found:
    assert row.keys() >= _KEYS
    assert row['rate'] == 'loopback' and row['wire_bytes'] is None
    assert row['step_ms'] > 0
    assert row['floats'] == 32_000 and row['workers'] == 2


@pytest.mark.slow
@pytest.mark.usefixtures('namespaces')
def test_bytes_on_the_wire_are_the_planned_ones(rows_of):
  schemes = 'dense,dgc,gtopk_tree,gtopk_butterfly,qsgd4,one_bit'
  found = rows_of(
    'exchange',
    '--num_params=32000',
    '--repeats=2',
    '--workers=3',
    '--rate=1gbit',
    f'--schemes={schemes}',
  )
  assert [row['scheme'] for row in found] == schemes.split(',')
  for row in found:
    assert row['bytes_ok'], row
    assert row['wire_bytes'] > 0.95 * row['plan_bytes'], row


@pytest.mark.slow
def test_training_on_loopback(rows_of):
  record = rows_of(
    'training', '--loopback', '--workers=2', '--steps=20', '--schemes=dense'
  )
  assert record['command'] and record['environment']['cpu_cores'] > 0
  (row,) = record['rows']
  assert (
    row['setting'] == row['scheme'] == 'dense' and row['rate'] == 'loopback'
  )
  assert row['wire_bytes'] is None and row['plan_bytes'] > 1e6
  assert row['step_ms'] > 0 and row['breakdown_ms']['exchange'] > 0


@pytest.mark.parametrize(
  'flag, status, message',
  [
    ('--schemes=dense,best', 2, 'value should be one of <'),
    ('--rate=fast', 2, 'the rate must be'),
    ('--num_params=1.5', 2, 'invalid literal for int'),
    ('--rate=1gbit', 3, '--loopback'),  # without iproute2
  ],
)
def test_mistakes_are_one_line(flag, status, message, tmp_path, monkeypatch):
  path = f'--json={tmp_path / "rows.json"}'
  monkeypatch.setenv('PATH', str(tmp_path))
  found, said = programs.run('benchmarks.exchange', path, flag)
  assert found == status
  assert message in said and 'Traceback' not in said
