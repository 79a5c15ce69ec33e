"""One run of several processes: the same result, resumed, and refused."""

import io
import json
import pathlib
import subprocess
import sys

from experiments import cluster
import numpy as np
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
STEPS = 8

# experiments.main, in which process VICTIM gets SIGNAL before its step STEP.
_PROGRAM = f"""
import os, runpy, signal, sys, time
sys.path.insert(0, {str(REPOSITORY)!r})
import jax
jax.config.update('jax_platforms', 'cpu')
from experiments.hosts import placement

plain, calls = placement.Placement.batch, []

def batch(self, rows):
  calls.append(1)
  if (self.process, len(calls)) == (VICTIM, STEP):
    time.sleep(2)  # until the checkpoint is written
    os.kill(os.getpid(), signal.SIGNAL)
  return plain(self, rows)

placement.Placement.batch = batch
sys.argv[0] = 'main.py'
runpy.run_module('experiments.main', run_name='__main__', alter_sys=True)
"""

_FLAGS = (
  f'--config={REPOSITORY}/configs/default.py',
  '--config.model.name=mlp',
  f'--config.train.steps={STEPS}',
  '--config.train.log_every=2',
  '--config.train.eval_every=0',
  '--config.train.checkpoint_every=3',
  '--config.parallel.runner=shard_map',
  '--config.parallel.num_workers=2',
  '--config.compression.name=dgc',
  '--config.compression.density=0.01',
  '--config.compression.min_size=0',
)


def _command(folder, workdir, *flags, victim=-1, step=0, signal='SIGKILL'):
  path = folder / f'program{victim}.py'
  source = _PROGRAM.replace('VICTIM', str(victim)).replace('STEP', str(step))
  path.write_text(source.replace('SIGNAL', signal))
  return [sys.executable, str(path), f'--workdir={workdir}', *_FLAGS, *flags]


def _run(folder, workdir, *flags, **killed):
  """(outcome, text) of two processes."""
  output = io.StringIO()
  result = cluster.run(
    _command(folder, workdir, '--multihost', *flags, **killed),
    num_hosts=2,
    loopback=True,
    grace=60.0,
    timeout=200,
    output=output,
  )
  return result.outcome, output.getvalue()


def _params(workdir):
  with np.load(workdir / 'params.npz') as archive:
    return dict(archive)


@pytest.fixture(scope='module')
def alone(tmp_path_factory):
  """The run of one process with two devices."""
  folder = tmp_path_factory.mktemp('alone')
  done = subprocess.run(
    _command(folder, folder / 'run'),
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=200,
  )
  assert done.returncode == 0, done.stdout
  return folder / 'run'


def _assert_same_run(workdir, alone):
  expected, found = _params(alone), _params(workdir)
  assert expected.keys() == found.keys()
  for name in expected:
    np.testing.assert_array_equal(expected[name], found[name])
  lines = [
    list(map(json.loads, (d / 'metrics.jsonl').read_text().splitlines()))
    for d in (alone, workdir)
  ]
  for expected, found in zip(*lines, strict=True):
    for name in ('step', 'train/loss', 'comm/sent_bytes_total'):
      assert expected[name] == found[name]


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1])
def test_two_processes_are_one_run_also_after_a_death(tmp_path, victim, alone):
  workdir = tmp_path / 'run'
  outcome, text = _run(tmp_path, workdir, victim=victim, step=6)
  assert outcome.statuses[victim] == -9
  assert outcome.statuses[1 - victim] not in (0, None, -9), text
  assert not (workdir / 'summary.json').exists()
  outcome, text = _run(tmp_path, workdir)
  assert outcome.statuses == (0, 0), text
  assert f'resuming after step 3 of {STEPS}' in text
  assert text.count('x smaller') == 1  # process 0 says it, once
  _assert_same_run(workdir, alone)
  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['environment']['processes'] == 2


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(tmp_path, alone):
  workdir = tmp_path / 'run'
  outcome, text = _run(tmp_path, workdir, victim=1, step=6, signal='SIGTERM')
  assert outcome.statuses == (143, 143), text
  saved = workdir / 'checkpoints' / '7'
  assert text.count(f'stopped by SIGTERM after step 7 of {STEPS}: saved') == 2
  assert 'Traceback' not in text
  # What one of them cannot use none of them does.
  data = next(path for path in saved.rglob('d/*') if path.is_file())
  data.write_bytes(data.read_bytes()[:-1])
  outcome, text = _run(tmp_path, workdir)
  assert outcome.statuses == (0, 0), text
  assert f'resuming after step 6 of {STEPS}' in text
  assert text.count('is now called 7.damaged') == 1 and data.name in text
  _assert_same_run(workdir, alone)


@pytest.mark.slow
def test_a_workdir_that_cannot_be_locked_is_told_by_all(tmp_path):
  (tmp_path / 'run' / 'run.lock').mkdir(parents=True)
  outcome, text = _run(tmp_path, tmp_path / 'run')
  assert set(outcome.statuses) <= {1, -6} and 1 in outcome.statuses
  assert 'error: cannot write' in text and 'Traceback' not in text


@pytest.mark.slow
def test_two_processes_without_a_death(tmp_path, alone):
  outcome, text = _run(tmp_path, tmp_path / 'run')
  assert outcome.statuses == (0, 0), text
  _assert_same_run(tmp_path / 'run', alone)


# Parameters that differ between processes; messages swapped between them,
# which processes on CPUs do otherwise than devices of one.
_OTHERS = {
  'sum': ('gradient_dropping', '--config.compression.local_gradient=sum'),
  'partial': (
    'gradient_dropping',
    '--config.compression.local_gradient=partial',
  ),
  'two levels': ('dgc', '--config.parallel.inner_workers=2'),
  'butterfly': ('gtopk', '--config.optimizer.momentum=0.5'),
}


@pytest.mark.slow
@pytest.mark.parametrize('scheme, flag', _OTHERS.values(), ids=_OTHERS)
def test_other_schemes_between_processes(tmp_path, scheme, flag):
  flags = (f'--config.compression.name={scheme}', flag)
  one, two = tmp_path / 'one', tmp_path / 'two'
  subprocess.run(_command(tmp_path, one, *flags), check=True, timeout=200)
  outcome, text = _run(tmp_path, two, *flags)
  assert outcome.statuses == (0, 0), text
  _assert_same_run(two, one)


@pytest.mark.parametrize(
  'flag, message',
  [
    ('--config.parallel.num_workers=3', 'make 2 workers, got'),
    pytest.param(
      '--config.parallel.runner=simulate',
      'need parallel.runner shard_map',
      marks=pytest.mark.slow,
    ),
  ],
)
def test_refuses_what_cannot_be(tmp_path, flag, message):
  outcome, text = _run(tmp_path, tmp_path / 'run', flag)
  # One may hear of the other's end (and abort) before it has said the same.
  assert set(outcome.statuses) <= {2, 1, -6} and 2 in outcome.statuses
  assert message in text
  assert 'Traceback' not in text


@pytest.mark.parametrize('flag', ['process_id', 'host_timeout'])
def test_flags_of_processes_go_with_multihost(tmp_path, flag):
  done = subprocess.run(
    _command(tmp_path, tmp_path / 'run', f'--{flag}=1'),
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 2
  assert f'--{flag} goes with --multihost' in done.stderr
