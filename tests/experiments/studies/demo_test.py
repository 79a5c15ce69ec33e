"""The demo: its runs, each afresh, and one table for all."""

from configs import digits
from experiments.program import tables
from experiments.studies import demo
from experiments.studies import scheme_runs
import pytest


@pytest.fixture
def trained(monkeypatch):
  """Lets no run take time; returns what was asked for."""
  asked = []

  def train(config, workdir, progress, command):
    del command
    asked.append((config, workdir.name, workdir.exists()))
    progress(config.train.steps, config.train.steps, {})
    accuracy = 0.97 if config.compression.name == 'dense' else 0.95
    return {'final': {'test_accuracy': accuracy}, 'seconds': 1.0, 'comm': {}}

  monkeypatch.setattr(scheme_runs.train, 'train_and_evaluate', train)
  return asked


def test_afresh_replaces_former_runs_and_nothing_else(
  trained, tmp_path, monkeypatch
):
  monkeypatch.setattr(demo.page, 'write', lambda *_, **__: None)
  monkeypatch.setattr(demo, 'results_table', lambda _: tables.make((), ()))
  for name, file in (('dense', 'config.json'), ('qsgd', 'notes.txt')):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text('{}')
  summaries = demo.run(tmp_path, ['dense', 'qsgd'], steps=3)
  assert [(name, exists) for _, name, exists in trained] == [
    ('dense', False),
    ('qsgd', True),
  ]
  for config, _, _ in trained:
    assert config.train.steps == 3 and config.train.checkpoint_every == 0
  assert [s['final']['test_accuracy'] for s in summaries] == [0.97, 0.95]
  demo.run(tmp_path, ['dgc'])
  assert trained[-1][0].train.steps == digits.get_config('dgc').train.steps


def test_one_run_tells_its_end_where_nobody_watches(tmp_path, trained, capsys):
  config = digits.get_config('qsgd')
  scheme_runs.train_one(scheme_runs.Run('qsgd', config, tmp_path))
  assert 'qsgd, seed 0: test accuracy 95.00%, 1.0 s' in capsys.readouterr().out


def test_the_table_shows_the_average_of_the_run_below_the_last_stage():
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
  shown = tables.text(demo.results_table([summary]))
  lines = [line.split() for line in shown.splitlines()]
  first = next(i for i, line in enumerate(lines) if '1,600' in line)
  assert lines[first] == (
    'gradient_dropping 99.0% 1,600 4,800 709.5x 1234.5'.split()
  )
  assert lines[first + 1] == ['42,972', '72,161', '26.4x']


@pytest.mark.slow
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
  ratios = {s['scheme']: s['comm']['ratio'] for s in summaries}
  # One step of DGC is a step of its warm-up, and so is the end of the run.
  assert 2 < ratios['dgc'] < 4 and ratios['qsgd'] > 6
  assert ratios['gradient_dropping'] == ratios['gtopk']
  printed = capsys.readouterr().out
  for text in ('step 1/1', 'compression', '7.9x', 'report.html'):
    assert text in printed
  page = (tmp_path / 'report.html').read_text()
  assert all(scheme in page for scheme in digits.SCHEMES)
  assert (tmp_path / 'qsgd' / 'summary.json').exists()
  assert '99' not in (former / 'metrics.jsonl').read_text().split(',')[0]
