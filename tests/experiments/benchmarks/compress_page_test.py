"""docs/performance.md shows what was recorded."""

import json
import pathlib

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import trees
from experiments.program import tables
import pandas as pd
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
  assert page.table(_RECORD['rows']) in _PAGE, 'paste what it prints'


def test_the_page_has_what_large_pages_save():
  """Milliseconds and multiples of SGD's, of one run and with large pages."""
  assert 'hugetlb=1' in _LARGE['environment']['glibc_tunables']
  trees_there = dict.fromkeys(row['shapes'] for row in _LARGE['rows'])
  pairs = page.by_scheme(_SMALL['rows']), page.by_scheme(_LARGE['rows'])
  head = [h for tree in trees_there for h in (f'{tree}, ms', 'large pages')]
  lines = [
    [
      scheme,
      *(
        f'{run[scheme][tree]["step_ms"]:.0f} '
        f'({run[scheme][tree]["sgd_ratio"]:.1f})'
        for tree in trees_there
        for run in pairs
      ),
    ]
    for scheme in pairs[1]
  ]
  assert (
    tables.markdown(pd.DataFrame(lines, columns=['scheme', *head])) in _PAGE
  )


def test_the_page_has_what_was_measured_on_a_network():
  """Milliseconds of a step, and how often as fast as dense."""
  rows = _NETWORK['rows']
  columns = {
    f'{count} workers, {when}': {
      row['scheme']: f'{row["step_ms"]:.0f} ({row["speedup"]:.1f})'
      for row in rows[when]
      if row['workers'] == count
    }
    for count in (2, 4)
    for when in ('before', 'now')
  }
  schemes = dict.fromkeys(scheme for own in columns.values() for scheme in own)
  lines = [
    [scheme, *(own.get(scheme, '-') for own in columns.values())]
    for scheme in schemes
  ]
  assert (
    tables.markdown(pd.DataFrame(lines, columns=['scheme', *columns])) in _PAGE
  )


def test_the_page_has_what_the_cost_model_says():
  columns = {
    'scheme': ('scheme', ''),
    'model': ('serial_ms', '.0f'),
    'collectives alone': ('collectives_ms', '.0f'),
    'step': ('step_ms', '.0f'),
    'spread': ('step_ms_spread', '.0f'),
  }
  cells = tables.cells(columns, _NETWORK['rows']['eight'])
  assert tables.markdown(cells) in _PAGE


@pytest.mark.parametrize('tree', trees.MEASURED)
def test_every_scheme_was_recorded(tree):
  there = {x['scheme'] for x in _RECORD['rows'] if x['shapes'] == tree}
  # That one has been compiled for TPUs only.
  wanted = {*contenders.SCHEMES, contenders.REFERENCE} - {'ef21_chunk'}
  assert there >= wanted


def test_the_picture_is_of_the_schemes():
  assert page.draw(_RECORD['rows']).startswith(b'\x89PNG')


def test_the_page_of_accelerators_has_what_a_gpu_took():
  gpu = json.loads(
    (_ROOT / 'experiments/results/compress_h200.json').read_text()
  )
  text = (_ROOT / 'docs/accelerators.md').read_text()
  assert page.table(gpu['rows']) in text
  took = {r['scheme']: r for r in gpu['rows'] if r['shapes'] == 'resnet50'}
  readme = ' '.join((_ROOT / 'README.md').read_text().split())
  assert (
    f'take {took["dgc"]["device_ms"]:.1f} ms with DGC and '
    f'{took["qsgd4"]["device_ms"]:.1f} ms with QSGD, for ResNet-50' in readme
  )
  words = ' '.join(text.split())
  beside = gpu['beside_its_host']
  same = sum(each['differ'] == 0 for each in beside)
  assert f'Of {len(beside)} settings {same} have the same bits' in text
  far = {each['setting']: each['largest_difference'] for each in beside}
  assert f'by {1e3 * far.pop("power_sgd"):.1f} thousandths' in words
  assert f'by at most {1e6 * max(far.values()):.1f} millionths' in words
  now, before = took['power_sgd'], gpu['power_sgd_by_qr']
  assert (
    f'{now["device_ms"]:.2f} ms, where a QR decomposition of each leaf took '
    f'{before["device_ms"]:.2f} and {before["launches"]:,.0f} launches' in words
  )
