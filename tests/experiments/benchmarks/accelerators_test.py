"""What compilers of accelerators say is added up, shown, and asked for."""

import collections
import importlib.util
import json
import pathlib
import subprocess
import sys

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.accelerators import page
from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.accelerators import targets
from experiments.program import errors
from experiments.program import tables
from jax.sharding import PartitionSpec as P
import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[3]
_TEXT = """
%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %f.1 = f32[8]{0} fusion(%p), kind=kLoop, metadata={op_name="turn"}, \
backend_config={"estimated_cycles":"10"}
}
%small (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %f.2 = f32[8]{0} fusion(%p), backend_config={"estimated_cycles":"3"}
}
%large (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %s.1 = f32[8]{0} sort(%p), dimensions={0}
  ROOT %f.3 = f32[8]{0} fusion(%s.1), backend_config={"estimated_cycles":"7"}
}
%less (t: (s32[], f32[8])) -> pred[] {
  %t = (s32[], f32[8]{0}) parameter(0)
  %n = s32[]{:T(128)} constant(8)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %n), direction=LT
}
ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %w.1 = f32[8]{0} while(%p), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"4"}}
  %w.2 = (s32[], /*index=1*/f32[8]{0}) while(%w.1), condition=%cond, \
body=%body
  %w.3 = (s32[], f32[8]{0}) while(%w.2), condition=%less, body=%body
  %c.1 = f32[8]{0} conditional(%i, %w.3, %w.3), \
branch_computations={%small, %large, %small}
  %a.1 = f32[8]{0} all-gather-done(%c.1), backend_config={"estimated_cycles":\
"99"}
  ROOT %f.4 = f32[8]{0} fusion(%a.1), metadata={op_name="last"}, \
backend_config={"estimated_cycles":"1"}
}
"""


# Momentum SGD steps of a v5e that were wanted of ResNet-50's leaves, if not 8.
_WANTED = {
  **{'dense': 2, 'dgc_chunk': 2.5, 'dropping_chunk': 5, 'ef21_chunk': 5},
  **{'sign_majority': 5, 'random_k': 5, 'qsgd4': 5, 'terngrad': 5},
  **{'one_bit': 5, 'power_sgd': 5, 'strom': 12, 'variance': 12},
  **{'variance_strom': 12, 'ada_comp': 12, 'dryden': 12, 'qsgd_elias': 12},
}

_TREES = ('resnet50', 'transformer', 'scanned', 'one')
# Those that select from all leaves.
_GLOBAL = ('dgc', 'dropping', 'ef21', 'gtopk')


def _recorded():
  record = _ROOT / 'experiments/results/accelerators.json'
  return json.loads(record.read_text())


def _page():
  return (_ROOT / 'docs/accelerators.md').read_text()


def test_cycles_are_added_up():
  """Loops as often as they turn; of branches the dearest; no end of a wait."""
  found = cost.of(_TEXT.replace('\\\n', ''))
  assert found.cycles == (4 + cost.UNKNOWN_TURNS + 8) * 10 + 7 + 1
  assert found.of_sizes == (found.cycles - 4, found.cycles, found.cycles - 4)
  assert found.unknown_loops == 1
  assert found.uncounted == {'sort': 1}
  assert found.launches == 6 + 4 + cost.UNKNOWN_TURNS + 8 + 2
  assert found.rows[0] == (320, 'fusion turn')


@pytest.mark.parametrize('name', ['v5e', 'v5e:2', 'a100', 'h100:8', 'v9:2x2'])
def test_what_is_no_target_is_told(name):
  with pytest.raises(ValueError, match=f'target must be .* got {name!r}'):
    targets.parse(name)
  for known in ('v5p:2x2x2', 'tpu7x:2x2x1', 'h100'):
    assert targets.parse(known) == known


@pytest.mark.parametrize(
  'name, extra', [('v5e:2x4', 'tpu-compile'), ('h100', 'gpu-compile')]
)
def test_a_compiler_that_is_missing_is_named(monkeypatch, name, extra):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.ConfigError, match=extra):
    targets.prepare([name])


def test_gpus_have_no_slices():
  with pytest.raises(errors.ConfigError, match='--slices must be 1 .* got 2'):
    targets.prepare(['v5e:2x4', 'h100'], slices=2)


@pytest.mark.parametrize(
  'shape, spec',
  [
    ((12, 48, 144), P(None, None, 'fsdp')),
    ((192, 48), P('fsdp', None)),
    ((3, 3, 8, 10), P()),
    ((48,), P()),
  ],
)
def test_a_leaf_is_divided_along_its_largest_dimension(shape, spec):
  assert programs.sharded(shape, 16) == spec
  assert programs.sharded(shape, 1) == P()


