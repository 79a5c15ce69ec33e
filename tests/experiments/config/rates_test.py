"""A row of a table with trials has the learning rate that did best in them."""

import json
import math
import pathlib
import re
import statistics

from experiments.papers import catalogue
from experiments.papers import judging
from experiments.papers import record as records
from experiments.papers import table as papers
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_RATES = _ROOT / 'experiments' / 'results' / 'rates'
_TABLES = tuple(path.stem for path in sorted(_RATES.glob('*.json')))
# Steps of a scheme that are fewer in a shorter run.
_OF_A_LENGTH = {'compression.warmup_steps', 'compression.freeze_step'}
# Local gradients that RESULTS.md shows with one seed.
_SHOWN = {'sum', 'error'}
# Rows of a table that have the rate of another row, or of shorter runs.
_WITHOUT_TRIALS = {
  'between_sites': {'one_bit_adam_999'},
  # `dense_delayed` and `muon` did not run.
  'between_sites_longer': {'dense_delayed', 'muon', 'one_bit_adam_999'},
  # RESULTS.md quotes dense and DGC with 32 workers only.
  'dgc_table2': {
    name
    for name in catalogue.load('dgc_table2').rows
    if not name.endswith('_32workers') or name.startswith('dropping')
  },
}


def _best(score, trials):
  """Returns the rate with the best mean, of equal ones that nearest to x 1.

  That of one worker's model, if the trials tested it.
  """
  own = all('one_worker' in each for each in trials)

  def order(rate):
    tested = [e['one_worker'] if own else e for e in trials if _rate(e) == rate]
    ended = [score.of(each['final']) for each in tested]
    if None in ended:  # it diverged
      return -math.inf, 0
    (factor,) = {e['factor'] for e in trials if _rate(e) == rate}
    return score.advantage(statistics.fmean(ended)), -abs(math.log(factor))

  return max({_rate(each) for each in trials}, key=order)


def _rate(trial):
  return trial['learning_rate']


def _longest(trials):
  """The trials of the most steps: fewer steps need a larger rate."""
  trials = list(trials)
  steps = [each['setting'].get('train.steps', 0) for each in trials]
  both = zip(trials, steps, strict=True)
  return [each for each, n in both if n == max(steps)]


def _of(name, config, kept):
  """The trials of a row with the scheme and optimizer that it has now."""
  scheme = {
    field: value
    for field, value in records.changes(config).items()
    if field.startswith(('compression.', 'optimizer.'))
    and field not in _OF_A_LENGTH
  }
  return [
    each
    for each in kept
    if each['row'] == name and scheme.items() <= each['setting'].items()
  ]


@pytest.mark.parametrize('name', _TABLES)
def test_each_row_takes_the_best_of_its_trials(name):
  table, path = catalogue.load(name), _RATES / f'{name}.json'
  size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
  kept = json.loads(path.read_text())
  for row_name, row in table.rows.items():
    if 'rate' in row.groups:
      continue  # is there to have another rate
    config = table.config(row, size)
    tried = _of(row_name, config, kept)
    if row_name in _WITHOUT_TRIALS.get(name, ()):
      assert not tried, row_name
      continue
    now, best = config.train.learning_rate, _best(table.score, _longest(tried))
    assert now == pytest.approx(best), row_name


@pytest.mark.parametrize(
  'name, trials',
  [('between_sites', {7}), ('between_sites_longer', {3, 4, 5, 6})],
)
def test_rates_of_outer_steps_lie_between_two_others(name, trials):
  """As docs/outer_steps.md says."""
  kept = json.loads((_RATES / f'{name}.json').read_text())
  rows = catalogue.load(name).rows
  tried = {row: [_rate(e) for e in kept if e['row'] == row] for row in rows}
  without = {row for row, own in tried.items() if not own}
  assert without == _WITHOUT_TRIALS[name]
  assert {len(own) for own in tried.values() if own} == trials
  for row, own in tried.items():
    assert not own or min(own) < rows[row].chosen_rate < max(own), row


@pytest.mark.parametrize(
  'name',
  [
    'dgc_table2',
    'schemes_cifar10',
    'schemes_cifar10_longer',
    'schemes_digits',
    'schemes_ptb',
    'schemes_speech',
    'schemes_translation',
  ],
)
def test_rows_with_a_verdict_had_the_same_trials(name):
  """Of the rate, half and twice: other trials only led there."""
  table = catalogue.load(name)
  size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
  kept = json.loads((_RATES / f'{name}.json').read_text())
  runs = json.loads((_RATES.parent / 'papers' / f'{name}.json').read_text())
  has_own = any(each.startswith('worker_') for each in table.metrics)
  judged = 0
  for row_name, row in table.rows.items():
    config = table.config(row, size)
    tried = _longest(_of(row_name, config, kept))
    rates, own = {_rate(each) for each in tried}, config.train.learning_rate
    seeds = len(runs['runs'][size].get(row_name, ()))
    if seeds < judging.FEWEST and row_name not in _SHOWN:
      continue
    if not rates or not min(rates) < own < max(rates):
      continue
    judged += 1
    for rate in (own / 2, own, 2 * own):
      of_rate = [e for e in tried if _rate(e) == pytest.approx(rate)]
      assert of_rate, (row_name, rate)
      if has_own and 'compression.local_gradient' in row.fields:
        assert all('one_worker' in each for each in of_rate), (row_name, rate)
  assert judged


