"""What a run of several processes says where its devices are too few."""

from experiments.hosts import placement
from experiments.program import errors
import jax
import pytest


@pytest.fixture
def two_processes(monkeypatch):
  """Two processes with a device each, as far as `provide` can see."""
  devices = jax.devices()[:2]
  monkeypatch.setattr(jax.distributed, 'is_initialized', lambda: True)
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(jax, 'devices', lambda: devices)


def _refused(*arguments):
  with pytest.raises(errors.ConfigError, match='cpu has 2|gpu has 2') as caught:
    placement.make_placement('shard_map', *arguments)
  return str(caught.value)


@pytest.mark.parametrize('workers', [(4,), (2, 2)], ids=str)
def test_processes_on_cpus_are_told_how_to_have_more_workers(
  two_processes, workers
):
  assert 'JAX_NUM_CPU_DEVICES' in _refused(*workers)
