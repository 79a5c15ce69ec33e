"""Which device each worker has, and where the arrays of a run lie.

Under `shard_map` a worker is a device of one mesh, whose devices may belong to
several processes (`experiments.hosts.multihost`). Each process then holds, and
reads data for, its own workers only.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import json
import pathlib
from typing import Any
import zlib

from experiments.program import errors
import gradsparse as gs
import jax
from jax.experimental import multihost_utils
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

AXIS = gs.workers.AXIS


@dataclasses.dataclass(frozen=True)
class Placement:
  """The devices of a run.

  Attributes:
    runner: `'simulate'`, `'pmap'` or `'shard_map'`.
    num_workers: of all processes.
    mesh: a device a worker, under `shard_map`; else None.
    workers: numbers of this process' workers, rising.
    process: number of this process.
    processes: how many there are.
  """

  runner: str
  num_workers: int
  mesh: Mesh | None
  workers: tuple[int, ...]
  process: int = 0
  processes: int = 1

  @property
  def is_chief(self) -> bool:
    """Whether this process writes what a run writes once."""
    return self.process == 0

  @property
  def devices(self) -> list[jax.Device] | None:
    """One for each worker, None for JAX's own order."""
    return None if self.mesh is None else list(self.mesh.devices.flat)

  def make(self, function: Callable[..., Any], specs: Any, *args: Any) -> Any:
    """Returns `function(*args)`, compiled, where `specs` says.

    Args:
      function: the same in every process; of small arguments.
      specs: a prefix tree of PartitionSpecs for its result.
      *args: of the function.
    """
    if self.mesh is None:
      return jax.jit(function)(*args)
    shardings = jax.tree.map(
      lambda spec: NamedSharding(self.mesh, spec),
      specs,
      is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    return jax.jit(function, out_shardings=shardings)(*args)

  def batch(self, rows: Any) -> Any:
    """Puts this process' rows (a leading axis of its workers) on its devices.

    Returns:
      Arrays with a leading axis of all workers.
    """
    if self.mesh is None:
      return rows
    sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
    return jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
        sharding, x, (self.num_workers, *x.shape[1:])
      ),
      rows,
    )

  def total(self, values: np.ndarray) -> np.ndarray:
    """Adds up what each process has; all must call."""
    if self.processes == 1:
      return values
    return np.sum(multihost_utils.process_allgather(values), axis=0)

  def check_same(self, asked: Any, folder: pathlib.Path, file: str) -> None:
    """Raises unless all processes want the same, and share a folder.

    Args:
      asked: what this process was asked to do, as JSON.
      folder: where all write.
      file: in it, written by process 0 before.

    Raises:
      ConfigError: they do not.
    """
    if self.processes == 1:
      return
    number = np.uint32(zlib.crc32(json.dumps(asked, sort_keys=True).encode()))
    numbers = multihost_utils.process_allgather(number)
    if np.any(numbers != numbers[0]):
      raise errors.ConfigError(
        'the processes were started with different flags; all need the same'
      )
    seen = multihost_utils.process_allgather(np.int32((folder / file).exists()))
    if not np.all(seen):
      raise errors.ConfigError(
        f'process {int(np.argmin(seen))} does not see what process 0 wrote to '
        f'{folder}: --workdir must lie on a file system that all hosts share'
      )


def provide(runner: str, num_workers: int) -> Placement:
  """Makes sure that a runner finds a device for each worker.

  The host's processor can pose as any number of devices, as long as nothing
  has used JAX yet in this process; accelerators must be there. Where processes
  have joined (`experiments.hosts.multihost`), every device of every process is
  a worker.

  Args:
    runner: `'simulate'` needs one device, the others one a worker.
    num_workers: number of workers.

  Raises:
    ConfigError: there are too few devices; or several processes, and the
      runner is not `'shard_map'` or the number of devices is another one.
  """
  everyone = tuple(range(num_workers))
  if jax.distributed.is_initialized() and jax.process_count() > 1:
    return _over_processes(runner, num_workers)
  if runner == 'simulate':
    return Placement(runner, num_workers, None, everyone)
  pose_as(num_workers)
  found = jax.device_count()
  if found < num_workers:
    raise errors.ConfigError(
      f'parallel.runner {runner} with {num_workers} workers needs '
      f'{num_workers} devices, {jax.default_backend()} has {found}. Take '
      '--config.parallel.runner=simulate, fewer --config.parallel.num_workers, '
      'or JAX_PLATFORMS=cpu'
    )
  mesh = None
  if runner == 'shard_map':
    mesh = _mesh(jax.devices()[:num_workers])
  return Placement(runner, num_workers, mesh, everyone)


def pose_as(num_devices: int) -> None:
  """Lets the processor pose as this many devices, if it is not too late."""
  try:
    if jax.config.jax_num_cpu_devices < num_devices:
      # Touches the CPU backend only; where there is an accelerator, JAX
      # goes on using that one.
      jax.config.update('jax_num_cpu_devices', num_devices)
  except RuntimeError:
    pass  # JAX is in use already: what there is must do


def _over_processes(runner: str, num_workers: int) -> Placement:
  if runner != 'shard_map':
    raise errors.ConfigError(
      f'several processes need parallel.runner shard_map, got {runner}'
    )
  devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  if len(devices) != num_workers:
    raise errors.ConfigError(
      f'{jax.process_count()} processes with {len(devices)} devices in all '
      f'make {len(devices)} workers, got parallel.num_workers {num_workers}'
    )
  process = jax.process_index()
  return Placement(
    runner,
    num_workers,
    _mesh(devices),
    tuple(i for i, d in enumerate(devices) if d.process_index == process),
    process,
    jax.process_count(),
  )


def _mesh(devices) -> Mesh:
  return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))
