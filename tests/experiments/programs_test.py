"""The programs as a user starts them."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from configs import digits
from experiments import claims
from experiments import compare
from experiments import demo
import numpy as np
import pytest
from rich import console

_ROOT = pathlib.Path(__file__).parents[2]


_DEFAULT = _ROOT / 'configs' / 'default.py'
_SMALL = '--config.model.name=mlp'


def _command(*arguments, config=_DEFAULT):
  return [
    sys.executable,
    '-m',
    'experiments.main',
    f'--config={config}',
    *arguments,
  ]


def _environment():
  # Without the devices that the tests themselves asked for.
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
  environment.pop('XLA_FLAGS', None)
  environment.pop('JAX_NUM_CPU_DEVICES', None)
  return environment


def _run(*arguments, **config):
  return subprocess.run(
    _command(*arguments, **config),
    cwd=_ROOT,
    env=_environment(),
    capture_output=True,
    text=True,
    timeout=200,
    check=False,
  )


def test_main_trains_on_devices_that_it_makes_itself(tmp_path):
  done = _run(
    f'--workdir={tmp_path}',
    _SMALL,
    '--config.train.steps=3',
    '--config.compression.name=dgc',
    '--config.compression.density=0.01',
    '--config.compression.min_size=0',
    '--config.compression.nesterov=true',
    '--config.parallel.runner=shard_map',
    '--config.parallel.num_workers=3',
  )
  assert done.returncode == 0, done.stderr
  assert 'dgc: 3 steps' in done.stdout
  summary = json.loads((tmp_path / 'summary.json').read_text())
  comm = summary['comm']
  assert f'({comm["ratio"]:.1f}x smaller than dense)' in done.stdout
  assert f'({comm["run_average_ratio"]:.1f}x)' in done.stdout
  assert summary['num_workers'] == 3
  config = json.loads((tmp_path / 'config.json').read_text())
  asked = {'name': 'dgc', 'density': 0.01, 'min_size': 0, 'nesterov': True}
  assert asked.items() <= config['compression'].items()


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--config.train.stepz=3', 'did you mean "train.steps"'),
    ('--config.trian.steps=3', 'Did you mean "train"'),
    ('--config.train.steps=many', "invalid literal for int() with base 10: 'm"),
    ('--config.compression.name=nope', 'valid names: '),
    ('surplus', "unexpected argument 'surplus'"),
    (f'--config={_ROOT}/configs/digits.py:dcg', "no setting 'dcg'; it has den"),
  ],
)
def test_main_tells_mistakes_without_a_traceback(argument, message, tmp_path):
  done = _run(f'--workdir={tmp_path / "run"}', argument)
  assert done.returncode != 0
  assert message in done.stderr + done.stdout
  assert 'Traceback' not in done.stderr
  assert not (tmp_path / 'run').exists()


def test_main_needs_both_flags(tmp_path):
  done = _run()
  assert done.returncode != 0 and '--workdir is missing' in done.stderr
  done = _run(f'--workdir={tmp_path}', config=tmp_path / 'none.py')
  assert done.returncode != 0 and 'none.py' in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('wait', [0.0, 0.07, 0.15])
def test_a_killed_run_resumes_bit_identical(wait, tmp_path):
  def arguments(folder):
    return (
      f'--workdir={tmp_path / folder}',
      _SMALL,
      '--config.train.steps=400',
      '--config.train.log_every=1',
      '--config.train.checkpoint_every=5',
      '--config.compression.name=gtopk',
      '--config.compression.density=0.02',
    )

  assert _run(*arguments('whole')).returncode == 0
  metrics = tmp_path / 'broken' / 'metrics.jsonl'
  process = subprocess.Popen(
    _command(*arguments('broken')),
    cwd=_ROOT,
    env=_environment(),
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
  assert _run(*arguments('broken')).returncode == 0
  with (
    np.load(tmp_path / 'whole' / 'params.npz') as expected,
    np.load(tmp_path / 'broken' / 'params.npz') as found,
  ):
    for name in expected:
      np.testing.assert_array_equal(expected[name], found[name])
  lines = metrics.read_text().splitlines()
  assert [json.loads(line)['step'] for line in lines] == list(range(1, 401))


def test_demo_in_short(tmp_path, capsys):
  former = tmp_path / 'dense'
  former.mkdir()
  (former / 'config.json').write_text('{}')
  (former / 'metrics.jsonl').write_text('{"step": 99}\n')
  summaries = demo.run(tmp_path, list(digits.SCHEMES), steps=1)
  assert [summary['scheme'] for summary in summaries] == list(digits.SCHEMES)
  for summary in summaries:
    assert summary['parameters'] == 283_786
    assert summary['comm']['dense_bytes_per_step'] == 4 * 283_786
  # One step of DGC is a step of its warm-up; its plan is the last stage's.
  ratios = {s['scheme']: s['comm']['ratio'] for s in summaries}
  assert ratios['dgc'] > 500 and ratios['qsgd'] > 6
  assert ratios['gradient_dropping'] == ratios['gtopk']
  printed = capsys.readouterr().out
  for text in ('step 1/1', 'compression', '7.9x', 'report.html'):
    assert text in printed
  page = (tmp_path / 'report.html').read_text()
  assert all(scheme in page for scheme in digits.SCHEMES)
  assert (tmp_path / 'qsgd' / 'summary.json').exists()
  assert '99' not in (former / 'metrics.jsonl').read_text().split(',')[0]


def test_tables_show_the_average_of_the_run_below_the_last_stage():
  comm = {
    'payload_bytes_per_step': 1600,
    'sent_bytes_per_step': 4800,
    'ratio': 709.465,
    'run_average_payload_bytes_per_step': 42972.5,
    'run_average_sent_bytes_per_step': 72160.6,
    'run_average_ratio': 26.4156,
  }
  summary = {
    'scheme': 'gradient_dropping',
    'final': {'test_accuracy': 0.99},
    'seconds': 1234.5,
    'comm': comm,
  }
  row = {
    'setting': 'gradient_dropping:exponent4',
    'test_accuracy': [0.99],
    'seconds': 1234.5,
    **comm,
  }
  for shown, width in (
    (demo.results_table([summary]), 80),
    (compare.results_table([row]), 100),
  ):
    screen = console.Console(width=width, record=True, file=io.StringIO())
    screen.print(shown)
    lines = [line.split() for line in screen.export_text().splitlines()]
    first = next(i for i, line in enumerate(lines) if '1,600' in line)
    assert lines[first][-4:] == ['1,600', '4,800', '709.5x', '1234.5']
    assert lines[first + 1] == ['42,972', '72,161', '26.4x']


def test_claim_is_the_paired_mean():
  rows = claims.compare(
    {
      'dense': [0.98, 0.99, 0.97],
      'good': [0.96, 0.99, 0.97],
      'bad': [0.96, 0.98, 0.96],
    }
  )
  assert rows['good']['mean_difference_points'] == pytest.approx(-0.67)
  assert rows['good']['within_one_point']
  assert rows['bad']['difference_points'] == [-2, -1, -1]
  assert not rows['bad']['within_one_point']


def test_claims_record_command_and_machine(tmp_path, capsys, monkeypatch):
  asked = []

  def train(config, workdir):
    asked.append((config.compression.name, config.train.seed, workdir.name))
    assert config.data.test_split == 'validation' and config.train.steps == 2
    accuracy = 0.97 if config.compression.name == 'dense' else 0.95
    return {'final': {'test_accuracy': accuracy}, 'seconds': 1, 'comm': {}}

  monkeypatch.setattr(claims.train, 'train_and_evaluate', train)
  output = tmp_path / 'claims.json'
  claims.main(
    [
      f'--output={output}',
      f'--workdir={tmp_path / "runs"}',
      '--schemes=qsgd',
      '--seeds=1',
      '--steps=2',
      '--test-split=validation',
    ]
  )
  assert asked == [('dense', 1, 'dense_seed1'), ('qsgd', 1, 'qsgd_seed1')]
  record = json.loads(output.read_text())
  assert '--seeds=1' in record['command']
  assert record['schemes']['qsgd']['mean_difference_points'] == -2
  assert record['environment']['jax'] and record['seeds'] == [1]
  assert 'FAILS' in capsys.readouterr().out
