"""The programs of the studies, as a user starts them."""

import json

import pytest


@pytest.mark.slow
def test_claims_record_command_and_machine(tmp_path, program):
  path = tmp_path / 'claims.json'
  arguments = (
    f'--output={path}',  # as the recorded command has it
    f'--workdir={tmp_path / "runs"}',
    '--schemes=qsgd',
    '--seeds=1',
    '--steps=2',
    '--test_split=validation',
  )
  done = program('claims', *arguments)
  assert done.returncode == 0, done.stderr
  record = json.loads(path.read_text())
  assert record['command'].startswith('python -m experiments.claims --output=')
  assert list(record['schemes']) == ['dense', 'qsgd']
  assert record['environment']['jax'] and record['seeds'] == [1]
  assert record['test_split'] == 'validation'


@pytest.mark.slow
def test_compare_takes_the_recorded_command(tmp_path, program):
  path = tmp_path / 'compare.json'
  flags = ('--workdir', tmp_path, '--steps=1', '--schemes=dense')
  done = program(
    *('compare', '--seeds', '0', '--split', 'file', '--output', path, *flags)
  )
  assert done.returncode == 0, done.stderr
  assert 'compression' in done.stdout
  record = json.loads(path.read_text())
  assert record['split'] == 'file' and record['seeds'] == [0]
  assert [row['setting'] for row in record['rows']] == ['dense']
