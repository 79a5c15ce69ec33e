"""The program on a tiny table: what it runs, keeps, resumes and says."""

import csv
import dataclasses
import datetime
import json

from experiments.papers import catalogue
from experiments.papers import metrics
from experiments.papers import outcomes
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as papers
from experiments.program import errors
from experiments.program import tables
import pytest
from tests.bad_input import programs

_TINY = {
  'data.name': 'digits',
  'model.name': 'logistic',
  'parallel.num_workers': 2,
  'train.steps': 3,
  'train.log_every': 1,
}
TABLE = papers.Table(
  title='Nothing',
  source='nobody',
  metrics=('top1', 'ratio'),
  full=_TINY,
  quick={**_TINY, 'epochs': 0.07},  # 3 steps of 2 x 16
  rows={
    'dense': papers.Row(fields={}, published={'top1': 90.0, 'ratio': 1}),
    'dgc': papers.Row(
      fields={'compression.name': 'dgc', 'compression.density': 0.01},
      published={'top1': 91.0, 'ratio': 90},
      beside='dense',
    ),
  },
)


class _Trained:
  """Stands for the trainer, which other tests hold."""

  def __init__(self):
    self.asked = []
    self.failing = {}

  def __call__(self, row, config, folder, command):
    name = (row, config.train.seed)
    self.asked.append(name)
    if name in self.failing:
      raise self.failing[name]
    accuracy = 0.5 if row == 'dense' else 0.51 + 0.01 * name[1]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'metrics.jsonl').write_text(
      '{"step": 1, "comm/sent_bytes_total": 10, "time/seconds": 1.0}\n'
      '{"step": 2, "comm/sent_bytes_total": 20, "time/seconds": 1.5, '
      '"test/accuracy": 0.25}\n'
    )
    comm = {'ratio': 80.0, 'run_average_ratio': 20.0}
    return {
      'steps': config.train.steps,
      'final': {'test_accuracy': accuracy},
      'seconds': 2.0,
      'comm': comm,
      'command': command,
      'environment': {
        'device': 'cpu',
        'devices': 1,
        'cpu_cores': 2,
        'jax': '0',
      },
    }


@pytest.fixture
def trained(monkeypatch):
  fake = _Trained()
  monkeypatch.setattr(running, 'train', fake)
  return fake


def _run(
  tmp_path,
  names=('dense', 'dgc'),
  table=TABLE,
  seeds=(0,),
  size=papers.QUICK,
  **changes,
):
  record = records.Record(tmp_path / 'tiny.json', 'tiny', table)
  missing = running.run(
    table,
    names,
    size=size,
    seeds=seeds,
    workdir=tmp_path / 'runs',
    record=record,
    command='typed',
    **changes,
  )
  return record, missing


def test_every_run_is_recorded_at_once_and_not_run_again(trained, tmp_path):
  trained.failing['dgc', 1] = errors.StoppedError('stopped', 15)
  with pytest.raises(errors.StoppedError):
    _run(tmp_path, seeds=(0, 1))
  assert trained.asked == [('dense', 0), ('dgc', 0), ('dense', 1), ('dgc', 1)]
  kept = json.loads((tmp_path / 'tiny.json').read_text())
  assert (kept['table'], kept['source']) == ('tiny', 'nobody')
  run = kept['runs']['quick']['dgc']['0']
  datetime.date.fromisoformat(run['date'])
  assert run['command'] == 'typed' and run['environment']['jax'] == '0'
  assert run['setting']['compression.density'] == 0.01
  assert run['evaluations'] == [
    {'step': 2, 'test_accuracy': 0.25, 'sent_bytes': 20, 'seconds': 1.5}
  ]
  trained.asked.clear()
  del trained.failing['dgc', 1]
  record, missing = _run(tmp_path, seeds=(0, 1))
  assert trained.asked == [('dgc', 1)] and not missing
  assert {*record.runs(papers.QUICK, 'dgc')} == {0, 1}
  assert not record.runs(papers.FULL, 'dgc')


def test_csv_has_a_row_a_run(trained, tmp_path):
  trained.failing['dgc', 1] = errors.DivergedError('the loss is no number')
  record, _ = _run(tmp_path, seeds=(0, 1))
  frame = record.frame(papers.QUICK).drop(columns='tests')
  tables.write_csv(tmp_path / 'runs.csv', frame)
  rows = list(csv.DictReader((tmp_path / 'runs.csv').open()))
  assert [(row['row'], row['seed'], row['status']) for row in rows] == [
    *(('dense', '0', 'finished'), ('dense', '1', 'finished')),
    *(('dgc', '0', 'finished'), ('dgc', '1', 'failed')),
  ]
  assert rows[2]['config.compression.density'] == '0.01'
  assert rows[2]['comm.run_average_ratio'] == '20.0'
  assert rows[2]['steps'] == '3' and not {'tests', 'evaluations'} & {*rows[2]}
  assert rows[3]['why'] == 'the loss is no number'
  assert not len(record.frame(papers.FULL))


