"""A row has the learning rate that did best in its trials, if it had any."""

import dataclasses
import json
import pathlib

from experiments.papers import catalogue
from experiments.papers import quick
from experiments.papers import table as papers
from experiments.papers import trials
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_RATES = _ROOT / 'experiments' / 'results' / 'rates'
# Its trials were half as long as a run, and no row took their rate.
_UNUSED = ('schemes_ptb',)
_TABLES = tuple(
  path.stem
  for path in sorted(_RATES.glob('*.json'))
  if path.stem not in _UNUSED
)


@pytest.mark.parametrize('name', _TABLES)
def test_each_row_takes_the_best_of_its_trials(name):
  if name == 'schemes_cifar10' and not quick.has_cifar():
    pytest.skip('its quick setting is that of the digits here')
  table, path = catalogue.load(name), _RATES / f'{name}.json'
  size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
  kept = json.loads(path.read_text())
  seeds = sorted({each.get('seed', 0) for each in kept})
  tried = trials.Trials(path, table, size, seeds)
  for row_name in {each['row'] for each in kept}:
    row = table.rows[row_name]
    factor = tried.best(row_name, sorted({each['factor'] for each in kept}))
    assert factor is not None, f'{row_name}: trials of another setting'
    before = table.config(dataclasses.replace(row, chosen_rate=None), size)
    now = table.config(row, size).train.learning_rate
    assert now == pytest.approx(factor * before.train.learning_rate), row_name
