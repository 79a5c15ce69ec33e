"""RESULTS.md is what template and records say, and no number is typed."""

import pathlib
import re

from experiments.papers import catalogue
from experiments.papers import outcomes
from experiments.papers import record as records
from experiments.program import errors
from experiments.program import files
from experiments.results_page import page
from experiments.results_page import pictures
from experiments.results_page import summaries
import pytest
from tests.experiments.results_page import made_up

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  made = tmp_path_factory.mktemp('root')
  made_up.write(made)
  return made


@pytest.mark.slow
def test_the_pages_of_this_project_are_what_its_records_say():
  tables = {name: catalogue.load(name) for name in catalogue.NAMES}
  assert page.differences(tables, _ROOT) == [], (
    'run `python -m experiments.results_page`'
  )


def test_no_result_is_typed():
  """A number with a point, in words or in a table, is made from a record."""
  typed = (_ROOT / page.TEMPLATE).read_text()
  typed = re.sub(r'\{\{.*?\}\}|\]\(.*?\)', '', typed, flags=re.DOTALL)
  # Those of theorem 3.6 and section 5.1 are places.
  typed = re.sub(r'(theorem|section) \d\.\d', '', typed)
  assert not re.findall(r'\d\.\d|± ?\d', typed)


def test_the_page_is_short_and_its_links_are_there():
  text = (_ROOT / page.PAGE).read_text()
  assert len(text.splitlines()) <= 150
  for link in re.findall(r'\]\(([^)#]+)\)', text):
    assert (_ROOT / link).exists(), link


def _outer_steps(name):
  """What the runs of a table say by row, and the words of the page."""
  words = ' '.join((_ROOT / 'docs/outer_steps.md').read_text().split())
  return outcomes.outcomes(catalogue.load(name), _frame(name)), words


def _frame(name):
  table = catalogue.load(name)
  record = records.Record(_ROOT / page.RECORDS / f'{name}.json', name, table)
  return record.frame('full')


def test_what_the_page_on_outer_steps_says_of_the_smaller_model():
  found, words = _outer_steps('between_sites')
  said = {n: f'{o.difference} %' for n, o in found.items() if o.difference}
  del said['one_bit_adam_999']
  assert [row for row, text in said.items() if text not in words] == []
  assert found['muloco'].verdict == 'supported'
  table, frame = catalogue.load('between_sites'), _frame('between_sites')
  behind = outcomes.difference(table, frame, 'muloco', 'muon')
  assert f'MuLoCo {behind} % behind it' in words
  apart = found['sparse_loco'].difference.mean - found['alone'].difference.mean
  assert abs(apart) < found['alone'].difference.half
  rates = {name: each.row.chosen_rate for name, each in found.items()}
  assert rates['dense_delayed'] == rates['dense'] / 4


def test_what_the_page_on_outer_steps_says_of_the_larger_model():
  found, words = _outer_steps('between_sites_longer')
  behind = {n: o.difference.mean for n, o in found.items() if o.difference}
  diloco, sparse = found['diloco'], found['sparse_loco']
  points = behind['sparse_loco'] - behind['diloco']
  smaller = sparse.middle('comm.ratio') / diloco.middle('comm.ratio')
  assert (
    f'{points:.1f} percentage points further behind dense than DiLoCo, with '
    f'messages {smaller:.0f} times smaller' in words
  )
  one_bit = behind['one_bit_adam_999']
  assert f'1-bit Adam ended {one_bit:.1f} % behind dense AdamW' in words
  assert found['one_bit_adam'].verdict.endswith('failed')
  assert f'MuLoCo ended {-behind["muloco"]:.0f} % ahead of dense' in words
  for k in (32, 256):
    assert behind[f'sparse_loco_k{k}'] > behind['sparse_loco']
  for bits in ('diloco_exponent4', 'diloco_exponent4_no_residual'):
    assert behind[bits] < behind['diloco']
  assert abs(behind['diloco'] - behind['diloco_h5']) < 0.2
  for row in ('average', 'diloco_h30'):
    assert round(behind[row] - behind['diloco']) == 2


def test_what_that_page_says_of_slow_networks():
  words = ' '.join((_ROOT / 'docs/outer_steps.md').read_text().split())
  slow = summaries.slow_runs(
    _ROOT / page.NETWORKS, {'between_sites': catalogue.load('between_sites')}
  )['between_sites']
  first = {
    name: f'{row["first"]["seconds"]:.0f} s'
    for name, row in slow.items()
    if row['first']
  }
  took = {name: f'{row["step_ms"]:.0f}' for name, row in slow.items()}
  for said, numbers, row in (
    ('after {} at 100 Mbit/s', first, 'muloco, 100mbit'),
    ('dense after {}', first, 'dense, 100mbit'),
    ('at 1 Gbit/s after {} and', first, 'muloco, 1gbit'),
    ('and {}.', first, 'dense, 1gbit'),
    ('1-bit Adam took {}', took, 'one_bit_adam, 100mbit'),
    ('and {} ms, one of dense', took, 'one_bit_adam, 1gbit'),
    ('of dense {}', took, 'dense, 100mbit'),
    ('and {} ms. It', took, 'dense, 1gbit'),
    ('SparseLoCo took {}', took, 'sparse_loco_k256, 100mbit'),
    ('and {} ms. It', took, 'sparse_loco_k256, 1gbit'),
    ('around dense took {}', took, 'dense_delayed, 100mbit'),
    ('and {} ms a step, as', took, 'dense_delayed, 1gbit'),
  ):
    assert said.format(numbers[row]) in words, row
  assert {name.split(',')[0] for name in first} == {'dense', 'muloco'}


