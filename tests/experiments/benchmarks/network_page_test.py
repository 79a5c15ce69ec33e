"""docs/slow_network.md and README.md say what was measured on networks."""

import json
import math
import pathlib

from experiments.benchmarks import subjects
from experiments.program import tables
import pandas as pd

_ROOT = pathlib.Path(__file__).parents[3]
_TEXT = (_ROOT / 'docs/slow_network.md').read_text()
_WORDS = ' '.join(_TEXT.split())
_README = ' '.join((_ROOT / 'README.md').read_text().split())
_FLOATS = 9_983_480
_NAMES = {
  'dense': 'dense',
  'dgc': 'DGC',
  'gtopk_butterfly': 'gTop-k, butterfly',
  'gtopk_tree': 'gTop-k, tree',
  'topk_allgather': 'top-k, all-gather',
  'qsgd4': 'QSGD, 4 bits',
  'one_bit': '1-bit',
}


def _rows(name):
  text = (_ROOT / f'experiments/results/{name}.json').read_text()
  return json.loads(text)['rows']


def _steps(rows):
  """Milliseconds of a step by scheme, workers and rate."""
  return {
    (row['scheme'], row['workers'], row['rate']): row['step_ms']
    for row in rows
    if row['floats'] == _FLOATS
  }


def test_the_table():
  took = _steps(_rows('exchange'))
  columns = [(n, rate) for n in (2, 4, 8) for rate in ('1gbit', '100mbit')]
  sent = {
    row['scheme']: row['wire_bytes']
    for row in _rows('exchange')
    if (row['floats'], row['workers'], row['rate']) == (_FLOATS, 4, '1gbit')
  }
  lines = [
    [
      name,
      *(f'{took[scheme, *column]:,.0f}' for column in columns),
      f'{sent[scheme]:,}',
    ]
    for scheme, name in _NAMES.items()
  ]
  head = ['scheme', *map(str, columns), 'bytes (4)']
  made = tables.markdown(pd.DataFrame(lines, columns=head)).splitlines()[2:]
  shown = _TEXT.replace(' \\*', '').splitlines()
  assert [line for line in made if line not in shown] == []


def test_the_words_beside_it():
  took, now = (
    _steps(_rows('exchange')),
    _steps(_rows('exchange_kernels')['now']),
  )
  times = [
    took['dense', n, '1gbit'] / took['dgc', n, '1gbit'] for n in (2, 4, 8)
  ]
  assert 'DGC is {:.1f}, {:.1f} and {:.1f} times'.format(*times) in _WORDS
  faster = {
    n: now['dense', n, '1gbit'] / now['dgc', n, '1gbit'] for n in (2, 4)
  }
  for scheme, said in (
    ('dense', 'dense takes {:.0f} and {:.0f} ms'),
    ('dgc', f'DGC {{:.0f}} and {{:.0f}} ({faster[2]:.1f} and {faster[4]:.1f}'),
    ('gtopk_butterfly', 'butterfly {:.0f} and {:.0f}'),
    ('qsgd4', 'QSGD {:.0f} and {:.0f}'),
    ('one_bit', '1-bit {:.0f} and {:.0f}.'),
  ):
    both = [now[scheme, n, '1gbit'] for n in (2, 4)]
    assert said.format(*both) in _WORDS
  scattered = [took['one_bit_scatter', n, '1gbit'] for n in (2, 4, 8)]
  gathered = [took['one_bit', n, '1gbit'] for n in (2, 4, 8)]
  assert (
    f'{scattered[0]:.0f} instead of {gathered[0]:.0f} ms, and shorter with '
    f'four and eight, {scattered[1]:.0f} and {scattered[2]:,.0f} ms' in _WORDS
  )
  assert scattered[1] < gathered[1] and scattered[2] < gathered[2]
  for n in (2, 4, 8):
    assert took['qsgd4_scatter', n, '1gbit'] > took['qsgd4', n, '1gbit']
  dense, dgc = (now[scheme, 4, '1gbit'] for scheme in ('dense', 'dgc'))
  assert (
    f'take {dense:.0f} ms with dense float32 and {dgc:.0f} ms with DGC'
  ) in _README


def test_a_whole_training():
  rows = {(row['scheme'], row['rate']): row for row in _rows('training')}
  (fast, fast_dgc), (slow, slow_dgc) = (
    [rows[scheme, rate] for scheme in ('dense', 'dgc')]
    for rate in ('1gbit', '100mbit')
  )
  for said, text in (
    (
      f'a step takes {fast["step_ms"]:.0f} ms dense and '
      f'{fast_dgc["step_ms"]:.0f} ms with DGC at 1 Gbit/s',
      _WORDS,
    ),
    (
      f'it takes {slow["step_ms"]:.0f} and {slow_dgc["step_ms"]:.0f} ms, and '
      f'the run ends after {slow["seconds"]:.0f} and '
      f'{slow_dgc["seconds"]:.0f} s',
      _WORDS,
    ),
    (
      f'{fast_dgc["seconds"]:.0f} s against {fast["seconds"]:.0f} s: it '
      f'compiled for {fast_dgc["compile_seconds"]:.0f} s',
      _WORDS,
    ),
    (
      f'{fast["test_accuracy"]:.1%} dense and '.replace('%', ' %')
      + f'{fast_dgc["test_accuracy"]:.1%} with DGC'.replace('%', ' %'),
      _WORDS,
    ),
    (
      f'a step takes {slow["step_ms"]:.0f} ms dense and '
      f'{slow_dgc["step_ms"]:.0f} ms with DGC at 100 Mbit/s, and '
      f'{fast["step_ms"]:.0f} and {fast_dgc["step_ms"]:.0f} ms at 1 Gbit/s',
      _README,
    ),
    (f'compiling took {fast_dgc["compile_seconds"]:.0f} s of it', _README),
  ):
    assert said in text, said


def _entries(floats):
  """What `gs.sparse_loco` sends: 64 elements of each tile of a matrix."""
  found = 0
  for shape in subjects.shapes(floats).values():
    if len(shape) == 2:
      sides = [max(d for d in range(1, 65) if n % d == 0) for n in shape]
      tile = math.prod(sides)
      found += math.prod(shape) // tile * min(64, tile)
  return found


def test_bits_of_an_entry_on_the_wire():
  words = ' '.join((_ROOT / 'docs/outer_steps.md').read_text().split())
  small, large = _rows('exchange_outer')
  bits = [8 * x['wire_bytes'] / _entries(x['floats']) for x in (small, large)]
  assert (
    f'takes {bits[1]:.1f} bits an entry on the wire, by the counters of a '
    f"host's interface: {large['wire_bytes']:,} bytes for the "
    f'{_entries(large["floats"]):,} entries of 10 million parameters '
    f'(`gs.plan`: {large["plan_bytes"]:,})' in words
  )
  assert f'At 1.6 million it takes {bits[0]:.1f}' in words