def test_a_row_whose_setting_has_changed_is_run_again(trained, tmp_path):
  _run(tmp_path)
  trained.asked.clear()
  fields = {'compression.name': 'dgc', 'compression.density': 0.02}
  changed = papers.Row(fields=fields, beside='dense')
  table = dataclasses.replace(TABLE, rows={**TABLE.rows, 'dgc': changed})
  _run(tmp_path, table=table)
  assert trained.asked == [('dgc', 0)]


def test_after_the_budget_nothing_begins(trained, tmp_path):
  times = iter([0, 0, 10, 10, 10])
  record, missing = _run(
    tmp_path, seeds=(0, 1), budget=10, clock=lambda: next(times)
  )
  assert trained.asked == [('dense', 0)]
  assert [(m.row, m.seed) for m in missing] == [
    ('dgc', 0),
    ('dense', 1),
    ('dgc', 1),
  ]
  assert 'no time' in missing[0].why
  assert page.results(TABLE, record.frame(papers.QUICK, ['dgc'])).empty


def test_a_row_that_fails_is_missing_with_its_reason(trained, tmp_path):
  trained.failing['dense', 0] = errors.DataFileError('no file')
  record, missing = _run(tmp_path)
  assert missing == [running.Missing('dense', 0, 'no file')]
  # Nothing to pair with.
  frame = record.frame(papers.QUICK)
  assert outcomes.difference(TABLE, frame, 'dgc') is None


def test_a_run_that_diverged_is_kept_as_such(trained, tmp_path):
  trained.failing['dgc', 0] = errors.DivergedError('the loss is no number')
  _, missing = _run(tmp_path)
  assert missing == [running.Missing('dgc', 0, 'the loss is no number')]
  trained.asked.clear()
  record, again = _run(tmp_path)
  assert not trained.asked and again == missing
  assert record.failures(papers.QUICK, 'dgc')[0]['setting']
  (each,) = (
    outcomes.outcomes(TABLE, record.frame('quick'))[n] for n in ['dgc']
  )
  assert each.failed == 1 and each.verdict == 'open, 1 failed'
  # Another seed may go better.
  _, missing = _run(tmp_path, seeds=(1,))
  assert trained.asked == [('dense', 1), ('dgc', 1)] and not missing


def test_a_setting_that_is_none_is_missing(trained, tmp_path):
  table = dataclasses.replace(TABLE, full={'data.name': 'mnist'})
  record = records.Record(tmp_path / 'tiny.json', 'tiny', table)
  missing = running.run(
    table,
    ['dense'],
    size=papers.HELD_OUT,
    seeds=[0],
    workdir=tmp_path,
    record=record,
    command='',
  )
  assert 'a part is held out of an4, cifar10, digits' in missing[0].why


def test_the_median_where_the_paper_has_it(trained, tmp_path):
  record, _ = _run(tmp_path, seeds=(0, 1, 9))
  frame = record.frame(papers.QUICK, ['dgc'])
  assert page.results(TABLE, frame)['top-1 (%)'].tolist() == ['54.33']
  median = dataclasses.replace(TABLE, middle='median')
  assert page.results(median, frame)['top-1 (%)'].tolist() == ['52.00']


def test_ours_stand_beside_the_published(trained, tmp_path):
  record, _ = _run(tmp_path, seeds=(0, 1, 2))
  frame = record.frame(papers.QUICK)
  found = outcomes.difference(TABLE, frame, 'dgc')
  # 1, 2 and 3 points: 4.303 standard errors of 1 / sqrt(3).
  assert found.mean == pytest.approx(2) and found.n == 3
  assert found.half == pytest.approx(2.484, abs=1e-3)
  assert page.results(TABLE, frame).loc[1].to_dict() == {
    'row': 'dgc',
    'beside': 'dense',
    'top-1 (%), published': '91.00',
    'top-1 (%)': '52.00',
    'ratio, published': '90',
    'points to dense, published': '+1.00',
    'points to dense, 95 %': '+2.00 ± 2.48',
    'as good': 'supported',
    'ratio, last stage': '80.0',
    'ratio, whole run': '20.0',
    'seconds': '2.0',
    'reached dense less margin': '0 of 3',
    'seeds': '3',
  }


def test_the_dense_row_comes_first_and_once():
  assert running.with_dense(TABLE, ['dgc']) == ['dense', 'dgc']
  assert running.with_dense(TABLE, ['dgc', 'dense']) == ['dense', 'dgc']
  assert running.with_dense(TABLE, []) == ['dense', 'dgc']


def test_a_record_is_of_one_table(trained, tmp_path):
  _run(tmp_path)
  with pytest.raises(errors.FileError, match='no record of the table other'):
    records.Record(tmp_path / 'tiny.json', 'other', TABLE)


def test_images_a_second_are_of_all_workers():
  run = {'step_ms': 500.0, 'step_images': 64}
  assert metrics.METRICS['images'].of(run) == 128
  assert metrics.METRICS['images'].of(run | {'step_ms': None}) is None