def row(**more):
  """As it stands in a record."""
  return {
    'scheme': 'dgc',
    'target': 'v5e:2x4',
    'slices': 1,
    'tree': 'one',
    'compile_s': 33.51,
    'code_bytes': 9_500_000,
    'temp_models': 0.114,
    'cycles': 1000,
    'cycles_x_sgd': 6.41,
    'kernels_x_sgd': 1.21,
    'floor_x_sgd': 1.4,
    'unknown_loops': 1,
    'launches': 1340,
    'uncounted': {'custom-call': 3, 'sort': 1},
    'plan_bytes': 76_972,
    'program_bytes': 153_944,
    'inside_bytes': 0,
    'most_expensive': [],
    **more,
  }


def test_records_become_the_tables_of_the_page():
  """One for each target and tree; of a scheme its last row; no zeros for -."""
  gpu = row(
    target='h100', code_bytes=None, cycles=None, cycles_x_sgd=None, uncounted={}
  )
  several = row(target='v5e:4x4', slices=2, inside_bytes=30)
  text = page.page([row(compile_s=99.0), gpu, several, row()])
  wanted = '## ', '| dgc | 33.5 '
  lines = [line for line in text.splitlines() if line.startswith(wanted)]
  assert lines == [
    '## v5e:2x4, one',
    '| dgc | 33.5 | 9.5 | 0.11 | 7.6 | 1.2 | 1.40 | 1 | 1,340 | 76,972 | '
    '153,944 | 0 | 3 custom-call, 1 sort |',
    '## h100, one',
    '| dgc | 33.5 | - | 0.11 | - | 1.2 | 1.40 | 1 | 1,340 | 76,972 | 153,944 | '
    '0 | - |',
    '## v5e:4x4, 2 slices, one',
    '| dgc | 33.5 | 9.5 | 0.11 | 7.6 | 1.2 | 1.40 | 1 | 1,340 | 76,972 | '
    '153,944 | 30 | 3 custom-call, 1 sort |',
  ]


def test_a_page_of_gpus_has_no_estimates():
  gpu = row(target='h100', cycles_x_sgd=None, most_expensive=[])
  assert page.page([gpu]).startswith('## h100, one')
  with pytest.raises(SystemExit, match='--plot draws rows of v5e:2x4'):
    page.draw([gpu])


def test_a_profile_names_what_takes_most():
  name = 'fusion jit(step)/shard_map/gradsparse.compress/cond/branch_0_fun/add'
  shown = page.page(
    [row(most_expensive=[[500, name], [400, 'copy ?'], [9, '']])]
  )
  assert '| dgc | `fusion cond/branch_0/add` 3.2, `copy ?` 2.6 |' in shown


def test_a_summary_has_a_column_for_each_place_with_estimates():
  other = row(target='v6e:2x4', scheme='dense', cycles_x_sgd=0.03)
  gpu = row(target='h100', cycles_x_sgd=None)
  table = page.summary([row(sizes_x_sgd=[6.41, 4.09]), gpu, other])
  assert [*table] == ['scheme', 'v5e:2x4, one', 'v6e:2x4, one']
  text = table.values.tolist()
  assert text == [['dgc', '5.3 to 7.6', '-'], ['dense', '-', '1.2']]


def test_the_pages_have_the_tables_of_the_record():
  rows = _recorded()
  places = [
    [r[x] for x in ('target', 'slices', 'tree', 'scheme')] for r in rows
  ]
  assert all(places.count(place) == 1 for place in places)
  text = (_ROOT / 'docs/accelerators_tables.md').read_text()
  assert text.strip() == page.page(rows)
  assert page.draw(rows).startswith(b'\x89PNG')
  summary = tables.markdown(page.summary(rows))
  assert summary in _page()


