"""`experiments.main` as a user starts it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_DEFAULT = _ROOT / 'configs' / 'default.py'
_SMALL = '--config.model.name=logistic'


@pytest.fixture
def run(program):
  """Returns a function that runs the program with a configuration."""

  def main(*arguments, config=_DEFAULT):
    return program('main', f'--config={config}', *arguments)

  return main


@pytest.mark.slow
def test_main_trains_on_devices_that_it_makes_itself(tmp_path, run):
  done = run(
    f'--workdir={tmp_path}',
    _SMALL,
    '--config.train.steps=3',
    '--config.compression.name=dgc',
    '--config.compression.density=0.01',
    '--config.compression.warmup_steps=8',
    '--config.compression.min_size=0',
    '--config.compression.nesterov=true',
    '--config.parallel.runner=shard_map',
    '--config.parallel.num_workers=3',
  )
  assert done.returncode == 0, done.stderr
  assert ' dgc\n' in done.stdout
  summary = json.loads((tmp_path / 'summary.json').read_text())
  comm = summary['comm']
  for ratio in (comm['ratio'], comm['run_average_ratio']):
    assert f' {ratio:.1f}×\n' in done.stdout
  # The run ends inside its warm-up, so its end is no message of the last stage.
  *_, last = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  logged = json.loads(last)['comm/ratio']
  assert comm['ratio'] == pytest.approx(logged, rel=1e-5) and logged < 20
  assert summary['num_workers'] == 3
  config = json.loads((tmp_path / 'config.json').read_text())
  asked = {'name': 'dgc', 'density': 0.01, 'min_size': 0, 'nesterov': True}
  assert asked.items() <= config['compression'].items()


def test_main_tells_a_mistake_without_a_traceback(tmp_path, run):
  """One of those in tests/bad_input, as a process of its own."""
  done = run(f'--workdir={tmp_path / "run"}', '--config.train.stepz=3')
  assert done.returncode == 2
  assert 'Did you mean "steps"' in done.stderr
  assert 'batch_size' in done.stderr and 'object' not in done.stderr
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_file_in_the_way_of_the_checkpoints_is_one_line(tmp_path, run):
  (tmp_path / 'checkpoints').touch()
  done = run(f'--workdir={tmp_path}', _SMALL)
  assert done.returncode == 1
  (line,) = done.stderr.splitlines()
  place = tmp_path / 'checkpoints'
  assert line == f'error: cannot make the folder {place}: File exists'


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_sets_the_exit_status(number, tmp_path):
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.main', f'--config={_DEFAULT}'),
      *(f'--workdir={tmp_path}', _SMALL, '--config.train.steps=100000'),
    ],
    cwd=_ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  try:
    assert process.stdout.readline().startswith('step 10/')
    process.send_signal(number)
    _, errors = process.communicate(timeout=100)
  finally:
    process.kill()
    process.wait()
  assert process.returncode == 128 + number
  _, heard, saved = errors.splitlines()
  assert heard.startswith(f'{signal.Signals(number).name}: stops after this')
  assert saved.startswith(
    f'stopped by {signal.Signals(number).name} after step'
  )
  folder = saved.split('saved in ')[1].split(',')[0]
  assert (pathlib.Path(folder) / 'manifest.json').exists()


@pytest.mark.slow
@pytest.mark.parametrize('wait', [0.0, 0.07, 0.15])
def test_a_killed_run_resumes_bit_identical(wait, tmp_path, run):
  def arguments(folder):
    return (
      f'--workdir={tmp_path / folder}',
      _SMALL,
      '--config.train.steps=400',
      '--config.train.log_every=1',
      '--config.train.checkpoint_every=5',
      '--config.compression.name=gtopk',
      '--config.compression.density=0.02',
      '--config.compression.min_size=0',
    )

  assert run(*arguments('whole')).returncode == 0
  metrics = tmp_path / 'broken' / 'metrics.jsonl'
  process = subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.main', f'--config={_DEFAULT}'),
      *arguments('broken'),
    ],
    cwd=_ROOT,
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    stdout=subprocess.DEVNULL,
  )
  try:
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count('\n') < 40:
      assert process.poll() is None and time.monotonic() < deadline
      time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
  finally:
    process.kill()
    process.wait()
  assert run(*arguments('broken')).returncode == 0
  with (
    np.load(tmp_path / 'whole' / 'params.npz') as expected,
    np.load(tmp_path / 'broken' / 'params.npz') as found,
  ):
    for name in expected:
      np.testing.assert_array_equal(expected[name], found[name])
  lines = metrics.read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == list(range(1, 401))
