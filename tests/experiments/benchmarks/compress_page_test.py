"""docs/performance.md shows what was recorded."""

import json
import math
import pathlib
import re

from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import page
from experiments.benchmarks.compress import trees
import gradsparse as gs
from gradsparse.transform import buckets
import jax
import jax.numpy as jnp
import pytest

_ROOT = pathlib.Path(__file__).parents[3]
_PAGE = (_ROOT / 'docs/performance.md').read_text()
_RECORD = json.loads((_ROOT / 'experiments/results/compress.json').read_text())
_SMALL = json.loads(
  (_ROOT / 'experiments/results/compress_small_pages.json').read_text()
)
_LARGE = json.loads(
  (_ROOT / 'experiments/results/compress_large_pages.json').read_text()
)


def test_the_page_has_the_recorded_table():
  assert page.table(_RECORD['rows']) in _PAGE, 'paste what it prints'


def test_the_page_of_outer_steps_has_its_recorded_table():
  path = _ROOT / 'experiments/results/compress_outer.json'
  rows = json.loads(path.read_text())['rows']
  assert page.table(rows) in (_ROOT / 'docs/outer_steps.md').read_text()


def test_the_page_has_what_large_pages_save():
  assert 'hugetlb=1' in _LARGE['environment']['glibc_tunables']
  without, with_them = (page.by_scheme(x['rows']) for x in (_SMALL, _LARGE))
  said = ', '.join(
    form.format(
      with_them[scheme]['one']['step_ms'], without[scheme]['one']['step_ms']
    )
    for scheme, form in (
      ('strom', '`strom` took {:.0f} ms instead of {:.0f}'),
      ('power_sgd', '`power_sgd` {:.0f} instead of {:.0f}'),
      ('variance_strom', '`variance_strom` {:.0f} instead of {:.0f}'),
    )
  )
  assert said in ' '.join(_PAGE.split())


def test_the_page_has_the_memory_of_schemes():
  rows = [row for row in _RECORD['rows'] if row['shapes'] != 'transformer']
  words = ' '.join(_PAGE.split())
  for said, schemes in (
    ('gradient dropping and gTop-k {:.1f} to {:.1f}', ('dropping', 'gtopk')),
    ('DGC {:.1f} to {:.1f}', ('dgc',)),
    ('`dgc_schedule` takes {:.1f} to {:.1f} at', ('dgc_schedule',)),
  ):
    models = [
      row['peak_bytes'] / 4 / row['floats']
      for row in rows
      if row['scheme'] in schemes
    ]
    assert said.format(min(models), max(models)) in words


def _times_sgd(*schemes):
  """The smallest and the largest multiple of momentum SGD of some schemes."""
  found = [r['sgd_ratio'] for r in _RECORD['rows'] if r['scheme'] in schemes]
  return f'{min(found):.1f}', f'{max(found):.1f}'


def test_the_page_has_how_far_schemes_are_from_the_floor():
  table = _PAGE.split('## The floor')[1].split('## Where')[0]
  rows = re.findall(r'^\| ([a-z].*?) \|.*\| ([\d.-]+) \|$', table, re.MULTILINE)
  assert len(rows) == 11
  for name, shown in rows:
    if name != contenders.REFERENCE:
      schemes = name.replace('chunks', 'dropping_chunk').split(', ')
      assert shown == '-'.join(_times_sgd(*schemes)), name


def test_the_page_has_what_is_missed():
  missed = ' '.join(_PAGE.split('The targets of')[1].split('##')[0].split())
  ranges = {
    name: ' to '.join(_times_sgd(*name.split()))
    for name in ('dropping gtopk', 'dgc', 'dropping_chunk', 'dgc_chunk')
  }
  assert (
    '`dropping` and `gtopk` are at {}, `dgc` at {}, by chunks at {} and '
    '{}'.format(*ranges.values())
    in missed
  )
  assert f'`terngrad` is at {" to ".join(_times_sgd("terngrad"))}' in missed


def test_the_page_has_what_compiles_too_long():
  seconds = [
    row['compile_s']
    for row in _RECORD['rows']
    if row['shapes'] == 'resnet50' and row['scheme'] in contenders.SCHEMES
  ]
  long = sum(s > 4 for s in seconds)
  assert f'{long} of {len(seconds)} with' in ' '.join(_PAGE.split())


def test_the_page_has_which_leaves_of_resnet50_are_joined():
  dgc = gs.dgc(0.001, axis_name=None)
  params = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
    trees.make('resnet50', 25_600_000),
    is_leaf=lambda x: isinstance(x, tuple),
  )
  found = buckets.make_buckets(
    dgc.layout(params), dgc.scheme.memory, params, jnp.int32(0)
  )
  several = {len(own): n for n, own in enumerate(found.members) if own[1:]}
  total, joined = (
    sum(math.prod(shapes[n]) for n in chosen)
    for shapes, chosen in (
      (found.layout.shapes, range(len(found.layout.shapes))),
      (found.shapes, several.values()),
    )
  )
  dense, kernels = sorted(several, reverse=True)
  assert found.is_dense()[several[dense]]
  assert (
    f"Of ResNet-50's {len(found.layout.shapes)} leaves, the {dense} that DGC "
    f'leaves dense become one vector, and {kernels} kernels of the first '
    f'stages another, {joined / total:.0%}'.replace('%', ' %')
  ) in ' '.join(_PAGE.split())


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
  by_clock = [r['step_ms'] for r in took.values()]
  assert f'takes {min(by_clock):.0f} to {max(by_clock):.0f} ms' in words
  searched = page.by_scheme(gpu['rows'])['dgc_chunk']['one']
  assert f'on one matrix, {searched["most_expensive"][0][0]:.2f} ms' in words
  assert f'takes {gpu["beside"]["lax.top_k_ms"]:.1f} ms: XLA sorts' in words
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
