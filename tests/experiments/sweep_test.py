"""Sweeps: which points there are, what is refused, running and collecting."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time

from experiments.program import files
import gradsparse as gs
import pytest
from tests.bad_input import programs

_CONFIG = """
from configs import default


def get_config(scheme='dgc'):
  config = default.get_config()
  config.train.steps = 6
  config.train.log_every = 2
  config.train.eval_every = 0
  config.train.checkpoint_every = 50
  config.model.name = 'logistic'
  config.parallel.num_workers = 2
  config.compression.name = scheme
  if scheme == 'dgc':
    config.compression.update({'density': 0.1, 'min_size': 0})
  return config


def sweep_lr():
  yield from ({'train.learning_rate': rate} for rate in (0.05, 0.1))


def sweep_seed():
  yield from ({'train.seed': seed} for seed in range(2))


def sweep_density():
  yield {'compression.density': 0.01}
  yield {'compression.density': 0.1, 'compression.warmup_steps': 4}


def sweep_own():
  yield {'compression.name': 'tests.experiments.sweep_test:scheme'}


def sweep_bad_field():
  yield {'train.stepz': 1}


def sweep_bad_value():
  yield {'train.steps': 1.5}


def sweep_bad_argument():
  yield {'compression.dencity': 1}


def sweep_empty():
  return []


def sweep_pairs():
  yield 'train.seed', 1


def sweep_short():
  yield {'seed': 1}


def sweep_list():
  yield {'train.seed': [1, 2]}


def sweep_raises():
  yield 1 / 0


def sweep_twice():
  yield {'train.seed': 1}
  yield {'train.seed': 1}
"""


def scheme(*, axis_name):
  """A scheme of one's own."""
  return gs.qsgd(7, axis_name=axis_name)


@pytest.fixture
def sweep(tmp_path, capsys):
  """Returns a function that runs the program: status, printed, said."""
  (tmp_path / 'config.py').write_text(_CONFIG)

  def run(names, *arguments, config=''):
    status, said = programs.run(
      'sweep',
      f'--config={tmp_path / "config.py"}{config}',
      f'--sweep={names}',
      f'--workdir={tmp_path / "runs"}',
      *arguments,
    )
    return status, capsys.readouterr().out, said

  return run


def test_print_shows_the_product_and_makes_nothing(sweep, tmp_path):
  status, printed, said = sweep('lr,seed', '--print')
  assert status == 0, said
  lines = [line.split() for line in printed.splitlines() if 'runs' in line]
  assert [(line[0], line[-1]) for line in lines] == [
    (str(index), f'{tmp_path}/runs/train.learning_rate={lr},train.seed={seed}')
    for index, (lr, seed) in enumerate(
      (lr, seed) for lr in (0.05, 0.1) for seed in (0, 1)
    )
  ]
  assert printed.count('not begun') == 4
  assert not (tmp_path / 'runs').exists()


def test_the_order_of_names_changes_no_folder(sweep):
  folders = [
    {word for word in sweep(names, '--print')[1].split() if 'train.' in word}
    for names in ('lr,seed', 'seed,lr')
  ]
  assert folders[0] == folders[1] and len(folders[0]) == 4


def test_a_scheme_of_ones_own_can_be_a_point(sweep):
  status, printed, said = sweep('own,seed', '--print', config=':dense')
  assert status == 0, said
  assert 'compression.name=tests.experiments.sweep_test_scheme' in printed
  assert ':scheme' not in printed  # a name of a folder


@pytest.mark.parametrize(
  'names, arguments, says',
  [
    ('lrr', '', r"no sweep 'lrr' \(did you mean 'lr'\?\); it has lr, seed"),
    ('seed,seed', '', 'train.seed is set twice'),
    ('seed,twice', '', 'train.seed is set twice'),
    ('twice', '', '--sweep=twice has no points, or one of them twice'),
    ('seed', '--config.train.seed=3', 'train.seed is set twice'),
    ('bad_field', '', 'point train.stepz=1: .*"steps" instead of "stepz"'),
    ('bad_value', '', 'point train.steps=1.5: .*invalid literal for int'),
    ('bad_argument', '', "point .*dencity is not .*'density'"),
    ('density', '--config.compression.name=dense', 'point .*of dense'),
    ('empty', '', r'--sweep=empty has no points'),
    ('pairs', '', r'sweep_pairs\(\) must yield dicts .*ValueError'),
    ('short', '', 'the point seed=1: '),
    ('list', '', r'train.seed=\[1, 2\]: .*invalid literal for int'),
    ('raises', '', r'sweep_raises\(\) must yield dicts .*ZeroDivisionError'),
    ('seed', '--index=2', r'--index must be in 0\.\.1, got 2'),
    ('seed', '--index=-1', '--index'),
    ('seed', '--jobs=0', '--jobs'),
    ('seed', '--jobs=2 --print', 'jobs, index, print, collect'),
    ('', '', "no sweep ''|--sweep=NAME,NAME is missing"),
  ],
)
def test_what_is_wrong_is_told_before_any_run(
  names, arguments, says, sweep, tmp_path
):
  status, _, said = sweep(names, *arguments.split())
  assert status == 2
  assert re.match(f'(?s)error: .*{says}', said), said
  assert not (tmp_path / 'runs').exists()


def _write(folder, *, steps=6, seed=0, summary=True, said=''):
  from configs import default

  config = default.get_config()
  config.train.steps, config.train.seed = steps, seed
  config.model.name = 'logistic'
  config.parallel.num_workers = 2
  config.compression.update({'name': 'dgc', 'density': 0.1, 'min_size': 0})
  config.train.learning_rate = 0.05
  files.write_json(folder / 'config.json', config.to_dict())
  (folder / 'metrics.jsonl').write_text('{"step": 2}\n{"step": 4}\n')
  (folder / 'output.txt').write_text(said)
  if summary:
    files.write_json(
      folder / 'summary.json',
      {'steps': steps, 'final': {'test_accuracy': 0.9}, 'curve': [1, 2]},
    )


