"""Accelerators that programs are compiled for and that need not be there."""

from collections.abc import Mapping, Sequence
import dataclasses
import importlib.util
import os
import re
from typing import Any

from experiments.program import errors
import jax
from jax.experimental import topologies
import numpy as np

_TPU = re.compile(r'(v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?')
# libtpu asks for these, even where it only compiles.
_TPU_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
# What a TPU leaves to its sparse cores, libtpu writes in a form that jaxlib
# 0.10.2 cannot read ("async-update instruction should have 1 operands but sees
# 2"): the program would have no text. So here its other cores do all of it.
# v5e has no sparse cores.
_NO_SPARSE_CORES = {
  f'xla_tpu_{name}': False
  for name in (
    'enable_offloading_gather_to_sparsecore',
    'enable_offloading_scatter_to_sparsecore',
    'enable_offloading_sort_to_sparsecore',
    'enable_sparse_core_collective_offload_all_gather',
    'enable_sparse_core_collective_offload_all_reduce',
    'enable_sparse_core_collective_offload_reduce_scatter',
    'offload_all_supported_gathers_to_sparsecore',
    'offload_gather_to_sparsecore',
  )
}

H100 = 'h100'
_GPUS = 8  # of a host, on one switch
# Both try programs on a GPU, to choose the fastest.
_GPU_FLAGS = '--xla_gpu_enable_triton_gemm=false --xla_gpu_autotune_level=0'
# What XLA reads from a card: a GpuTargetConfigProto, as text.
_H100_CONFIG = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


@dataclasses.dataclass(frozen=True)
class Target:
  """What to compile for.

  Attributes:
    devices: object array in the topology's order, (slices, devices of a slice)
      where there are several slices; of no use but to compile for.
    options: of the compiler.
  """

  devices: np.ndarray
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def parse(name: str) -> str:
  """A target by name.

  Raises:
    ValueError: there is none of that name.
  """
  if name != H100 and not _TPU.fullmatch(name):
    raise ValueError(
      'target must be h100, or a topology of TPUs such as v5e:2x4, v5p:2x2x2, '
      f'v6e:2x4 or tpu7x:2x2x1, got {name!r}'
    )
  return name


def prepare(names: Sequence[str], slices: int = 1) -> None:
  """Sets what the compilers read; before any device is asked for.

  Args:
    names: of targets, as `parse` returns them.
    slices: of TPUs.

  Raises:
    ConfigError: a compiler is not installed, or slices are of GPUs.
  """
  gpus = H100 in names
  if gpus and slices > 1:
    raise errors.ConfigError(
      f'--slices must be 1 with --target={H100}, got {slices}: only TPUs have '
      'slices'
    )
  if gpus:
    _require('jax_cuda12_plugin', 'GPUs', 'gpu-compile')
    own = os.environ.get('XLA_FLAGS', '')
    os.environ['XLA_FLAGS'] = f'{_GPU_FLAGS} {own}'.strip()
    _name_gpus()
  if set(names) - {H100}:
    _require('libtpu', 'TPUs', 'tpu-compile')
    for name, value in _TPU_ENVIRONMENT.items():
      os.environ.setdefault(name, value)
  jax.config.update('jax_platforms', 'cpu')  # the devices that are here


def make(name: str, slices: int = 1) -> Target:
  """A target whose compiler is prepared.

  Args:
    name: as `parse` returns it; of one slice.
    slices: how many there are, of TPUs.
  """
  if name == H100:
    topology = topologies.get_topology_desc(
      platform='cuda',
      target_config=_H100_CONFIG,
      topology=f'1x1x{_GPUS}',  # slices, hosts, GPUs of a host
    )
    return Target(np.array(topology.devices))
  topology = topologies.get_topology_desc(
    platform='tpu', topology_name=name, num_slices=slices
  )
  devices = np.array(topology.devices)
  if slices > 1:
    devices = devices.reshape(slices, -1)
  return Target(devices, {} if name.startswith('v5e') else _NO_SPARSE_CORES)


def _require(module: str, what: str, extra: str) -> None:
  if importlib.util.find_spec(module) is None:
    raise errors.ConfigError(
      f'the compiler for {what} is not installed: '
      f"pip install -c constraints.txt -e '.[experiments,{extra}]'"
    )


def _name_gpus() -> None:
  """Lets JAX lower for a GPU where there is none (jax-ml/jax#23971).

  Devices of a topology call their platform 'gpu'. JAX asks the devices that are
  there which kind of GPU that is, and raises if there is none. Here it is CUDA.
  """
  from jax._src import xla_bridge  # private: only where it is needed

  canonical = xla_bridge.canonicalize_platform

  def named(platform):
    return 'cuda' if platform == 'gpu' else canonical(platform)

  xla_bridge.canonicalize_platform = named
