"""Verdicts that RESULTS.md repeats in words are those of the records."""

import pathlib

from experiments.papers import catalogue
from experiments.papers import judging
from experiments.papers import outcomes
from experiments.program import files
from experiments.results_page import page
import pandas as pd
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_OPEN, _WORSE = judging.OPEN, judging.CONTRADICTED
_WORDS = (_ROOT / page.TEMPLATE).read_text()


@pytest.fixture(scope='module')
def told():
  """What the runs of each table say: tables, frames, outcomes by row."""
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  frames = dict(list(page.runs_of(tables, _ROOT).groupby('table')))
  found = {n: outcomes.outcomes(tables[n], f) for n, f in frames.items()}
  return tables, frames, found


@pytest.mark.parametrize(
  'words, table, row, verdict',
  [
    # QSGD with 4 bits.
    ('It is as good as dense on digits', 'digits', 'qsgd', 'supported'),
    ('open on the other four tasks', 'cifar10', 'qsgd_4bit', _OPEN),
    ('open on the other four tasks', 'ptb', 'qsgd_4bit', _OPEN),
    ('open on the other four tasks', 'speech', 'qsgd_4bit', _OPEN),
    ('open on the other four tasks', 'translation', 'qsgd_4bit', _OPEN),
    ('20 epochs of CIFAR-10 ({{', 'cifar10_longer', 'qsgd_4bit', 'supported'),
    # DGC.
    ('it is as good as dense in two', 'cifar10', 'dgc_0.01', 'supported'),
    ('a thousandth after 20 epochs', 'cifar10_longer', 'dgc', 'supported'),
    ('as good in two epochs is open', 'cifar10', 'dgc_4bit', _OPEN),
    ('after 20 it is ({{', 'cifar10_longer', 'dgc_4bit', 'supported'),
    # Adam.
    ('Open on translation: QSGD', 'translation', 'qsgd_4bit', _OPEN),
    ('variance with an alpha of', 'translation', 'variance', _OPEN),
    ('PARTIAL with a warm-up (', 'translation', 'partial_warmup', _OPEN),
    ('Dropping, PARTIAL, SUM and', 'translation', 'adam_dropping', _WORSE),
    ('PARTIAL, SUM and ERROR', 'translation', 'partial', _WORSE),
    ('SUM and ERROR without', 'translation', 'sum', _WORSE),
    ('ERROR without a warm-up are worse', 'translation', 'error', _WORSE),
    # PARTIAL with averages and a warm-up.
    ('as good as dense on PTB', 'ptb', 'partial_sync_warmup', 'supported'),
    ('so is dropping with that', 'ptb', 'dropping_warmup', 'supported'),
    # What not to choose.
    ('with that warm-up {{', 'cifar10', 'dropping_warmup', _WORSE),
    ('on PTB even so', 'ptb', 'dgc', _WORSE),
    ('even at a hundredth', 'cifar10', 'gtopk_0.01', _WORSE),
    (', and on PTB; variance', 'ptb', 'gtopk', _WORSE),
    ('gTop-k on CIFAR-10, even', 'cifar10', 'gtopk', _WORSE),
    ('variance and its hybrid on', 'cifar10', 'variance', _WORSE),
    ('hybrid on CIFAR-10', 'cifar10', 'hybrid', _WORSE),
    ('TernGrad on PTB', 'ptb', 'terngrad', _WORSE),
    ('dropping with one (', 'translation', 'adam_dropping_warmup', _OPEN),
    ('Longer runs narrow the gap', 'cifar10_longer', 'gtopk', 'supported'),
    ('Longer runs narrow the gap', 'cifar10_longer', 'dropping', _OPEN),
    (', with 4-bit values {{', 'cifar10_longer', 'dgc_4bit', 'supported'),
  ],
)
def test_verdicts(told, words, table, row, verdict):
  found = told[2][f'schemes_{table}'][row].verdict
  assert words in _WORDS
  if verdict == _OPEN:  # whatever the reason
    assert found.startswith(_OPEN) and 'contradicted' not in found
  else:
    assert found == verdict


@pytest.mark.parametrize(
  'table, row, verdict',
  [
    ('cifar10_resnet20', 'qsgd_4bit', 'supported'),
    ('cifar10_resnet20', 'dgc_4bit', 'contradicted'),
    ('cifar10_resnet20', 'dgc', 'contradicted'),
    ('dgc_table4_ptb', 'dgc', 'contradicted'),
  ],
)
def test_verdicts_at_one_rate(told, table, row, verdict):
  assert told[2][table][row].verdict == f'open: {verdict} at one rate'


