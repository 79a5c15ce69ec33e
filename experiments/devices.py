"""Enough devices for a runner, and a record of the machine."""

import importlib.metadata
import os
import platform
from typing import Any

from experiments import errors
import jax

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')


def provide(runner: str, num_workers: int) -> None:
  """Makes sure that a runner finds a device for each worker.

  The host's processor can pose as any number of devices, as long as nothing
  has used JAX yet in this process; accelerators must be there.

  Args:
    runner: `'simulate'` needs one device, the others one a worker.
    num_workers: number of workers.

  Raises:
    ConfigError: there are too few devices.
  """
  if runner == 'simulate':
    return
  try:
    if jax.config.jax_num_cpu_devices < num_workers:
      # Touches the CPU backend only; where there is an accelerator, JAX
      # goes on using that one.
      jax.config.update('jax_num_cpu_devices', num_workers)
  except RuntimeError:
    pass  # JAX is in use already: what there is must do
  found = jax.device_count()
  if found < num_workers:
    raise errors.ConfigError(
      f'parallel.runner {runner} with {num_workers} workers needs '
      f'{num_workers} devices, {jax.default_backend()} has {found}. Take '
      '--config.parallel.runner=simulate, fewer --config.parallel.num_workers, '
      'or JAX_PLATFORMS=cpu'
    )


def describe() -> dict[str, Any]:
  """Returns hardware and versions, for the records of a run."""
  device = jax.devices()[0]
  return {
    'backend': jax.default_backend(),
    'device': device.device_kind,
    'devices': jax.device_count(),
    'cpu_cores': os.cpu_count(),
    'machine': platform.machine(),
    'system': platform.system(),
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in _PACKAGES},
  }