def test_the_page_counts_rates_at_an_edge():
  words = ' '.join((_ROOT / 'docs/papers.md').read_text().split())
  said = words.split('at the edge of their trials')[1].split('Only the')[0]
  at_an_edge, between = said.split('. ')[:2]
  names = 'cifar10 cifar10_longer digits speech translation ptb'
  for name in names.split():
    name = f'schemes_{name}'
    table = catalogue.load(name)
    size = papers.QUICK if papers.QUICK in table.sizes else papers.FULL
    kept = json.loads((_RATES / f'{name}.json').read_text())
    edges = rows = 0
    for row_name, row in table.rows.items():
      config = table.config(row, size)
      rates = [_rate(e) for e in _longest(_of(row_name, config, kept))]
      if rates:
        own = config.train.learning_rate
        edges += not min(rates) < own < max(rates)
        rows += 1
    counted = f'{edges} of {rows} of `{name}`'
    assert (
      counted in at_an_edge.replace(' rows of', ' of')
      if edges
      else f'`{name}`' in between
    ), counted


def test_the_page_tells_the_trials_of_alpha_and_threshold():
  words = ' '.join((_ROOT / 'docs/papers.md').read_text().split())
  kept = json.loads((_RATES / 'schemes_cifar10.json').read_text())

  def best(row, **fields):
    """The best of the trials whose scheme has these fields."""
    return max(
      each['final']['test_accuracy']
      for each in kept
      if each['row'] == row
      and all(
        each['setting'][f'compression.{k}'] == v for k, v in fields.items()
      )
    )

  assert best('strom') == best('strom', threshold=0.05)
  alphas = sorted(
    {
      each['setting']['compression.alpha']
      for each in kept
      if each['row'] == 'variance'
    }
  )
  by_alpha = [100 * best('variance', alpha=a) for a in alphas]
  assert by_alpha == sorted(by_alpha, reverse=True)
  assert alphas[0] == 0.0625
  assert f'{by_alpha[0]:.2f} % with 0.0625' in words
  assert f"{by_alpha[alphas.index(1.5)]:.2f} % with the paper's 1.5" in words
  hybrid = 100 * best('hybrid'), 100 * best('hybrid', alpha=1, threshold=0.05)
  assert best('hybrid') == best('hybrid', alpha=0.25, threshold=0.1)
  assert (
    'hybrid ended at {:.2f} % with an alpha of 0.25 and a threshold of 0.1, '
    'at {:.2f} % with 1 and 0.05'.format(*hybrid)
  ) in words


@pytest.mark.parametrize(
  'table, row, chosen, words',
  [
    (
      'speech',
      'variance',
      (0.125,),
      '{0.125:.2f} % of words wrong with 0.125, of five from 0.0625 '
      '({0.0625:.2f} %) to 1.5 ({1.5:.2f} %)',
    ),
    (
      'speech',
      'hybrid',
      (0.5, 0.3),
      '{0.5 0.3:.2f} % with 0.5 and 0.3, of eight pairs; {0.125 0.3:.2f} % '
      'with 0.125 and 0.3, {2 3:.2f} % with 2 and 3',
    ),
    (
      'translation',
      'variance',
      (0.5,),
      '{0.5:.2f} BLEU with 0.5, of 0.125 ({0.125:.2f}, with more bytes), '
      '0.5 and 1.5 ({1.5:.2f})',
    ),
  ],
)
def test_the_largest_alpha_near_the_best_is_taken(table, row, chosen, words):
  name = f'schemes_{table}'
  score = catalogue.load(name).score
  kept = json.loads((_RATES / f'{name}.json').read_text())
  tried: dict[tuple[float, ...], float] = {}
  for each in kept:
    if each['row'] != row or (value := score.of(each['final'])) is None:
      continue
    setting = each['setting']
    key = tuple(
      setting[f'compression.{field}']
      for field in ('alpha', 'threshold')[: len(chosen)]
    )
    tried[key] = max(value, tried.get(key, value), key=score.advantage)
  best = max(tried.values(), key=score.advantage)
  behind = {k: score.difference(v, best) for k, v in tried.items()}
  near = {k for k in behind if score.advantage(behind[k]) >= -score.margin}
  assert max(near) == chosen
  shown = {' '.join(f'{x:g}' for x in k): v for k, v in tried.items()}
  text = re.sub(
    r'\{([^:}]+):\.2f\}', lambda found: f'{shown[found[1]]:.2f}', words
  )
  page = ' '.join((_ROOT / 'docs/papers.md').read_text().split())
  assert text in page