def test_rows_with_five_seeds_were_open_with_three(told):
  name = 'schemes_cifar10'
  table, frame = told[0][name], told[1][name]
  early = outcomes.outcomes(table, frame[frame['seed'] < judging.FEWEST])
  more = [r for r, each in told[2][name].items() if len(each.runs) == 5]
  assert len(more) > 1  # dense has five, too
  for row in more:
    assert early[row].verdict in (_OPEN, ''), row


@pytest.mark.parametrize(
  'words, table, row, factor',
  [
    ('resnet20 dgc}}, the warm-up at a tenth', 'cifar10_resnet20', 'dgc', 0.1),
    ('the warm-up at a quarter', 'cifar10_resnet20', 'gtopk', 0.25),
    ('a warm-up at a tenth of the rate: ', 'dgc_table4_ptb', 'dgc', 0.1),
  ],
)
def test_rates_of_warm_ups(told, words, table, row, factor):
  assert words in _WORDS
  found = told[2][table][row].runs['config.optimizer.warmup_factor']
  assert set(found) == {factor}


def test_rows_of_table_2_with_trials_and_seeds(told):
  """As docs/papers.md says: dense and DGC with 32 workers."""
  found = told[1]['dgc_table2'].set_index('row')['doubt']
  tried = {
    f'{scheme}_{steps}32workers'
    for scheme in ('dense', 'dgc')
    for steps in ('', 'equal_steps_')
  }
  assert set(found[found == ''].index) == tried
  assert set(found.drop(tried)) == {'at one rate'}
  seeds = found.groupby(level=0).size()
  assert set(seeds[seeds >= judging.FEWEST].index) == tried


@pytest.mark.parametrize(
  'table, rows, metric, verdict',
  [
    ('translation', 'partial/adam_dropping', 'worker_bleu', 'supported'),
    ('ptb', 'partial/dropping', 'worker_perplexity', 'supported'),
    ('speech', 'partial/adam_dropping', 'worker_wer', 'open'),
  ],
)
def test_partial_beside_dropping(told, table, rows, metric, verdict):
  asked = f'schemes_{table} {rows} {metric} better'
  assert page.value(asked, *told) == verdict


def test_no_scheme_is_known_to_be_as_good_with_adam(told):
  for name in ('schemes_speech', 'schemes_translation'):
    for row, each in told[2][name].items():
      if each.row.beside == 'adam_dense':
        assert each.verdict != judging.SUPPORTED, row
  for row in ('one_bit_adam', 'one_bit_adam_999'):  # sends in every step, too
    assert told[2]['between_sites'][row].verdict != judging.SUPPORTED, row


@pytest.mark.parametrize(
  'words, table, row',
  [
    ('{:,} steps of [ResNet-20]', 'cifar10_resnet20', 'dgc'),
    ('{:,} of the [LSTM of 1500 units]', 'dgc_table4_ptb', 'dgc'),
  ],
)
def test_steps(told, words, table, row):
  (steps,) = set(told[2][table][row].runs['steps'])
  assert words.format(int(steps)) in _WORDS


def test_seconds_of_the_page_on_papers(told):
  words = ' '.join((_ROOT / 'docs/papers.md').read_text().split())
  took = told[1]['schemes_cifar10_longer'].set_index(['row', 'seed'])['seconds']
  first, second = (
    [f'{took[row, seed]:,.0f} s' for row in ('dgc', 'gtopk')] for seed in (0, 1)
  )
  assert f'took DGC {first[0]} and gTop-k {first[1]} with seed 0' in words
  assert f'and {second[0]} and {second[1]} with seed 1' in words


def test_what_the_page_says_of_older_code():
  words = ' '.join((_ROOT / 'docs/papers.md').read_text().split())
  kept = files.read_json(_ROOT / 'experiments/results/training_code.json')
  frame = pd.DataFrame(kept['rows'])
  frame['rest'] = frame['seconds'] - frame['compile_seconds']
  sums = frame.groupby(['row', 'table', 'commit']).sum()
  before, now = (sums.xs(code, level='commit') for code in kept['commits'])
  took = now / before
  whole, compiling, rest = (
    took[name] for name in ('seconds', 'compile_seconds', 'rest')
  )
  assert whole.idxmin() == ('dgc', 'schemes_cifar10')
  assert whole.idxmax() == ('gtopk', 'schemes_cifar10')
  assert f'took {whole.min():.2f} to {whole.max():.2f} times' in words
  slower = compiling[whole.idxmax()]
  assert f'takes {slower:.2f} times as long to compile' in words
  assert f'take {rest.min():.2f} to {rest.max():.2f} times' in words
