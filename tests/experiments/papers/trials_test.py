"""Trials of learning rates: equally many for each row, none on the test set."""

import dataclasses
import json

from configs import schemes_cifar10
from experiments.papers import metrics
from experiments.papers import table as papers
from experiments.papers import trials
from experiments.program import errors
from experiments.program import tables
from experiments.studies import scheme_runs
import pytest

_TINY = {
  'data.name': 'digits',
  'model.name': 'mlp',
  'train.learning_rate': 0.1,
  'train.steps': 3,
}
TABLE = papers.Table(
  title='Nothing',
  source='nobody',
  metrics=('top1',),
  full=_TINY,
  quick=_TINY,
  rows={
    'dense': papers.Row(fields={}),
    'dgc': papers.Row(
      fields={'compression.name': 'dgc', 'compression.density': 0.01},
      beside='dense',
      chosen_rate=0.4,  # before
    ),
  },
)
# By learning rate; the largest diverges.
SCORES = {0.05: 0.5, 0.1: 0.7, 0.2: 0.6}


@pytest.fixture
def asked(monkeypatch):
  """What the trainer, which other tests hold, was asked for."""
  found = []

  def train_one(run, *, command):
    del command
    rate = round(run.config.train.learning_rate, 6)
    found.append((run.scheme, rate, run.config.data.test_split))
    if rate not in SCORES:
      raise errors.DivergedError('the loss is no number')
    return {
      'final': {'test_accuracy': SCORES[rate]},
      'seconds': 1.0,
      'environment': {},
    }

  monkeypatch.setattr(scheme_runs, 'train_one', train_one)
  return found


def run(
  tmp_path,
  factors=(0.5, 1, 2),
  names=('dense', 'dgc'),
  seeds=(0,),
  table=TABLE,
  **changes,
):
  size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
  made = trials.Trials(tmp_path / 'trials.json', table, size, seeds)
  missing = made.run(
    names, factors, workdir=tmp_path / 'runs', command='typed', **changes
  )
  return made, missing


def test_each_row_has_the_same_trials_on_a_part_of_the_training_set(
  asked, tmp_path
):
  made, missing = run(tmp_path)
  rates = (0.05, 0.1, 0.2)
  assert asked == [
    (name, rate, 'validation') for name in TABLE.rows for rate in rates
  ]
  assert not missing
  assert made.best('dgc', (0.5, 1, 2)) == 1
  assert made.best('dgc', (0.5, 2)) == 2
  kept = json.loads((tmp_path / 'trials.json').read_text())
  assert [x['learning_rate'] for x in kept] == pytest.approx(rates * 2)
  assert kept[0]['command'] == 'typed' and kept[0]['final']
  shown = tables.text(made.results(('dense',), (0.5, 1, 2)))
  assert 'dense' in shown and '70.00*' in shown and '60.00*' not in shown
  asked.clear()
  run(tmp_path)
  assert not asked


def test_a_rate_that_is_too_large_is_a_result(asked, tmp_path):
  made, missing = run(tmp_path, factors=(1, 4), names=('dense',))
  assert not missing and len(asked) == 2
  assert made.score('dense', 4) is None
  assert made.best('dense', (1, 4)) == 1
  assert made.best('dense', (4,)) is None
  asked.clear()
  run(tmp_path, factors=(1, 4), names=('dense',))
  assert not asked


def test_of_equal_scores_the_rate_stays(asked, tmp_path, monkeypatch):
  monkeypatch.setitem(SCORES, 0.05, SCORES[0.1])
  made, _ = run(tmp_path, names=('dense',))
  assert made.best('dense', (0.5, 1, 2)) == 1


def test_short_trials_are_others(asked, tmp_path):
  table = dataclasses.replace(TABLE, quick=_TINY | {'epochs': 2})
  long, short = (
    trials.Trials(tmp_path / 'trials.json', table, papers.QUICK, share=share)
    for share in (1.0, 0.5)
  )
  given = {'workdir': tmp_path / 'runs', 'command': 'typed'}
  short.run(('dense',), (1,), **given)
  assert short.score('dense', 1) == 70 and long.score('dense', 1) is None
  (kept,) = json.loads((tmp_path / 'trials.json').read_text())
  whole = table.config(table.rows['dense'], papers.QUICK, beside=trials._SPLIT)
  assert kept['setting']['train.steps'] == whole.train.steps // 2
  assert '0.5 of the epochs' in short.results(('dense',), (1,)).caption
  assert 'epochs' not in long.results(('dense',), (1,)).caption


def test_after_the_budget_nothing_begins(asked, tmp_path):
  times = iter([0, 0, 10, 10])
  _, missing = run(
    tmp_path, names=('dense',), budget=10, clock=lambda: next(times)
  )
  assert len(asked) == 1
  assert missing == [
    f'dense, learning rate {rate}, seed 0: no time was left'
    for rate in (0.1, 0.2)
  ]


def test_a_score_is_the_mean_over_seeds(asked, tmp_path, monkeypatch):
  made, missing = run(tmp_path, names=('dense',))
  assert made.score('dense', 1) == 70
  asked.clear()
  monkeypatch.setitem(SCORES, 0.1, 0.4)
  made, missing = run(tmp_path, names=('dense',), seeds=(0, 1))
  # Seed 0 is there already.
  assert [rate for _, rate, _ in asked] == [0.05, 0.1, 0.2] and not missing
  assert made.score('dense', 1) == pytest.approx(55)
  assert made.best('dense', (0.5, 1, 2)) == 2
  monkeypatch.delitem(SCORES, 0.2)
  made, _ = run(tmp_path, names=('dense',), seeds=(0, 1, 2))
  assert made.score('dense', 2) is None  # one of three diverged


def test_a_table_with_one_setting_has_trials_of_that(asked, tmp_path):
  table = dataclasses.replace(TABLE, quick=None)
  run(tmp_path, factors=(1,), names=('dgc',), table=table)
  assert [rate for _, rate, _ in asked] == [0.1]
  assert table.config(table.rows['dgc'], papers.FULL).train.learning_rate == 0.4


def test_what_cannot_be_read_or_compared_is_said(tmp_path):
  path = tmp_path / 'trials.json'
  path.write_text('{}')
  with pytest.raises(errors.FileError, match='is no list of trials'):
    trials.Trials(path, TABLE, papers.QUICK)
  speeds = [name for name, m in metrics.METRICS.items() if m.score is None]
  table = dataclasses.replace(TABLE, metrics=(speeds[0],))
  with pytest.raises(errors.ConfigError, match='no score'):
    trials.Trials(tmp_path / 'other.json', table, papers.QUICK)


def test_rates_that_were_chosen_are_those_of_the_quick_setting_only():
  table = schemes_cifar10.TABLE
  for name, rate in (('dgc', 0.2), ('dropping', 0.05), ('dense', 0.1)):
    config = table.config(table.rows[name], papers.QUICK, True)
    assert config.train.learning_rate == rate
    full = table.config(table.rows[name], papers.FULL)
    assert full.train.learning_rate == 0.1
