"""A list of schemes: each run once, afresh or not, and one table for all."""

import pathlib

from configs import digits
from experiments.program import tables
from experiments.studies import compare
from experiments.studies import demo
from experiments.studies import scheme_runs
import pytest


@pytest.fixture
def trained(monkeypatch):
  """Lets no run take time; returns what was asked for."""
  asked = []

  def train(config, workdir, progress, command):
    asked.append((config, workdir.name, workdir.exists()))
    progress(config.train.steps, config.train.steps, {})
    accuracy = 0.97 if config.compression.name == 'dense' else 0.95
    return {'final': {'test_accuracy': accuracy}, 'seconds': 1.0, 'comm': {}}

  monkeypatch.setattr(scheme_runs.train, 'train_and_evaluate', train)
  return asked


def _list(workdir, **changes):
  return scheme_runs.list_runs(
    digits.get_config, ['dense', 'qsgd'], workdir, **changes
  )


def test_a_run_for_each_scheme_and_seed(trained, tmp_path, capsys):
  runs = _list(tmp_path, seeds=[1, 2], steps=3, test_split='validation')
  found = scheme_runs.train_each(runs, afresh=False)
  folders = ['dense_seed1', 'dense_seed2', 'qsgd_seed1', 'qsgd_seed2']
  assert [name for _, name, _ in trained] == folders
  for config, name, _ in trained:
    assert config.train.seed == int(name[-1]) and config.train.steps == 3
    assert config.data.test_split == 'validation'
    # One at the end: what is finished is not trained again.
    assert config.train.checkpoint_every == 3
  assert scheme_runs.accuracies(found['qsgd']) == [0.95, 0.95]
  assert 'qsgd, seed 2: test accuracy 95.00%, 1.0 s' in capsys.readouterr().out


def test_afresh_replaces_former_runs_and_nothing_else(trained, tmp_path):
  for name, file in (('dense', 'config.json'), ('qsgd', 'notes.txt')):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text('{}')
  scheme_runs.train_each(_list(tmp_path), afresh=True)
  assert [exists for _, _, exists in trained] == [False, True]
  assert [config.train.checkpoint_every for config, _, _ in trained] == [0, 0]


def test_the_baseline_comes_first_whether_asked_for_or_not():
  assert scheme_runs.baseline_first(['qsgd', 'dense']) == ['dense', 'qsgd']
  assert scheme_runs.baseline_first(['qsgd']) == ['dense', 'qsgd']
  colon = scheme_runs.list_runs(
    lambda name: digits.get_config(), ['qsgd:elias'], pathlib.Path('runs')
  )
  assert colon[0].folder == pathlib.Path('runs/qsgd_elias')


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
  for shown in (demo.results_table([summary]), compare.results_table([row])):
    lines = [line.split() for line in tables.text(shown).splitlines()]
    first = next(i for i, line in enumerate(lines) if '1,600' in line)
    assert lines[first][-4:] == ['1,600', '4,800', '709.5x', '1234.5']
    assert lines[first + 1] == ['42,972', '72,161', '26.4x']