def test_every_other_record_has_a_page_that_tells_it():
  told = ''.join(
    path.read_text()
    for path in (
      *_ROOT.glob('*.md'),
      *_ROOT.glob('docs/*.md'),
      *_ROOT.glob('configs/*.py'),
    )
  )
  for path in (_ROOT / 'experiments/results').glob('*.json'):
    assert path.name in told, path.name


def _values(root, *expressions):
  text = ''.join(f'{{{{made_up {each}}}}}\n' for each in expressions)
  files.write_bytes(root / page.TEMPLATE, text.encode())
  texts, _ = page.content(made_up.CATALOGUE, root)
  return texts[page.PAGE].splitlines()


def test_numbers_of_the_template(root):
  found = _values(
    root,
    *('above', 'above verdict', 'above score', 'above sent', 'above last'),
    *('dense printed top1', 'one', 'one verdict', 'below verdict'),
    *('with_it/without_it', 'with_it/without_it top1 better'),
    *('same verdict', 'gtopk_8workers verdict', 'above/gtopk_0.04 sent'),
  )
  assert found == [
    *('+2.00 ± 0.25 points (3 seeds)', 'supported', '94.00', '80.0', '1,000.0'),
    *('99.00', '+0.50 points (one seed)', 'open, one seed', 'contradicted'),
    *('+2.13 ± 1.00 points (3 seeds)', 'supported'),
    # No trials, and a rate that is the largest of those with its threshold.
    *('open: supported at one rate', 'open: supported at an edge', '0.9'),
  ]


@pytest.mark.parametrize('wrong', ['no_row', 'above unknown', 'not_run'])
def test_what_is_not_on_record_is_told(root, wrong):
  with pytest.raises(errors.ConfigError, match=f'made_up {wrong}'):
    _values(root, wrong)


def test_a_page_of_a_table(root):
  _values(root, 'above')
  texts, _ = page.content(made_up.CATALOGUE, root)
  text = texts[page.FOLDER / 'made_up.md']
  assert (
    'A made-up table; nobody; quick setting of [configs/made_up.py]' in text
  )
  assert 'Measured on 1 x abacus, 2 cores, jax 0.0 (2020-02-01)' in text
  assert '```sh\npython -m experiments.papers made_up\n```' in text
  lines = {x.split(' | ')[0][2:]: x for x in text.splitlines() if x[:1] == '|'}
  assert {*made_up.TABLE.rows} - {*lines} == {'not_run'}
  assert '| open, 1 failed |' in lines['partly'] and '| 2 of 3 ' in text
  assert '| open, 3 failed |' in lines['diverged']
  assert (
    'with_it | without_it | top-1 (%) | +2.13 ± 1.00 | 3 | supported' in text
  )


def test_what_is_written_is_what_the_check_wants(root, monkeypatch):
  _values(root, 'above')
  for name in ('forest', 'pareto', 'lines'):
    monkeypatch.setattr(pictures, name, lambda *given: b'a picture')
  monkeypatch.setitem(summaries.TASKS, 'made_up', 'nothing, points')
  page.write(made_up.CATALOGUE, root)
  assert page.differences(made_up.CATALOGUE, root) == []
  path = root / page.PAGE
  path.write_text(path.read_text().replace('+2.00', '+2.01'))
  picture = root / page.FOLDER / 'made_up.png'
  picture.rename(picture.with_name('old.png'))
  assert page.differences(made_up.CATALOGUE, root) == [
    'RESULTS.md is not what the records say',
    'docs/results/made_up.png is missing',
    'docs/results/old.png is of no record',
  ]


def test_pictures_are_drawn(root, monkeypatch):
  monkeypatch.setitem(summaries.TASKS, 'made_up', 'nothing, points')
  _values(root, 'above')
  _, drawn = page.content(made_up.CATALOGUE, root)
  assert {path.name for path in drawn} == {'made_up.png', 'pareto.png'}
  for draw in drawn.values():
    assert draw()[:4] == b'\x89PNG'


def test_schemes_beside_each_other(root, monkeypatch):
  monkeypatch.setitem(summaries.TASKS, 'made_up', 'nothing, points')
  files.write_bytes(root / page.TEMPLATE, b'<!-- table: schemes -->')
  texts, _ = page.content(made_up.CATALOGUE, root)
  lines = texts[page.PAGE].splitlines()
  # Rows of one scheme share a line; what is as good as dense is bold.
  assert '| `gtopk`, 0.002 | **+2.00 ± 0.25, 80x, supported** |' in lines
  assert any('0.004 | +0.50, 80x, one seed' in line for line in lines) is False
  # Three seeds, and no trials.
  assert not any(line.startswith('| `gtopk`, 0.001 ') for line in lines)


def test_parts_of_a_step_add_up():
  tables = {name: catalogue.load(name) for name in summaries.TASKS}
  slow = summaries.slow_runs(_ROOT / page.NETWORKS, tables)
  assert slow
  for rows in slow.values():
    for row in rows.values():
      parts = row['breakdown_ms']
      assert min(parts.values()) >= 0
      assert sum(parts.values()) == pytest.approx(row['step_ms'])
