"""TPUs that programs are compiled for and that need not be there."""

from __future__ import annotations

import importlib.util
import os
import re

from experiments.program import errors
import jax
from jax.experimental import topologies
import numpy as np

_TPU = re.compile(r'(v4|v5e|v5p|v6e):\d+x\d+(x\d+)?')
# libtpu asks for these, even where it only compiles.
_ENVIRONMENT = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-8',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


def parse(name: str) -> str:
  """A target by name.

  Raises:
    ValueError: there is none of that name.
  """
  if not _TPU.fullmatch(name):
    raise ValueError(
      'target must be a topology of TPUs such as v5e:2x4, v5p:2x2x2 or '
      f'v6e:2x4, got {name!r}'
    )
  return name


def prepare() -> None:
  """Sets what the compiler reads; before any device is asked for.

  Raises:
    ConfigError: the compiler is not installed.
  """
  if importlib.util.find_spec('libtpu') is None:
    raise errors.ConfigError(
      'the compiler for TPUs is not installed: '
      "pip install -c constraints.txt -e '.[experiments,tpu-compile]'"
    )
  jax.config.update('jax_platforms', 'cpu')  # the devices that are here
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)


def devices(target: str) -> np.ndarray:
  """The devices of a target, of no use but to compile for.

  Args:
    target: as `parse` returns it.

  Returns:
    object array, in the topology's order.
  """
  topology = topologies.get_topology_desc(platform='tpu', topology_name=target)
  return np.array(topology.devices)
