"""The demo: its runs, each afresh, and one table for all."""

from configs import digits
from experiments.training import train
import pytest
from tests.bad_input import programs


def test_former_runs_are_replaced_and_nothing_else(tmp_path, monkeypatch):
  asked = []

  def stub(config, workdir, progress):
    asked.append((config, workdir.name, workdir.exists()))
    workdir.mkdir(exist_ok=True)
    (workdir / 'config.json').write_text('{}')
    progress(config.train.steps, config.train.steps, {})

  monkeypatch.setattr(train, 'train_and_evaluate', stub)
  for name, file in (('dense', 'config.json'), ('qsgd', 'notes.txt')):
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text('{}')
  given = (f'--workdir={tmp_path}', '--schemes=dense,qsgd')
  assert programs.run('demo', *given) == (0, '')
  assert [(name, exists) for _, name, exists in asked] == [
    ('dense', False),
    ('qsgd', True),
  ]
  for config, name, _ in asked:
    assert config.train.steps == digits.get_config(name).train.steps
    assert not config.train.checkpoint_every


@pytest.mark.slow
def test_demo_in_short(tmp_path, capsys, monkeypatch):
  of = digits.get_config

  def one_step(name):
    config = of(name)
    config.train.steps = 1
    return config

  monkeypatch.setattr(digits, 'get_config', one_step)
  former = tmp_path / 'dense'
  former.mkdir()
  (former / 'config.json').write_text('{}')
  (former / 'metrics.jsonl').write_text('{"step": 99}\n')
  status, said = programs.run('demo', f'--workdir={tmp_path}')
  assert status == 0, said
  printed = capsys.readouterr().out
  for text in ('step 1/1', 'compression', '7.9×', 'report.html'):
    assert text in printed
  page = (tmp_path / 'report.html').read_text()
  for scheme in digits.SCHEMES:
    assert scheme in page and scheme in printed
    assert (tmp_path / scheme / 'summary.json').exists()
  assert '99' not in (former / 'metrics.jsonl').read_text().split(',')[0]
