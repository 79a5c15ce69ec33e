"""docs/large_models.md shows what was recorded."""

import json
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_TEXT = (_ROOT / 'docs/large_models.md').read_text()
_RECORD = json.loads(
  (_ROOT / 'experiments/results/large_models.json').read_text()
)
_RATES = 1, 10, 100  # Gbit/s


def _steps(part):
  dense = part['rows'][0]['sent_bytes']
  for row in part['rows']:
    sent = row['sent_bytes']
    ms = [sent * 8 * part['devices_a_link'] / rate / 1e6 for rate in _RATES]
    gigabytes = [row[x] / 1e9 for x in ('inside_bytes', 'argument_bytes')]
    yield (
      row['scheme'],
      f'{sent:,}',
      f'{dense / sent:.0f}',
      *(f'{x:,.1f}' for x in ms),
      *(f'{x:.2f}' for x in gigabytes),
      f'{row["peak_bytes"] / 1e9:.2f}',
      f'{row["compile_seconds"]:.0f}',
    )


def _slices(part):
  fields = 'argument_bytes', 'temporary_bytes', 'peak_bytes'
  for row in part['rows']:
    yield (
      row['target'],
      row['scheme'],
      f'{row["sent_bytes"]:,}',
      f'{row["plan_bytes"]:,}',
      *(f'{row[x] / 1e9:.2f}' for x in fields),
      f'{row["compile_seconds"]:.0f}',
    )


def _plans(part):
  for row in part['rows']:
    yield (
      row['scheme'],
      f'{row["payload_bytes"]:,}',
      f'{row["ratio"]:,.1f}',
      f'{row["seconds"]:.1f}',
    )


def _leaves(part):
  found = {}
  for row in part['rows']:
    seconds = row['trace_cpu_seconds'] + row['compile_cpu_seconds']
    found.setdefault(row['scheme'], []).append(f'{seconds:.1f}')
  return [(scheme, *seconds) for scheme, seconds in found.items()]


def _collectives(part):
  """The rows that the page has of what crosses a replica."""
  for row in part['rows']:
    for each in row['collectives']:
      if each['axes'] == 'replica':
        yield (
          row['scheme'],
          'replica',
          each['kind'],
          f'{each["bytes"]:,}',
          str(each['times']),
        )


@pytest.mark.parametrize(
  'part, lines',
  [
    ('steps', _steps),
    ('steps', _collectives),
    ('slices', _slices),
    ('plans', _plans),
    ('leaves', _leaves),
  ],
)
def test_the_page_has_the_recorded_table(part, lines):
  missing = [
    line
    for cells in lines(_RECORD[part])
    if (line := f'| {" | ".join(cells)} |') not in _TEXT
  ]
  assert not missing


@pytest.mark.parametrize('part', ['steps', 'slices', 'plans'])
def test_the_page_names_the_parameters(part):
  assert f'{_RECORD[part]["parameters"]:,}' in _TEXT


def test_the_page_has_what_kernels_move_and_padding_adds():
  words = ' '.join(_TEXT.split())
  rows = _RECORD['slices']['rows']
  (moved,) = {r['kernel_bytes'] for r in rows if r['scheme'] == 'dgc_chunk'}
  (part,) = {r['plan_bytes'] for r in rows if r['scheme'] == 'dense'}
  assert f'{moved / 1e9:.2f} GB, {moved / part:.1f} times a device' in words
  (more,) = {
    r['sent_bytes'] / r['plan_bytes'] - 1
    for r in rows
    if r['scheme'] == 'dgc_chunk'
  }
  assert f'that of DGC is {100 * more:.1f} % more than planned' in words


def test_the_page_has_the_bytes_of_a_further_leaf():
  size = {
    (r['scheme'], r['leaves']): r['program_bytes']
    for r in _RECORD['leaves']['rows']
  }
  each = [
    (size[scheme, 1000] - size[scheme, 10]) / 990e3
    for scheme in {scheme for scheme, _ in size}
  ]
  assert f'{min(each):.0f} to {max(each):.0f} kB for each further' in ' '.join(
    _TEXT.split()
  )
