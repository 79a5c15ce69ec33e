"""Columns of tables on language, speech and translation."""

from experiments.papers import metrics
from experiments.papers import outcomes
from experiments.papers import page
from experiments.papers import record as records
from experiments.papers import running
from experiments.papers import table as papers
from experiments.run import scores
import pytest

_ROWS = {
  'dense': papers.Row(fields={}, published={'perplexity': 72.30}),
  'dgc': papers.Row(
    fields={'compression.name': 'dgc', 'compression.density': 0.01},
    published={'perplexity': 72.24},
    beside='dense',
  ),
}


def _table(*columns, rows=_ROWS):
  return papers.Table(
    title='Nothing',
    source='nobody',
    metrics=columns,
    full={'data.name': 'digits', 'train.steps': 3},
    quick=None,
    rows=rows,
  )


def _kept(table, name, **final):
  return {
    'date': '2020-02-02',
    'setting': records.changes(table.config(table.rows[name], papers.FULL)),
    'final': final,
    'comm': {'ratio': 1.0, 'run_average_ratio': 1.0},
    'seconds': 5400.0,
    'environment': {'device': 'cpu', 'devices': 1, 'cpu_cores': 2, 'jax': '0'},
  }


def test_a_table_compares_by_its_first_column():
  assert _table('perplexity', 'ratio').score is scores.PERPLEXITY
  rows = {'dense': papers.Row(fields={})}
  assert _table('ratio', 'wer', rows=rows).score is None
  assert _table('wer', rows=rows).score is scores.WER


def test_the_published_difference_is_relative_where_ours_is():
  table = _table('perplexity')
  assert table.points(table.rows['dgc']) == pytest.approx(-0.083, abs=1e-3)
  assert table.points(table.rows['dense']) is None


def test_ours_stand_beside_the_published_in_percent(tmp_path):
  table = _table('perplexity', 'hours')
  record = records.Record(tmp_path / 'tiny.json', 'tiny', table)
  for seed, (dense, dgc) in enumerate(((80.0, 82.0), (100.0, 101.5))):
    for name, perplexity in (('dense', dense), ('dgc', dgc)):
      run = _kept(table, name, test_perplexity=perplexity)
      record.add(papers.FULL, name, seed, run)
  frame = record.frame(papers.FULL)
  found = outcomes.difference(table, frame, 'dgc')
  assert (found.mean, found.n) == (pytest.approx(2.0), 2)  # 2.5 and 1.5 %
  columns = page.results(table, frame).to_dict('list')
  assert columns['% to dense, 95 %'] == ['-', '+2.00 ± 6.35']
  assert columns['% to dense, published'] == ['-', '-0.08']
  assert columns['hours'] == ['1.50', '1.50']


def test_a_run_without_the_score_is_not_compared(tmp_path):
  table = _table('perplexity')
  record = records.Record(tmp_path / 'tiny.json', 'tiny', table)
  record.add(papers.FULL, 'dense', 0, _kept(table, 'dense', test_loss=4.0))
  record.add(papers.FULL, 'dgc', 0, _kept(table, 'dgc', test_perplexity=80.0))
  frame = record.frame(papers.FULL)
  assert outcomes.difference(table, frame, 'dgc') is None
  assert page.results(table, frame)['perplexity'].tolist() == ['-', '80.00']


@pytest.mark.parametrize(
  ('metric', 'final', 'shown'),
  [
    ('wer', {'test_wer': 0.129}, '12.90'),
    ('bleu', {'test_bleu': 34.45}, '34.45'),
    ('bits', {'test_bits_per_character': 1.2345}, '1.234'),
    ('cross_entropy', {'test_loss': 2.0}, '2.000'),
    ('perplexity', {'test_loss': 2.0}, '-'),
    ('sentence_ce', {'test_sentence_loss': 50.12}, '50.1'),
    ('sentence_ce', {'test_loss': 2.0}, '-'),
    ('test_bleu', {'test_bleu': 34.45}, '-'),
  ],
)
def test_a_column_of_a_test(metric, final, shown):
  column = metrics.METRICS[metric]
  assert page.form(column.form, column.of({'final': final})) == shown


def test_a_column_of_the_final_split_is_of_no_other():
  run = {
    'final': {'test_bleu': 30.0, 'test_perplexity': 80.0},
    'final_split': {'test_bleu': 34.45, 'test_perplexity': 72.3},
  }
  assert metrics.METRICS['test_bleu'].of(run) == 34.45
  assert metrics.METRICS['test_perplexity'].of(run) == 72.3
  assert metrics.METRICS['test_bleu'].score is scores.BLEU


def test_a_column_of_one_worker_is_of_its_own_model():
  metric = metrics.METRICS['worker_wer']
  run = {'final': {'test_wer': 0.02}, 'setting': {}}
  assert metric.of(run) == 2  # all have this model
  run['setting'] = {'compression.local_gradient': 'partial'}
  assert metric.of(run) is None  # an old record
  run['one_worker'] = {'final': {'test_wer': 0.03}}
  assert metric.of(run) == 3


def test_two_rows_are_compared_by_another_column_where_one_asks(tmp_path):
  local = {
    'compression.name': 'gradient_dropping',
    'compression.density': 0.01,
    'compression.local_gradient': 'sum',
  }
  rows = {'dense': papers.Row(fields={}), 'sum': papers.Row(fields=local)}
  table = _table('perplexity', 'worker_perplexity', rows=rows)
  record = records.Record(tmp_path / 'tiny.json', 'tiny', table)
  for name, mean, worker in (('dense', 80.0, None), ('sum', 80.0, 100.0)):
    run = _kept(table, name, test_perplexity=mean)
    if worker:
      run['one_worker'] = {'final': {'test_perplexity': worker}}
    record.add(papers.FULL, name, 0, run)
  for metric, percent in (('', 0), ('worker_perplexity', 25)):
    frame = record.frame(papers.FULL)
    found = outcomes.difference(table, frame, 'sum', 'dense', metric)
    assert found.mean == pytest.approx(percent)


def test_words_a_second_are_of_all_workers():
  lines = [{'step': 1, 'train/words': 1000}, {'step': 2, 'train/words': 2000}]
  run = running._step_words(lines) | {'step_ms': 500.0, 'step_images': 64}
  assert metrics.METRICS['words'].of(run) == 3000
  assert metrics.METRICS['images'].of(run) == 128
  # Of images.
  assert running._step_words([{'step': 1}]) == {}
  assert metrics.METRICS['words'].of({'step_ms': 500.0}) is None


def test_hours_to_a_printed_target():
  tests = [
    {'test_bleu': bleu, 'seconds': 3600.0 * hour}
    for hour, bleu in enumerate((30.0, 34.5, 36.0), 1)
  ]
  run = {'evaluations': tests}
  assert metrics.METRICS['hours_to_34.5'].of(run) == 2
  assert metrics.METRICS['hours_to_33.5'].of(run) == 2
  assert metrics.METRICS['hours_to_34.5'].of({'evaluations': tests[:1]}) is None
  assert metrics.METRICS['hours_to_34.5'].of({}) is None
