"""Which device each worker has, and where the arrays of a run lie.

Under `shard_map` a worker is a device of one mesh, whose devices may belong to
several processes (`experiments.hosts.multihost`). Each process then holds, and
reads data for, its own workers only. Where a worker is a node of several inner
workers, each of these is such a device, and the mesh has a second axis.
"""

import collections
from collections.abc import Callable
import contextlib
import dataclasses
import functools
import json
from typing import Any
import zlib

from experiments.program import errors
import gradsparse as gs
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

AXIS = gs.workers.AXIS
INNER_AXIS = 'devices'

_EVERYWHERE = PartitionSpec()


def total(values: np.ndarray) -> np.ndarray:
  """Adds up what each process has; all must call.

  Args:
    values: one axis, of any type; 64 bits stay 64 bits.
  """
  # As bytes: JAX would round float64 to float32.
  own = np.ascontiguousarray(values).view(np.uint8)
  return _of_all(own).view(values.dtype).sum(axis=0)


def _of_all(value: Any) -> np.ndarray:
  """Returns what each process has, with an axis of processes first."""
  return np.asarray(multihost_utils.process_allgather(value))


@dataclasses.dataclass(frozen=True)
class Placement:
  """The devices of a run.

  Attributes:
    runner: `'simulate'`, `'pmap'` or `'shard_map'`.
    num_workers: of all processes.
    inner_workers: of each worker; 1: a worker is its only one.
    devices: one for each inner worker, under `shard_map`; else None.
  """

  runner: str
  num_workers: int
  inner_workers: int = 1
  devices: tuple[jax.Device, ...] | None = None

  @property
  def axes(self) -> dict[str, int]:
    """How many workers there are along each axis; one or two of them."""
    inner = {INNER_AXIS: self.inner_workers} if self.inner_workers > 1 else {}
    return {AXIS: self.num_workers, **inner}

  @property
  def inner_axis(self) -> str | None:
    """The axis inside a worker, None where there is none."""
    return INNER_AXIS if self.inner_workers > 1 else None

  @functools.cached_property
  def mesh(self) -> Mesh | None:
    """A device an inner worker, under `shard_map`; else None."""
    if self.devices is None:
      return None
    return Mesh(
      np.asarray(self.devices).reshape(tuple(self.axes.values())),
      tuple(self.axes),
      axis_types=(AxisType.Auto,) * len(self.axes),
    )

  @property
  def workers(self) -> tuple[int, ...]:
    """This process' inner workers, rising; they are counted node by node."""
    if self.devices is None:
      return tuple(range(self.num_workers * self.inner_workers))
    held = [device.process_index for device in self.devices]
    return tuple(i for i, p in enumerate(held) if p == jax.process_index())

  @property
  def is_chief(self) -> bool:
    """Whether this process writes what a run writes once."""
    return jax.process_index() == 0

  def compile(
    self, function: Callable[..., Any], specs: Any = _EVERYWHERE
  ) -> Callable[..., Any]:
    """Returns the function, compiled.

    Args:
      function: the same in every process.
      specs: a prefix tree of PartitionSpecs for its result; without any, all
        devices have it.
    """
    if self.mesh is None:
      return jax.jit(function)
    shardings = jax.tree.map(lambda x: NamedSharding(self.mesh, x), specs)
    return jax.jit(function, out_shardings=shardings)

  def parallel(self, step: Callable[..., Any], **options: Any) -> Any:
    """Returns what all workers do, see `gs.workers.parallel`."""
    own = {'num_workers': self.axes, 'devices': self.devices}
    return gs.workers.parallel(step, runner=self.runner, **own | options)

  def batch(self, rows: Any) -> Any:
    """Puts this process' rows (one an inner worker) on its devices.

    Returns:
      Arrays whose leading axes are `axes`, of all processes.
    """
    inside = min(len(self.workers), self.inner_workers)
    own = (-1, inside) if self.inner_axis else (-1,)
    rows = jax.tree.map(lambda x: x.reshape(*own, *x.shape[1:]), rows)
    if self.mesh is None:
      return rows
    sharding = NamedSharding(self.mesh, PartitionSpec(*self.axes))
    return jax.make_array_from_process_local_data(sharding, rows)

  def least(self, number: int) -> int:
    """Returns the smallest of what the processes say; all must call."""
    return int(_of_all(np.int32(number)).min())

  def largest(self, number: int) -> Any:
    """Starts to find the largest of what the processes say; all must call.

    Returns:
      It becomes a number by `int`, which waits for the devices.
    """
    own = np.full(len(self.workers), number, np.int32)
    each = NamedSharding(self.mesh, PartitionSpec(tuple(self.axes)))
    return self._largest(jax.make_array_from_process_local_data(each, own))

  @functools.cached_property
  def _largest(self) -> Callable[[jax.Array], jax.Array]:
    return self.compile(jnp.max)

  def on_chief(self, act: Callable[..., Any], *arguments: Any) -> None:
    """Does something in process 0 while the others wait; all must call.

    Where it fails process 0 ends, and the others with it, see
    `experiments.hosts.multihost`.
    """
    if self.is_chief:
      act(*arguments)
    _of_all(np.int32(0))

  def check_same(self, has: Any, otherwise: str) -> None:
    """Raises unless all processes have the same; all must call.

    Args:
      has: what this process has, as JSON.
      otherwise: what a process does or is that has not what process 0 has.

    Raises:
      ConfigError: names that process.
    """
    text = json.dumps(has, sort_keys=True).encode()
    numbers = _of_all(np.uint32(zlib.crc32(text)))
    if np.any(others := numbers != numbers[0]):
      raise errors.ConfigError(f'process {np.argmax(others)} {otherwise}')


