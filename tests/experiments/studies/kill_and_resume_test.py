"""Killed runs are resumed bit for bit, and a difference would be seen."""

import json
import pathlib

from experiments.hosts import placement as placing
from experiments.run import checkpoints
from experiments.run import records
from experiments.studies.kill_and_resume import trial
import jax.numpy as jnp
import numpy as np
import pytest


def _write(folder, *, param=1.0, loss=0.5, memory=2.0, seconds=1.0):
  placement = placing.Placement('simulate', 1)
  saver = checkpoints.Checkpoints(folder / 'checkpoints', 1, placement)
  saver.prepare(0)
  saver.save(4, {'memory': jnp.full(3, memory), 'step': jnp.asarray(4)}, {})
  saver.close()
  records.write_params(folder / records.PARAMS, {'w': np.full(2, param)})
  (folder / records.METRICS).write_text(
    json.dumps({'step': 4, 'train/loss': loss, 'time/seconds': seconds})
  )
  return folder


def test_any_difference_but_of_time_is_seen(tmp_path):
  whole = _write(tmp_path / 'whole')
  same = _write(tmp_path / 'same', seconds=9.0)
  assert trial.differences(same, whole) == []
  tiny = float(np.nextafter(np.float32(2), np.float32(3)))
  other = _write(tmp_path / 'other', memory=tiny)
  assert trial.differences(other, whole) == ['the last checkpoint']
  other = _write(tmp_path / 'both', param=tiny, loss=0.25)
  assert trial.differences(other, whole) == ['params.npz', 'metrics.jsonl']


def test_the_page_says_what_is_recorded():
  root = pathlib.Path(__file__).parents[3]
  record = json.loads(
    (root / 'experiments/results/kill_and_resume.json').read_text()
  )
  kills = [kill for row in record['schemes'] for kill in row['kills']]
  writing = sum(kill['writing'] for kill in kills)
  page = ' '.join((root / 'docs/checkpoints.md').read_text().split())
  assert (
    f'{record["bit_exact_resumes"]} of the {len(kills)} kills on record left '
    f'no trace; {writing} of them came while a checkpoint was written.'
  ) in page


@pytest.mark.slow
@pytest.mark.parametrize('processes', [1, 2])
def test_a_few_kills(processes, tmp_path, program):
  path = tmp_path / 'kills.json'
  done = program(
    'studies.kill_and_resume',
    *('--kills=2', '--schemes=dgc', '--steps=60', f'--json={path}'),
    *(f'--processes={processes}', f'--workdir={tmp_path / "runs"}'),
    timeout=1200,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert '2 of 2 resumes are bit-exact' in done.stdout
  record = json.loads(path.read_text())
  assert record['kills'] == record['bit_exact_resumes'] == 2
  (row,) = record['schemes']
  assert row['scheme'] == 'dgc' and not row['differences']
  assert {kill['kind'] for kill in row['kills']} <= trial.KINDS.keys()