def test_collect_has_a_row_a_point(sweep, tmp_path):
  runs = tmp_path / 'runs'
  _write(runs / 'train.seed=0')
  _write(
    runs / 'train.seed=1',
    seed=1,
    summary=False,
    said='step 4/6\nerror: train/loss is nan\n',
  )
  file = tmp_path / 'all.csv'
  status, printed, said = sweep('seed', f'--collect={file}')
  assert status == 0 and printed.strip() == str(file), said
  first, second = csv.DictReader(file.open())
  assert first['status'] == 'finished' and first['config.train.seed'] == '0'
  assert first['final.test_accuracy'] == '0.9' and first['steps'] == '6'
  assert 'curve' not in first and first['error'] == ''
  assert second['status'] == 'failed' and second['step'] == '4'
  assert second['error'] == 'error: train/loss is nan'
  assert second['final.test_accuracy'] == ''


def test_a_finished_run_of_fewer_steps_goes_on(sweep, tmp_path):
  for seed in range(2):
    _write(tmp_path / 'runs' / f'train.seed={seed}', steps=4, seed=seed)
  printed = sweep('seed', '--print')[1]
  assert printed.count('unfinished') == 2


def test_what_is_finished_is_not_run_again(sweep, tmp_path):
  for seed in range(2):
    _write(tmp_path / 'runs' / f'train.seed={seed}', seed=seed)
  status, printed, said = sweep('seed')
  assert status == 0 and printed.count('finished already') == 2, said


def test_the_result_of_other_fields_is_refused(sweep, tmp_path):
  _write(tmp_path / 'runs' / 'train.seed=0', seed=5)
  status, _, said = sweep('seed')
  assert status == 1
  assert 'train.seed=0: ' in said and 'was 5, now 0' in said


@pytest.mark.slow
def test_a_sweep_whose_runs_are_killed_goes_on(tmp_path, sweep, monkeypatch):
  monkeypatch.delenv('XLA_FLAGS', raising=False)
  monkeypatch.delenv('JAX_NUM_CPU_DEVICES', raising=False)
  runs, file = tmp_path / 'runs', tmp_path / 'all.csv'
  first = runs / 'train.learning_rate=0.05,train.seed=0'
  third = runs / 'train.learning_rate=0.1,train.seed=0'

  def saved(folder):
    found = [path.name for path in folder.glob('checkpoints/*')]
    return max((int(name) for name in found if name.isdigit()), default=0)

  def wait(condition):
    until = time.monotonic() + 100
    while not condition():
      assert time.monotonic() < until and program.poll() is None
      time.sleep(0.05)

  program = subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.sweep', '--sweep=lr,seed'),
      *(f'--config={tmp_path / "config.py"}', f'--workdir={runs}'),
      *('--config.train.steps=1000000', '--jobs=2'),
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  # One run is killed, another takes its place; then all are stopped.
  wait(lambda: saved(first))
  os.kill(json.loads((first / 'run.lock').read_text())['pid'], signal.SIGKILL)
  wait(lambda: saved(third))
  program.send_signal(signal.SIGTERM)
  printed, said = program.communicate(timeout=100)
  assert program.returncode == 128 + signal.SIGTERM, said
  assert 'stopped by SIGTERM; points not finished: 4;' in said
  assert printed.count(': begins') == 3
  assert f'{first}: ended with status -9' in printed

  steps = max(saved(folder) for folder in runs.iterdir()) + 4
  given = f'--config.train.steps={steps}'
  assert sweep('lr,seed', given, f'--collect={file}')[0] == 0
  statuses = [row['status'] for row in csv.DictReader(file.open())]
  assert statuses == [*(3 * ['unfinished']), 'not begun']

  status, printed, said = sweep('lr,seed', given, '--index=0')
  assert status == 0 and f'{first}: goes on' in printed, said
  own = '--writer=tests.experiments.run.writers_test:Own'
  status, printed, said = sweep('lr,seed', given, '--jobs=2', own)
  assert status == 0, said
  assert len([*runs.glob('*/own.txt')]) == 3
  assert printed.count('finished already') == 1
  assert printed.count(': goes on') == 2 and printed.count(': begins') == 1
  assert sweep('lr,seed', given, f'--collect={file}')[0] == 0
  rows = [*csv.DictReader(file.open())]
  assert [row['step'] for row in rows] == 4 * [str(steps)]
  assert [row['status'] for row in rows] == 4 * ['finished']
  assert all(float(row['final.test_accuracy']) > 0.5 for row in rows)
  taken = [row['config.train.learning_rate'] for row in rows]
  assert taken == ['0.05', '0.05', '0.1', '0.1']


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_the_others_go_on(sweep, tmp_path):
  (tmp_path / 'runs').mkdir()
  (tmp_path / 'runs' / 'train.seed=0').mkdir()
  (tmp_path / 'runs' / 'train.seed=0' / 'checkpoints').write_text('no folder')
  file = tmp_path / 'all.csv'
  status, printed, said = sweep('seed', '--jobs=2')
  assert status == 1, said
  assert 'not finished: 1 of 2 points' in printed
  assert re.search('train.seed=0: ended with status 1: error: ', printed)
  sweep('seed', f'--collect={file}')
  rows = [*csv.DictReader(file.open())]
  assert [row['status'] for row in rows] == ['failed', 'finished']
  assert rows[0]['error'].startswith('error: ')