def make_placement(
  runner: str, num_workers: int, inner_workers: int = 1
) -> Placement:
  """Makes sure that a runner finds a device for each inner worker.

  The host's processor can pose as any number of devices, as long as nothing
  has used JAX yet in this process; accelerators must be there. Where processes
  have joined (`experiments.hosts.multihost`), every device of every process is
  an inner worker.

  Args:
    runner: `'simulate'` needs one device, the others one an inner worker.
    num_workers: number of workers.
    inner_workers: of each worker.

  Raises:
    ConfigError: there are too few devices; or several processes, and the
      runner is not `'shard_map'`, the number of devices is another one, or
      nodes and processes overlap.
  """
  joined = jax.distributed.is_initialized() and jax.process_count() > 1
  if joined and runner != 'shard_map':
    raise errors.ConfigError(
      f'several processes need parallel.runner shard_map, got {runner}'
    )
  if runner == 'simulate':
    return Placement(runner, num_workers, inner_workers)
  needed = num_workers * inner_workers
  if not joined:
    pose_as(needed)
  devices = sorted(jax.devices(), key=lambda d: (d.process_index, d.id))
  if len(devices) < needed or (joined and len(devices) > needed):
    raise errors.ConfigError(
      f'parallel.num_workers {num_workers} of parallel.devices_per_node '
      f'{inner_workers} need {needed} devices with parallel.runner {runner}, '
      f'{jax.default_backend()} has {len(devices)}. Take other numbers, '
      'or parallel.runner=simulate; on CPUs a process has JAX_NUM_CPU_DEVICES '
      'devices, where that is set'
    )
  devices = devices[:needed]
  held = collections.Counter(d.process_index for d in devices)
  for process, count in held.items():
    if inner_workers > 1 and count % inner_workers and inner_workers % count:
      raise errors.ConfigError(
        f'process {process} has {count} devices, and a worker has '
        f'parallel.devices_per_node {inner_workers}: a process must have whole '
        'workers, or a worker whole processes'
      )
  of_mesh = tuple(devices) if runner == 'shard_map' else None
  return Placement(runner, num_workers, inner_workers, of_mesh)


def pose_as(num_devices: int) -> None:
  """Lets the processor pose as this many devices, if it is not too late."""
  # If JAX is in use already, what there is must do.
  with contextlib.suppress(RuntimeError):
    if jax.config.jax_num_cpu_devices < num_devices:
      # Touches the CPU backend only; where there is an accelerator, JAX
      # goes on using that one.
      jax.config.update('jax_num_cpu_devices', num_devices)
