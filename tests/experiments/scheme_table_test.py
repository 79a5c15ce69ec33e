"""Tables of schemes: in the README, docs/schemes.md and docs/demo.md."""

import json
import pathlib
import re

from experiments.program import tables
import gradsparse as gs
import jax
import jax.numpy as jnp
import pandas as pd
import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_PAPERS = _ROOT / 'experiments/results/papers'
# Of the README's schemes: the rows of schemes_cifar10_longer.
_ROWS = {
  'dgc(0.001)': 'dgc',
  "dgc(0.001, values='exponent4')": 'dgc_4bit',
  'gtopk(0.001)': 'gtopk',
  'gradient_dropping(0.01)': None,
  'power_sgd(2)': None,
  'one_bit_sgd()': None,
  'qsgd(7)': 'qsgd_4bit',
}


def _readme_rows():
  lines = (_ROOT / 'README.md').read_text().splitlines()
  first = next(i for i, line in enumerate(lines) if '| when to use it' in line)
  rows = lines[first + 2 : lines.index('', first)]
  return [[cell.strip() for cell in row.split('|')[1:-1]] for row in rows]


def _cell(section, row, heading):
  """A cell of a page of docs/results."""
  text = (_ROOT / f'docs/results/{section}.md').read_text()
  head, line = (
    re.search(rf'^\| {name} \| .*', text, re.MULTILINE)[0].split(' | ')
    for name in ('row', row)
  )
  return dict(zip(head, line, strict=True))[heading]


def _points(section, row):
  return _cell(section, row, 'points to dense, 95 %')


def _schemes() -> list[tuple[str, ...]]:
  """A row for each scheme of `gs.recipes.RECIPES`."""
  shape = (1000, 1000)
  params = {'kernel': jax.ShapeDtypeStruct(shape, jnp.float32)}
  out = []
  for name, recipe in gs.recipes.RECIPES.items():
    tx = recipe.make(axis_name='workers')
    plan = gs.plan(tx, params, 4)
    shown = ', '.join(
      f'{v:g}' if k in ('density', 'alpha', 'levels', 'rank') else f'{k}={v:g}'
      for k, v in recipe.example.items()
    )
    payloads = [payload for payload, _ in plan.rungs] or [plan.payload_bytes]
    bits = [8 * payload / 1_000_000 for payload in payloads]
    size = f'{bits[0]:.3g}' + (f' to {bits[-1]:.3g}' if bits[1:] else '')
    scheme = tx.scheme
    expectation = 'unbiased' if scheme.compressor.unbiased else 'biased'
    out.append(
      (
        f'`{name}({shown})`',
        recipe.paper,
        size,
        expectation + (f' about {recipe.about}' if recipe.about else ''),
        f'{4 * scheme.memory.floats}',
        scheme.exchange.name,
      )
    )
  return out


@pytest.mark.slow
def test_the_page_has_every_scheme():
  page = (_ROOT / 'docs/schemes.md').read_text()
  head = (
    'scheme',
    'paper',
    'bits an element',
    'expectation',
    'memory, bytes a parameter',
    'exchange',
  )
  made = tables.markdown(pd.DataFrame(_schemes(), columns=head))
  assert made in page, f'docs/schemes.md should have\n{made}'


def test_the_page_has_what_second_moments_take():
  path = _ROOT / 'experiments/results/moments.json'
  rows = json.loads(path.read_text())['rows']
  ratios = [row['plain_ratio'] for row in rows if row['way'] == 'exact']
  said = f'{min(ratios):.1f} to {max(ratios):.1f} times a plain gradient'
  assert said in (_ROOT / 'docs/schemes.md').read_text()


def test_the_readme_has_the_bits_of_the_plan():
  shape = jax.ShapeDtypeStruct((1000, 1000), jnp.float32)
  for name, _, bits, *_ in _readme_rows():
    call = name.strip('`').replace(')', ", axis_name='workers')")
    tx = eval('gs.' + call.replace('(, ', '('), {'gs': gs})
    payload = gs.plan(tx, {'kernel': shape}, num_workers=4).payload_bytes
    assert bits == f'{8 * payload / 1_000_000:.3g}', name


def test_the_readme_has_the_points_of_the_results():
  rows = {name.strip('`'): points for name, *_, points, _ in _readme_rows()}
  assert rows.pop('dense()') == '0'
  assert rows == {
    name: _points('schemes_cifar10_longer', row) if row else '-'
    for name, row in _ROWS.items()
  }


def test_other_numbers_of_pages_are_those_of_the_results():
  """What is said of rows in words, beside the table of the README."""
  kept = json.loads((_PAPERS / 'schemes_cifar10.json').read_text())['runs']
  last, dense = (
    kept['quick'][row]['0']['comm']['sent_bytes_per_step']
    for row in ('dgc_4bit', 'dense')
  )
  ratios = [
    f'{_cell("schemes_cifar10", "dgc_4bit", heading).split(".")[0]} times'
    for heading in ('ratio, last stage', 'ratio, whole run')
  ]
  text = ' '.join((_ROOT / 'docs/demo.md').read_text().split())
  for ratio in (*ratios, f'{dense / last:.0f} times'):
    assert ratio in text, ratio
  rows = ('gradient_dropping', 'dgc', 'gtopk', 'qsgd')
  *others, end = (_points('schemes_digits', row) for row in rows)
  assert f'{", ".join(others)} and {end} points, in the order' in text
  assert f'ends {_points("schemes_cifar10", "dgc_4bit")} points' in text
  text = ' '.join((_ROOT / 'docs/choose.md').read_text().split())
  for table in ('schemes_cifar10', 'cifar10_resnet20'):
    assert _points(table, 'dgc') in text
  text = ' '.join((_ROOT / 'README.md').read_text().split())
  qsgd, dgc = (
    _cell('schemes_cifar10_longer', row, 'sent, whole run: dense / own')
    for row in ('qsgd_4bit', 'dgc')
  )
  assert f'{qsgd} times fewer bytes than dense with QSGD and {dgc} times' in (
    text
  )
  dgc, gtopk, qsgd = (
    _points('cifar10_resnet20', row) for row in ('dgc', 'gtopk', 'qsgd_4bit')
  )
  assert f'{dgc} points from dense, gTop-k {gtopk} and QSGD {qsgd} (' in text


def test_the_demos_table_is_that_of_its_record():
  lines = (_ROOT / 'docs/demo.md').read_text().splitlines()
  first = next(i for i, line in enumerate(lines) if '| test accuracy |' in line)
  _, _, *rows = lines[first : lines.index('', first)]
  kept = json.loads((_ROOT / 'experiments/results/demo.json').read_text())
  for row, each in zip(rows, kept.values(), strict=True):
    comm = each['comm']
    assert row.split('|')[2:-1] == [
      f' {each["final"]["test_accuracy"]:.1%} '.replace('%', ' %'),
      *(
        f' {comm[f"{over}{what}_bytes_per_step"]:,.0f} '
        for what in ('payload', 'sent')
        for over in ('', 'run_average_')
      ),
      *(f' {comm[f"{over}ratio"]:.3g} ' for over in ('', 'run_average_')),
    ]
