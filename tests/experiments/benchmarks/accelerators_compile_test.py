"""Every scheme is compiled for accelerators, and sends what is planned.

Each in a process of its own: compilers read their options once. They are in
extras, so a test is skipped where its compiler is missing.
"""

import importlib.util
import json
import subprocess
import sys

from experiments.benchmarks.accelerators import programs
from experiments.benchmarks.compress import contenders
from experiments.benchmarks.compress import trees
import pytest

_TPU = pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason='no compiler for TPUs'
)
_GPU = pytest.mark.skipif(
  importlib.util.find_spec('jax_cuda12_plugin') is None,
  reason='no compiler for GPUs',
)
# Wide enough that every scheme compresses: 8 leaves, 406,704 parameters.
_TREE = ('--tree=scanned', '--num_params=500000')
# Loops of which only the data know how often they turn. On a GPU each turn
# waits for the host.
_LOOPS_ON_GPUS, _LOOPS_ON_TPUS = {'qsgd_elias': 2}, {'qsgd_elias': 9}
_SORTS_ON_TPUS = {'qsgd_descent': 2, 'dryden': 1, 'sparse_loco': 6}
# What is promised of a row.
_KEYS = {
  'scheme',
  'target',
  'slices',
  'tree',
  'jax',
  'compile_s',
  'code_bytes',
  'temp_models',
  'cycles',
  'cycles_x_sgd',
  'kernels_x_sgd',
  'sizes_x_sgd',
  'floor_x_sgd',
  'unknown_loops',
  'launches',
  'uncounted',
  'plan_bytes',
  'program_bytes',
  'inside_bytes',
  'most_expensive',
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def compiled(folder, *options):
  """The rows of a run, and what it printed."""
  path = folder / 'rows.json'
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.benchmarks.accelerators'),
      *(*_TREE, *options, f'--json={path}'),
    ],
    capture_output=True,
    text=True,
  )
  assert not done.returncode, done.stderr[-2000:]
  return json.loads(path.read_text()), done.stdout + done.stderr


@_GPU
@pytest.mark.parametrize('scheme', contenders.SCHEMES)
def test_on_gpus_a_program_sends_what_is_planned(scheme, tmp_path):
  (row,), _ = compiled(tmp_path, '--target=h100', f'--schemes={scheme}')
  assert set(row) == _KEYS
  assert row['cycles'] is None and row['cycles_x_sgd'] is None
  assert row['program_bytes'] == row['plan_bytes'] > 0
  assert row['inside_bytes'] == 0
  assert row['unknown_loops'] == _LOOPS_ON_GPUS.get(scheme, 0)
  assert 'sort' not in row['uncounted']


@_TPU
@pytest.mark.parametrize('scheme', [*contenders.SCHEMES, *programs.OUTER])
def test_on_tpus_a_program_sends_what_is_planned(scheme, tmp_path):
  """XLA would make an all-reduce of a gather of vectors, see `Comm.gather`."""
  (row,), _ = compiled(tmp_path, '--target=v5e:2x4', f'--schemes={scheme}')
  assert set(row) == _KEYS
  assert row['cycles'] > 0 and row['cycles_x_sgd'] > 0
  assert row['program_bytes'] == row['plan_bytes'] > 0
  assert row['inside_bytes'] == 0
  assert row['unknown_loops'] == _LOOPS_ON_TPUS.get(scheme, 0)
  assert row['uncounted'].get('sort', 0) == _SORTS_ON_TPUS.get(scheme, 0)


@_TPU
@pytest.mark.parametrize(
  ('scheme', 'passes'),
  [('dropping_chunk', 3), ('dgc_chunk', 5), ('ef21_chunk', 5)],
)
def test_a_kernel_reads_and_writes_the_memory_once(scheme, passes, tmp_path):
  """And the gradient; another kernel writes the sum of the messages."""
  options = '--tree=one', '--target=v5e:2x4', f'--schemes={scheme}'
  (row,), _ = compiled(tmp_path, *options)
  # Momentum SGD touches its arrays five times.
  kernels = (passes + 1) / 5
  assert kernels < row['kernels_x_sgd'] < kernels + 0.1
  assert row['temp_models'] < 1


@_GPU
@pytest.mark.parametrize(
  'scheme', ['dropping_chunk', 'dgc_chunk', 'ef21_chunk']
)
def test_on_gpus_a_kernel_copies_no_memory(scheme, tmp_path):
  options = '--tree=one', '--target=h100', f'--schemes={scheme}'
  (row,), _ = compiled(tmp_path, *options)
  assert row['uncounted']['custom-call'] == 1
  # The sum of the messages, or for EF21 the new estimate.
  assert 1 < row['temp_models'] < 1.3


@_TPU
@pytest.mark.parametrize('tree', trees.TREES)
def test_qsgd_needs_no_kernel_to_round_and_pack(tree):
  """Beyond two momentum SGD steps one would be due, as for chunks."""
  command = '-m', 'tests.experiments.benchmarks.workers_side', tree, '4'
  done = subprocess.run(
    [sys.executable, *command], capture_output=True, text=True
  )
  assert not done.returncode, done.stderr[-2000:]
  assert 0.4 < float(done.stdout) < 1.8


@_TPU
@pytest.mark.parametrize(
  'scheme', ['dense', 'dgc', 'dgc_chunk', 'qsgd4', 'one_bit', 'power_sgd']
)
def test_between_slices_a_program_pads_what_it_sends(scheme, tmp_path):
  """What is planned, and what fills tiles of 1024 words: four at most.

  Nothing of a model's size is sent inside of a slice.
  """
  (row,), _ = compiled(
    tmp_path, '--target=v5e:2x2', '--slices=2', f'--schemes={scheme}'
  )
  assert set(row) == _KEYS and row['slices'] == 2
  planned, tile = row['plan_bytes'], 4 * 1024
  assert 0 < planned <= row['program_bytes'] <= planned + 4 * tile
  # PowerSGD's factors are summed inside of a slice.
  assert row['inside_bytes'] < (500_000 if scheme == 'power_sgd' else 100)


@_TPU
def test_what_selects_from_all_leaves_is_left_out_between_slices(tmp_path):
  options = '--target=v5e:2x2', '--slices=2', '--schemes=gtopk,dense'
  rows, told = compiled(tmp_path, *options)
  assert [row['scheme'] for row in rows] == ['dense']
  assert 'gtopk: left out: gtopk selects from all leaves together' in told


@_TPU
@pytest.mark.parametrize(
  'target', ['v4:2x2x1', 'v5p:2x2x1', 'v6e:2x4', 'tpu7x:2x2x1']
)
def test_tpus_with_sparse_cores_are_compiled_for(target, tmp_path):
  """DGC scatters, which they would leave to those: see targets.py."""
  options = f'--target={target}', '--schemes=dense,dgc_chunk'
  rows, _ = compiled(tmp_path, *options)
  assert [row['target'] for row in rows] == [target] * 2
  assert all(row['cycles_x_sgd'] > 0 for row in rows)