def test_what_the_page_says_of_the_record():
  rows, words = _recorded(), ' '.join(_page().split())
  v5e = [r for r in rows if r['target'] == 'v5e:2x4']
  fast = sum(r['compile_s'] <= 30 for r in v5e)
  small = sum(r['temp_models'] < 1.5 for r in v5e)
  assert f'{fast} of {len(v5e)} programs for a v5e compile' in words
  assert f'one and a half models for {small} of the {len(v5e)}' in words
  sgd = {
    r['target']: r['cycles'] / r['cycles_x_sgd'] / 1e6
    for r in rows
    if (r['tree'], r['scheme']) == ('resnet50', 'dgc') and r['cycles']
  }
  assert (
    f'in {sgd["v6e:2x4"]:.2f} million cycles where a v5e takes '
    f'{sgd["v5e:2x4"]:.2f}' in words
  )
  assert {r['scheme'] for r in rows if r['unknown_loops']} == {'qsgd_elias'}
  h100 = [r for r in rows if r['target'] == 'h100']
  few = sum(r['launches'] <= 250 + 2 * 161 for r in h100)
  assert f'H100s {few} of {len(h100)} schemes are at most 250' in words
  missed = words.split('### What is missed')[1]
  for each in h100:
    if each['launches'] > 250 + 2 * 161:
      assert f'{each["launches"]:,}' in missed, each['scheme']
  for each in v5e:
    own = _steps(each)
    name, wanted = each['scheme'], _WANTED.get(each['scheme'], 8)
    if each['tree'] == 'resnet50' and name not in programs.OUTER:
      shown = dict.fromkeys(f'{x:.1f}' for x in (min(own), max(own)))
      assert max(own) <= wanted or f'| {" to ".join(shown)}' in missed, name
  outer = [r for r in v5e if r['scheme'] == 'sparse_loco']
  steps, seconds = (
    sorted(round(r[key]) for r in outer)
    for key in ('cycles_x_sgd', 'compile_s')
  )
  assert (
    f'takes {steps[0]} to {steps[-1]}, sorts not counted, and {seconds[0]} to '
    f'{seconds[-1]} seconds to compile' in words
  )


def test_what_the_page_says_of_trees_and_chips():
  rows, words = _recorded(), ' '.join(_page().split())
  v5e = [r for r in rows if r['target'] == 'v5e:2x4']
  within = collections.Counter(
    r['scheme'] for r in v5e if max(_steps(r)) <= 5 and r['tree'] in _TREES
  )
  every = {name for name, trees in within.items() if trees == len(_TREES)}
  assert every - set(programs.OUTER) == {
    name for name, most in _WANTED.items() if most <= 5 and name != 'one_bit'
  }, 'within five momentum SGD steps with each of the four trees'
  assert within['one_bit'] == 3
  assert max(_steps(r)[0] for r in v5e if r['scheme'] in _GLOBAL) < 8
  chunks = [r for r in v5e if r['scheme'] == 'dgc_chunk']
  seconds, models = (
    [r[key] for r in chunks] for key in ('compile_s', 'temp_models')
  )
  assert f'by chunks in {min(seconds):.0f} to {max(seconds):.0f}.' in words
  assert f'DGC needs {min(models):.1f} to {max(models):.1f}, since' in words
  outer = [r['compile_s'] for r in v5e if r['scheme'] == 'diloco']
  assert f'compiles in {min(outer):.0f} to {max(outer):.0f} seconds' in words
  of = {
    (r['scheme'], r['target']): r
    for r in rows
    if r['tree'] == 'resnet50' and r['slices'] == 1
  }
  of_both = [
    f'{of["dgc", "v6e:2x4"]["cycles"] / 1e6:.1f} million cycles there',
    f'{of["dgc", "v5e:2x4"]["cycles"] / 1e6:.1f} on a v5e, QSGD',
    f'{of["qsgd4", "v6e:2x4"]["cycles"] / 1e6:.1f} and',
    f'{of["qsgd4", "v5e:2x4"]["cycles"] / 1e6:.1f}.',
  ]
  assert f'DGC takes {" and ".join(of_both[:2])} {" ".join(of_both[2:])}' in (
    words
  )
  more = [
    max(_steps(r)) / max(_steps(of[scheme, 'v5e:2x4']))
    for (scheme, target), r in of.items()
    if target == 'v6e:2x4'
  ]
  assert f'costs {min(more):.1f} to {max(more):.1f} times' in words


def _steps(row):
  """Momentum SGD steps, of each size of message."""
  return row['sizes_x_sgd'] or [row['cycles_x_sgd'] + row['kernels_x_sgd']]


@pytest.mark.slow
def test_the_program_prints_records(tmp_path):
  """And needs no compiler of accelerators for it."""
  records = [tmp_path / 'a.json', tmp_path / 'b.json']
  records[0].write_text(json.dumps([row()]))
  records[1].write_text(json.dumps([row(target='h100')]))
  names = ','.join(map(str, records))
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.benchmarks.accelerators'),
      f'--recorded={names}',
    ],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == page.page([row(), row(target='h100')])
