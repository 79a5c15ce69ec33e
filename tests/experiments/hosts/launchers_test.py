"""Which GPUs a process of SLURM or of Open MPI gets, by JAX's own detection."""

import os
import types

from experiments.hosts import multihost
import jax
from jax._src import distributed
import pytest

_ALL = 'all'
_PLACE = multihost.Place('10.0.0.1:47700', 4, 3)


def _slurm(nodes, tasks, task, local):
  return {
    'SLURM_JOB_ID': '77',
    'SLURM_STEP_NODELIST': f'node[1-{nodes}]',
    'SLURM_STEP_NUM_NODES': str(nodes),
    'SLURM_NTASKS': str(tasks),
    'SLURM_PROCID': str(task),
    'SLURM_LOCALID': str(local),
  }


def _open_mpi(tasks, task, local, beside):
  return {
    'OMPI_MCA_orte_hnp_uri': '1531576320.0;tcp://10.0.0.1:34911',
    'OMPI_COMM_WORLD_SIZE': str(tasks),
    'OMPI_COMM_WORLD_RANK': str(task),
    'OMPI_COMM_WORLD_LOCAL_RANK': str(local),
    'OMPI_COMM_WORLD_LOCAL_SIZE': str(beside),
  }


@pytest.fixture
def join(monkeypatch):
  """Returns a function that joins a run of which nothing is there.

  What JAX finds out and sets is real; its service and its client are not.
  """
  options = (
    'jax_enable_preemption_service',
    'jax_cpu_collectives_implementation',
    'jax_cuda_visible_devices',
    'jax_rocm_visible_devices',
  )
  before = {name: jax.config.values[name] for name in options}
  client = types.SimpleNamespace(connect=lambda: None)
  monkeypatch.setattr(
    distributed,
    '_jax',
    types.SimpleNamespace(
      get_distributed_runtime_service=lambda *_, **__: None,
      get_distributed_runtime_client=lambda *_, **__: client,
    ),
  )
  monkeypatch.setattr(
    multihost.multihost_utils, 'sync_global_devices', lambda _: None
  )
  for name in os.environ:
    if name.startswith(('SLURM_', 'OMPI_', 'JAX_', 'GRADSPARSE_NUM')):
      monkeypatch.delenv(name)
  monkeypatch.setenv('XLA_FLAGS', '')

  def joined(place, variables):
    """(number of the process, which GPUs it sees)."""
    for name, value in variables.items():
      monkeypatch.setenv(name, value)
    state = distributed.State()
    monkeypatch.setattr(jax.distributed, 'initialize', state.initialize)
    monkeypatch.setattr(jax.distributed, 'shutdown', lambda: None)
    for name, found in (('index', state.process_id), ('count', 1)):
      monkeypatch.setattr(jax, f'process_{name}', lambda found=found: found)
    watch = types.SimpleNamespace(service=1, close=lambda: None)
    monkeypatch.setattr(multihost, 'Watch', lambda *_, **__: watch)
    monkeypatch.setattr(multihost.relay, 'start', lambda *_: 2)
    with multihost.session(place):
      pass
    visible = jax.config.values['jax_cuda_visible_devices']
    assert jax.config.values['jax_rocm_visible_devices'] == visible
    return state.process_id, visible

  yield joined
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.mark.parametrize(
  'variables',
  [_slurm(nodes=4, tasks=4, task=2, local=0), _open_mpi(4, 2, 0, beside=1)],
  ids=['slurm', 'open_mpi'],
)
def test_the_only_process_of_a_host_has_all_its_gpus(join, variables):
  assert join(None, variables) == (2, _ALL)


@pytest.mark.parametrize(
  'variables',
  [_slurm(nodes=2, tasks=4, task=3, local=1), _open_mpi(4, 3, 1, beside=2)],
  ids=['slurm', 'open_mpi'],
)
def test_one_of_several_processes_of_a_host_has_its_own_gpu(join, variables):
  assert join(None, variables) == (3, '1')


@pytest.mark.parametrize(
  'variables',
  [
    _slurm(nodes=2, tasks=4, task=1, local=1),
    _slurm(nodes=1, tasks=1, task=0, local=0),
    _open_mpi(4, 1, 1, beside=2),
  ],
  ids=['slurm', 'one_task', 'open_mpi'],
)
def test_a_named_place_wins_over_that_of_a_launcher(join, variables):
  assert join(_PLACE, variables) == (3, _ALL)


@pytest.mark.parametrize('place', [None, _PLACE], ids=['found', 'named'])
def test_gpus_that_the_user_names_stay(join, place):
  variables = _slurm(nodes=4, tasks=4, task=3, local=0)
  variables['JAX_LOCAL_DEVICE_IDS'] = '4,5'
  assert join(place, variables) == (3, '4,5')


def test_mpirun_in_a_job_of_slurm_is_open_mpi():
  """JAX, too, goes by Open MPI."""
  alone = multihost._is_alone_on_host
  slurm = _slurm(nodes=2, tasks=4, task=3, local=1)
  assert not alone({}) and not alone(slurm)
  assert alone(slurm | _open_mpi(2, 0, 0, beside=1))
