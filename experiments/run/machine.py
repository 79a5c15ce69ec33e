"""A record of the machine, and of the day."""

from collections.abc import Mapping
import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
from typing import Any

import jax

_CPUINFO = pathlib.Path('/proc/cpuinfo')
# Large pages can take nearly half off a step on a processor.
_TUNABLES = 'GLIBC_TUNABLES'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def describe() -> dict[str, Any]:
  """Returns hardware and versions, for the records of a run."""
  device = jax.devices()[0]
  # How the C library was told to take memory, if it was told.
  allocator = os.environ.get(_TUNABLES)
  return {
    'backend': jax.default_backend(),
    'device': device.device_kind,
    'devices': jax.device_count(),
    'processes': jax.process_count(),
    'cpu_cores': len(os.sched_getaffinity(0)),  # that we may use
    'cpu_model': _cpu_model(),
    'machine': platform.machine(),
    'system': platform.system(),
    'python': platform.python_version(),
    **versions(),
  } | ({_TUNABLES.lower(): allocator} if allocator else {})


def _cpu_model() -> str | None:
  """What the processor calls itself, where Linux tells."""
  text = _CPUINFO.read_text() if _CPUINFO.exists() else ''
  found = re.search(r'^model name\s*:(.*)', text, re.MULTILINE)
  return found and found[1].strip()


def place(described: Mapping[str, Any]) -> str:
  """Returns what `describe` gave, in a few words for tables."""
  cores = described['cpu_cores']
  return (
    f'{described["devices"]} x {described["device"]}, '
    f'{cores} core{"" if cores == 1 else "s"}, jax {described["jax"]}'
  )


def today() -> str:
  """Returns the date in Greenwich, as records have it."""
  return datetime.datetime.now(datetime.UTC).date().isoformat()


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
