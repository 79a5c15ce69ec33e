"""The benchmark of compression alone: its trees and its rows."""

import json

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import programs
from experiments.benchmarks.compress import trees
import numpy as np
import pytest

_FLOATS = 500_000
# What is promised of a row.
_KEYS = {
  'scheme',
  'shapes',
  'floats',
  'step_ms',
  'step_ms_spread',
  'sgd_ratio',
  'compile_s',
  'peak_bytes',
}


def test_resnet50_is_the_real_one():
  shapes = trees.make('resnet50', 25_600_000)
  assert len(shapes) == 161 and trees.size(shapes) == 25_557_032


@pytest.mark.parametrize('name', trees.TREES)
def test_trees_are_as_large_as_asked_for_and_no_larger(name):
  for floats in (3_000_000, 25_600_000):
    assert floats / 2 < trees.size(trees.make(name, floats)) <= floats


@pytest.mark.parametrize('name', trees.TREES)
def test_the_smallest_trees_are_none_too_large(name):
  assert 0 < trees.size(trees.make(name, _FLOATS)) <= _FLOATS


def test_scanned_layers_are_those_of_the_transformer():
  one_each, stacked = (
    trees.make(name, 3_000_000) for name in ('transformer', 'scanned')
  )
  assert trees.size(stacked) == trees.size(one_each)
  qkv = one_each['layer00/attention/qkv']
  assert stacked['layers/attention/qkv'] == (12, *qkv)
  assert len(stacked) == 2 + (len(one_each) - 2) // 12


def test_too_small_a_tree_is_refused():
  with pytest.raises(ValueError, match='floats must be at least 500,000'):
    trees.make('one', 499_999)


def test_a_ratio_is_taken_round_by_round(monkeypatch):
  # A machine that was twice as slow in one round was so for both.
  ms = {'step': [2.0, 4.0, 3.0], 'sgd': [1.0, 2.0, 1.0]}
  monkeypatch.setattr(programs, 'milliseconds', lambda *_: ms)
  made = programs.Program(lambda times: None, 1.0, None)
  found = programs.compared(dict.fromkeys(ms, made), 3, 'sgd')
  assert found['step']['sgd_ratio'] == 2.0 and found['step']['step_ms'] == 3.0
  assert 'device_ratio' not in found['step']  # no accelerator


def test_on_an_accelerator_rows_have_a_ratio_of_kernels(monkeypatch):
  monkeypatch.setattr(
    programs,
    'on_accelerator',
    lambda made: {'device_ms': made.compile_seconds, 'launches': 3.0},
  )
  made = {
    name: programs.Program(lambda times: None, ms, None)
    for name, ms in (('sgd', 0.5), ('step', 2.0))
  }
  found = programs.compared(made, 1, 'sgd')
  assert [found[name]['device_ratio'] for name in made] == [1.0, 4.0]
  rows = [
    {'scheme': name, 'shapes': 'one', **own} for name, own in found.items()
  ]
  assert '| step | 2.00 | 4.0 | 3 |' in page.table(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [
    contenders.SCHEMES['dropping_leaf'],
    lambda: contenders.OUTER['sparse_loco'](axis_name=None, sync_every=1),
  ],
)
def test_a_step_is_timed_beside_another(make):
  bench = programs.Bench({'w': (320, 320), 'b': (320,)})
  scheme = make()
  step = bench.step(contenders.followed(scheme))
  other = programs.program(abs, np.ones(3))
  found = programs.milliseconds({'step': step, 'other': other}, 2)
  assert all(len(ms) == 2 and min(ms) > 0 for ms in found.values())
  assert step.compile_seconds > 0
  # Parameters, residual and gradient; what was sent is no dense vector.
  assert step.peak_bytes is None or step.peak_bytes > 3 * 4 * 320 * 320


@pytest.mark.slow
def test_rows_have_what_the_contract_names(tmp_path, program):
  path = tmp_path / 'rows.json'
  done = program(
    'benchmarks.compress',
    *('--num_params=500000', '--shapes=one', '--schemes=dropping_leaf'),
    *('--repeats=2', f'--json={path}'),
  )
  assert done.returncode == 0, done.stderr
  rows = json.loads(path.read_text())['rows']
  assert [row['scheme'] for row in rows[::3]] == [
    'momentum_sgd',
    'dropping_leaf',
  ]
  for row in rows:
    assert row.keys() >= _KEYS
    assert row['step_ms'] > 0 and row['sgd_ratio'] > 0
