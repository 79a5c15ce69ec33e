"""A row of a table with trials has the learning rate that did best in them."""

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
_TABLES = tuple(path.stem for path in sorted(_RATES.glob('*.json')))


@pytest.mark.parametrize('name', _TABLES)
def test_each_row_takes_the_best_of_its_trials(name):
  if name == 'schemes_cifar10' and not quick.has_cifar():
    pytest.skip('its quick setting is that of the digits here')
  table, path = catalogue.load(name), _RATES / f'{name}.json'
  size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
  kept = json.loads(path.read_text())
  seeds = sorted({each.get('seed', 0) for each in kept})
  share = kept[0].get('share', 1.0)
  tried = trials.Trials(path, table, size, seeds, share)
  for row_name, row in table.rows.items():
    if 'rate' in row.groups:
      continue  # is there to have another rate
    if row_name == 'dense_delayed':
      continue  # is for slow networks, and has the rate of dense
    factor = tried.best(row_name, sorted({each['factor'] for each in kept}))
    assert factor is not None, f'{row_name}: no trials of this setting'
    before = table.config(dataclasses.replace(row, chosen_rate=None), size)
    now = table.config(row, size).train.learning_rate
    assert now == pytest.approx(factor * before.train.learning_rate), row_name
