"""What counts as kept, and a host that is killed and one that hangs."""

import dataclasses
import json
import os
import pathlib

from experiments.cluster import network
from experiments.studies.network_faults import faults
from experiments.studies.network_faults import page
from experiments.studies.network_faults import trial
import pytest
from tests.bad_input import programs

_ROOT = pathlib.Path(__file__).parents[3]
_RECORD = _ROOT / 'experiments/results/network_faults.json'
_SAID = 'error: lost process 2 of 3 (far, 10.77.0.3): its connection broke; x'
_ROW = trial.Row(
  fault='killed',
  happened=trial.ENDED,
  seconds=3.04,
  after_step=25,
  statuses=[75, 75, None],
  said=[_SAID, _SAID],
  noise=0,
  resumed=20,
  differences=[],
)


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'happened': trial.WENT_ON, 'said': [], 'seconds': 100.0},
    {'said': [_SAID] * 3},
    # XLA says how slow a compilation is on a machine that is busy.
    {'happened': trial.WENT_ON, 'said': [], 'noise': 6},
  ],
)
def test_what_is_promised(changes):
  assert trial.is_as_promised(dataclasses.replace(_ROW, **changes), 20)


@pytest.mark.parametrize(
  'changes',
  [
    {'differences': ['params.npz']},
    {'seconds': 20.5},
    {'happened': trial.WAITED},
    {'noise': 1},
    {'said': [_SAID]},
    {'said': [_SAID, 'Aborted']},
    {'happened': trial.WENT_ON, 'said': [], 'differences': ['metrics.jsonl']},
  ],
)
def test_what_is_not(changes):
  assert not trial.is_as_promised(dataclasses.replace(_ROW, **changes), 20)


@pytest.mark.parametrize(
  'line',
  [
    'Traceback (most recent call last):',
    '*** Check failure stack trace: ***',
    '    @     0x7fac90a40634  absl::lts_20260107::log_internal::SendToLog()',
    'F1122 09:09:11.797824    6694 client.h:80] Terminating process because',
    "terminate called after throwing an instance of 'std::bad_cast'",
  ],
)
def test_noise_is_seen(line):
  assert trial.is_noise(line)
  assert not trial.is_noise(_SAID)
  assert not trial.is_noise('step 3/60  loss 2.3026')


def test_the_table_says_each_line_once():
  rows = [
    dataclasses.asdict(_ROW),
    {**dataclasses.asdict(_ROW), 'fault': 'slow', 'said': [], 'resumed': 0},
  ]
  _, _, killed, slow = page.table({'rows': rows}).splitlines()
  assert killed == (
    f'| a host killed in an exchange | all ended | 3.0 | `{_SAID[:-3]}` | 20 | '
    'nothing |'
  )
  assert slow == '| a host slow by ten | all ended | 3.0 | - | - | nothing |'


def test_the_page_has_the_recorded_table():
  record = json.loads(_RECORD.read_text())
  assert page.table(record) in (_ROOT / 'docs/faults.md').read_text()
  assert [row['fault'] for row in record['rows']] == list(faults.FAULTS)
  assert all(row['as_promised'] for row in record['rows'])


def test_every_fault_that_must_end_the_run_says_whom_it_loses():
  lost = {name for name, fault in faults.FAULTS.items() if fault.lost is None}
  assert lost == {'link_down', 'loss_1', 'loss_5', 'delay', 'slow'}


def test_names_what_is_missing_without_namespaces(tmp_path, monkeypatch):
  for tool in ('ip', 'tc'):
    path = tmp_path / tool
    path.write_text('#!/bin/sh\necho Operation not permitted >&2\nexit 255\n')
    path.chmod(0o755)
  monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
  status, said = programs.run('studies.network_faults')
  assert status == network.NotPermittedError.exit_status == 3
  assert 'Operation not permitted' in said
  assert 'This needs root' in said and '--loopback' not in said


@pytest.mark.slow
def test_two_faults(namespaces, tmp_path, program):
  path = tmp_path / 'faults.json'
  done = program(
    'studies.network_faults',
    *('--faults=chief,hang', '--steps=40', '--after_step=15'),
    *('--host_timeout=5', f'--json={path}', f'--workdir={tmp_path / "runs"}'),
    timeout=1200,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  record = json.loads(path.read_text())
  chief, hang = record['rows']
  for row, lost in ((chief, 0), (hang, 2)):
    assert row['happened'] == trial.ENDED and row['as_promised']
    assert len(row['said']) == 2
    # A checkpoint is one when it is written, which takes a while.
    assert row['resumed'] in (0, 10) and row['after_step'] >= 15
    for line in row['said']:
      assert line.startswith(f'error: lost process {lost} of 3 (')
  # Silence counts from what came last, on a busy machine well before the stop.
  assert hang['seconds'] >= 2
