"""docs/performance.md shows what was recorded."""

import json
import pathlib

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import trees
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_PAGE = (_ROOT / 'docs/performance.md').read_text()
_NETWORK = json.loads(
  (_ROOT / 'experiments/results/exchange_kernels.json').read_text()
)
_RECORD = json.loads((_ROOT / 'experiments/results/compress.json').read_text())
_SMALL = json.loads(
  (_ROOT / 'experiments/results/compress_small_pages.json').read_text()
)
_LARGE = json.loads(
  (_ROOT / 'experiments/results/compress_large_pages.json').read_text()
)


def test_the_page_has_the_recorded_table():
  assert page.steps_table(_RECORD['rows']) in _PAGE, 'paste what it prints'


def test_the_page_has_what_large_pages_save():
  assert 'hugetlb=1' in _LARGE['environment']['glibc_tunables']
  assert page.pages_table(_SMALL['rows'], _LARGE['rows']) in _PAGE


def test_the_page_has_what_was_measured_on_a_network():
  rows = _NETWORK['rows']
  columns = {
    f'{count} workers, {when}': [
      row for row in rows[when] if row['workers'] == count
    ]
    for count in (2, 4)
    for when in ('before', 'now')
  }
  assert page.network_table(columns) in _PAGE
  assert page.model_table(rows['eight']) in _PAGE


@pytest.mark.parametrize('tree', trees.MEASURED)
def test_every_scheme_was_recorded(tree):
  there = {x['scheme'] for x in _RECORD['rows'] if x['shapes'] == tree}
  assert there >= {*contenders.SCHEMES, contenders.REFERENCE}


def test_the_picture_is_of_the_schemes():
  assert page.draw(_RECORD['rows']).startswith(b'\x89PNG')


def test_stages_are_shown_where_they_were_measured():
  row = {'scheme': 'dgc', 'shapes': 'one', 'stages_ms': {'select': 1.25}}
  table = page.stages_table([row, {'scheme': 'x', 'shapes': 'one'}], 'one')
  assert '1.2' in table and 'dgc' in table and 'x' not in table.split('dgc')[1]
