"""A step between slices of TPUs, compiled and never run; see large_step.py.

All layers are in one scan, FSDP is inside of a slice, a scheme between slices.
`GRADSPARSE_TARGETS` names the slices; docs/large_models.md has what came of

  GRADSPARSE_LAYERS=24 GRADSPARSE_WIDTH=2048 \
  GRADSPARSE_TARGETS=v5e:4x4,v5p:2x2x4 python -m pytest -m slow ...
"""

import importlib.metadata
import importlib.util
import os

from experiments.benchmarks.accelerators import cost
from experiments.benchmarks.accelerators import targets
import jax
import pytest
from tests.experiments import large_step
from tests.experiments.faults import attempts

_TARGETS = os.environ.get('GRADSPARSE_TARGETS', 'v5e:2x2,v5p:2x2x1').split(',')
_SLICES = 2
_MEMORY = {'v5e': 16e9, 'v5p': 95e9}  # bytes of a chip
_TILE = 4 * 1024  # between slices what is sent is padded to these
_SLOW = [
  pytest.mark.slow,
  pytest.mark.timeout(7200),
  pytest.mark.skipif(
    importlib.util.find_spec('libtpu') is None, reason='no compiler for TPUs'
  ),
]


def _compiled(target, scheme):
  made = targets.make(target, _SLICES)
  # With four devices a part's columns are a multiple of 128, as kernels want.
  model = large_step.from_environment(
    width=512, shards=made.devices.shape[1], scanned=True
  )
  program, row = large_step.compiled(
    scheme, model, large_step.mesh(made.devices), made.options
  )
  row['kernel_bytes'] = cost.of(program.as_text()).kernel_bytes
  devices = made.devices.size
  return model, {'target': target, 'devices': devices, **row}


@pytest.fixture(scope='module')
def rows():
  """By target and scheme, each with the model."""
  targets.prepare(_TARGETS, _SLICES)
  found = {}
  for target in _TARGETS:
    for scheme in ('dense', 'dgc_chunk'):
      found[target, scheme] = model, _ = _compiled(target, scheme)
      jax.clear_caches()
  made = {
    'libtpu': importlib.metadata.version('libtpu'),
    'parameters': model.parameters,
    'slices': _SLICES,
    'rows': [row for _, row in found.values()],
  }
  attempts.keep({'slices': made})
  return found


@pytest.mark.parametrize(
  'target', [pytest.param(x, marks=_SLOW) for x in _TARGETS]
)
def test_a_step_sends_what_is_planned_and_fits_a_chip(target, rows):
  (model, dense), (_, dgc) = rows[target, 'dense'], rows[target, 'dgc_chunk']
  part = 4 * model.parameters / model.shards
  # Parameters and a momentum; DGC has what is pending beside it.
  for row, copies in ((dense, 2), (dgc, 3)):
    # The message, dense leaves and the loss each fill whole tiles.
    planned, sent = row['plan_bytes'], row['sent_bytes']
    assert planned < sent <= planned + 4 * _TILE
    assert copies * part < row['argument_bytes'] < 1.2 * copies * part
    assert row['peak_bytes'] < _MEMORY[target.split(':')[0]]
  assert dgc['sent_bytes'] < dense['sent_bytes'] / 10
  # One kernel reads or writes five arrays, another writes the sum.
  assert 6 * part < dgc['kernel_bytes'] < 6.5 * part
  assert not dense['kernel_bytes']


def test_the_page_has_what_was_recorded():
  page = attempts.page('large_models')
  record = attempts.recorded('large_models')['slices']
  assert {row['target'][:3] for row in record['rows']} == {*_MEMORY}
  for row in record['rows']:
    sizes = ('argument_bytes', 'temporary_bytes', 'peak_bytes')
    shown = [row['target'], row['scheme']]
    shown += [f'{row[x]:,}' for x in ('sent_bytes', 'plan_bytes')]
    shown += [f'{row[x] / 1e9:.2f}' for x in sizes]
    shown.append(f'{row["compile_seconds"]:.0f}')
    assert f'| {" | ".join(shown)} |' in page
    if row['scheme'] != 'dense':
      part = 4 * record['parameters'] / (row['devices'] / record['slices'])
      read = row['kernel_bytes']
      assert f'{read / 1e9:.2f} GB, {read / part:.1f} times' in page