def test_the_listing_names_every_row():
  shown = page.listing({'tiny': TABLE})
  assert 'tiny: Nothing (nobody)' in shown and 'dgc  ' in shown
  whole = page.listing({n: catalogue.load(n) for n in catalogue.NAMES})
  assert 'full needs the files of ImageNet, GPUs for days' in whole
  assert 'not here: top-1: the alignment that comes with' in whole


@pytest.mark.parametrize(
  'flag, size',
  [('--seeds=0', 'full'), ('--full', 'full'), ('--held_out', 'held_out')],
)
def test_the_program_takes_the_only_setting_of_a_table(
  flag, size, tmp_path, capsys
):
  flags = ('--budget=0', f'--workdir={tmp_path}', flag)
  status, told = programs.run('papers', 'schemes_digits', 'dgc', *flags)
  assert status == 1, told
  said = capsys.readouterr().out
  assert f'{size} setting' in ' '.join(said.split())
  assert 'missing: dense, seed 0: no time was left' in said
  assert 'missing: dgc, seed 0' in said


@pytest.mark.slow
def test_a_row_of_the_program_is_recorded(program, tmp_path):
  path = tmp_path / 'schemes.json'
  flags = (f'--json={path}', f'--workdir={tmp_path}', '--seeds=1')
  done = program('papers', 'schemes_digits', 'dense', *flags)
  assert done.returncode == 0, done.stderr
  run = json.loads(path.read_text())['runs']['full']['dense']['1']
  assert run['steps'] == 660 and run['final']['test_accuracy'] > 0.9
  assert run['command'].startswith('python -m experiments.papers schemes_digi')
  assert run['environment']['jax'] and run['date']


@pytest.mark.slow
def test_a_real_run_resumes_and_is_recorded(tmp_path):
  """With the trainer itself: three steps of one layer on digits."""
  record, missing = _run(tmp_path, names=('dense',))
  assert not missing
  run = record.runs(papers.QUICK, 'dense')[0]
  assert run['steps'] == 3 and run['command'] == 'typed'
  assert run['comm']['ratio'] == 1 and run['step_ms'] > 0
  # Without the record the folder still has the finished run.
  (tmp_path / 'tiny.json').unlink()
  again, _ = _run(tmp_path, names=('dense',))
  kept = again.runs(papers.QUICK, 'dense')[0]
  assert kept['final'] == run['final'] and kept['comm'] == run['comm']


_OWN = """
import gradsparse as gs

def thinned(density, *, axis_name, share=1.0):
  return gs.gradient_dropping(density * share, axis_name=axis_name)
"""


def test_a_scheme_of_ones_own_is_shown_beside_the_recorded_rows(
  trained, tmp_path, monkeypatch, capsys
):
  (tmp_path / 'my_schemes.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  own = 'my_schemes:thinned,density=0.1,train.learning_rate=0.2'
  status, told = programs.run(
    *('papers', 'schemes_digits', own, f'--workdir={tmp_path}'),
    *(f'--csv={tmp_path}/runs.csv', '--seeds=0'),
  )
  assert status == 0, told
  assert trained.asked == [('dense', 0), (own, 0)]
  said = capsys.readouterr().out
  assert own in said and 'The same on record' in said
  assert 'gradient_dropping_exponent4' in said
  kept = json.loads((tmp_path / 'schemes_digits.json').read_text())
  setting = kept['runs']['full'][own]['0']['setting']
  assert setting['compression.name'] == 'my_schemes:thinned'
  assert setting['compression.density'] == 0.1
  assert setting['train.learning_rate'] == 0.2
  assert own in (tmp_path / 'runs.csv').read_text()
  status, told = programs.run('papers', 'schemes_digits', 'my_schemes:thin')
  assert status == 2 and "has no attribute 'thin'" in told


def test_a_scheme_of_ones_own_trains_as_its_dense_row():
  table = catalogue.load('schemes_translation')
  name = 'gradsparse:dgc,density=0.01,warmup_share=0.25'
  table = table.with_schemes([name])
  row = table.rows[name]
  assert row.beside == 'adam_dense'
  own = table.config(row, papers.QUICK)
  dense = table.config(table.rows['adam_dense'], papers.QUICK)
  assert own.train.to_dict() == dense.train.to_dict()
  assert own.optimizer.to_dict() == dense.optimizer.to_dict()
  assert own.compression.warmup_steps == own.train.steps // 4


def test_questions_and_published_numbers_have_rows_and_columns():
  for name in catalogue.NAMES:
    table = catalogue.load(name)
    for row in table.rows.values():
      assert row.beside in ('', *table.rows)
      assert {*row.published} <= {*table.metrics}
    for asked in table.questions:
      assert {asked.row, asked.other} <= {*table.rows}
      by = metrics.METRICS[asked.metric or table.metrics[0]].score
      assert by.unit == table.score.unit
