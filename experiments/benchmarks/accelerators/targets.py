"""Hardware that programs are compiled for and that need not be there."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import importlib.util
import os
import re
from typing import Any

from experiments.program import errors
import jax
from jax.experimental import topologies
import numpy as np

H100 = 'h100'
GPUS = 8
_TPU = re.compile(r'(v4|v5e|v5p|v6e|tpu7x):\d+x\d+(x\d+)?')
# libtpu asks for these, even where it only compiles.
_TPU_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}
# The GPU itself chooses among kernels by trying them, which nothing can here.
_GPU_FLAGS = (
  '--xla_gpu_enable_triton_gemm=false',
  '--xla_gpu_autotune_level=0',
)
# What XLA wants to know of an H100 with 80 GB.
_H100_CONFIG = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000
  l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 } registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def parse(name: str) -> str:
  """A target by name.

  Raises:
    ValueError: there is none of that name.
  """
  if name != H100 and not _TPU.fullmatch(name):
    raise ValueError(
      f'target must be {H100!r} or a TPU topology such as v5e:2x4, v5p:2x2x2 '
      f'or v6e:2x4, got {name!r}'
    )
  return name


def prepare(target: str) -> None:
  """Sets the environment that the compiler reads; before any device is asked.

  Raises:
    ConfigError: the compiler is not installed.
  """
  module, extra = (
    ('jax_plugins.xla_cuda12', 'gpu-compile')
    if target == H100
    else ('libtpu', 'tpu-compile')
  )
  try:
    found = importlib.util.find_spec(module)
  except ModuleNotFoundError:
    found = None
  if found is None:
    raise errors.ConfigError(
      f'target {target} needs its compiler: pip install -c constraints.txt '
      f"-e '.[{extra}]'"
    )
  jax.config.update('jax_platforms', 'cpu')  # the devices that are here
  if target == H100:
    flags = os.environ.get('XLA_FLAGS', '').split()
    os.environ['XLA_FLAGS'] = ' '.join([*flags, *_GPU_FLAGS])
  else:
    for name, value in _TPU_ENVIRONMENT.items():
      os.environ.setdefault(name, value)


def devices(target: str, slices: int = 1) -> np.ndarray:
  """The devices of a target, of no use but to compile for.

  Args:
    target: as `parse` returns it.
    slices: of a TPU, connected by the data center's network.

  Returns:
    object array [slices, devices of a slice].
  """
  if target == H100:
    with _platform_of_cuda():
      topology = topologies.get_topology_desc(
        platform='cuda', target_config=_H100_CONFIG, topology=f'1x1x{GPUS}'
      )
  else:
    options = {} if slices == 1 else {'num_slices': slices}
    topology = topologies.get_topology_desc(
      platform='tpu', topology_name=target, **options
    )
  found: list[Any] = sorted(
    topology.devices, key=lambda d: (getattr(d, 'slice_index', 0) or 0, d.id)
  )
  return np.array(found).reshape(slices, -1)


@contextlib.contextmanager
def _platform_of_cuda() -> Iterator[None]:
  """JAX finds no platform of a name that no plugin has (jax-ml/jax#23971)."""
  from jax._src import xla_bridge

  original = xla_bridge.canonicalize_platform

  def canonicalize(platform):
    try:
      return original(platform)
    except RuntimeError:
      return 'cuda'

  xla_bridge.canonicalize_platform = canonicalize
  try:
    yield
  finally:
    xla_bridge.canonicalize_platform = original
