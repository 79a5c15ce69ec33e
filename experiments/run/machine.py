"""A record of the machine."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def describe() -> dict[str, Any]:
  """Returns hardware and versions, for the records of a run."""
  device = jax.devices()[0]
  return {
    'backend': jax.default_backend(),
    'device': device.device_kind,
    'devices': jax.device_count(),
    'processes': jax.process_count(),
    'cpu_cores': os.cpu_count(),
    'machine': platform.machine(),
    'system': platform.system(),
    'python': platform.python_version(),
    **versions(),
  }


def versions() -> dict[str, str]:
  """Returns those of the packages that decide what a run computes."""
  return {name: importlib.metadata.version(name) for name in _PACKAGES}


def peak_bytes(compiled: Any) -> int | None:
  """What a device holds at most while a compiled program runs.

  Arguments and results are included. None where XLA does not tell.
  """
  found = compiled.memory_analysis()
  if found is None:
    return None
  return int(
    found.argument_size_in_bytes
    + found.output_size_in_bytes
    + found.temp_size_in_bytes
    - found.alias_size_in_bytes
  )
