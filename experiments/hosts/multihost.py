"""Joins the processes of a run, and ends them all where one of them dies.

  with multihost.session():
    ...                      # jax.devices() are those of all processes

What the processes are is taken from the first of these that says it:

  1. the arguments (flags of a program);
  2. the environment that `experiments.cluster` sets, see
     `experiments/cluster/environment.py`;
  3. what `jax.distributed.initialize()` finds by itself: Cloud TPU pods,
     SLURM, Open MPI, Kubernetes.

A process that dies takes the others with it, in bounded time: a broken
connection ends a collective at once, missing heartbeats end a process that
waits elsewhere, and one that is alive but never comes to a collective ends it
after `collective_timeout`. JAX alone would wait: five minutes for a process
that failed, half an hour for one that is stuck, and without end for one that
was told to stop by SIGTERM, which its preemption service swallows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import os
import socket
import sys
import time
import traceback
from typing import Any, NoReturn

from experiments.cluster import environment
from experiments.program import command_line
from experiments.program import errors
import jax
from jax.experimental import multihost_utils


@dataclasses.dataclass(frozen=True)
class Place:
  """Which process of how many this is.

  Attributes:
    coordinator: `address:port` on which process 0 listens.
    num_processes: number of processes.
    process_id: of this process, from 0.
  """

  coordinator: str
  num_processes: int
  process_id: int

  def __str__(self) -> str:
    return f'process {self.process_id} of {self.num_processes}'


def find_place(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  variables: Mapping[str, str] | None = None,
) -> Place | None:
  """Returns what the arguments, or else the environment, say.

  Args:
    coordinator: `address:port` of process 0.
    num_processes: number of processes.
    process_id: of this process.
    variables: of the environment; `os.environ` if None.

  Returns:
    None where neither says anything: for JAX to find out.

  Raises:
    ConfigError: some of the three are known and others not, or they make no
      sense.
  """
  variables = os.environ if variables is None else variables
  coordinator = coordinator or variables.get(environment.COORDINATOR)
  num_processes = _number(num_processes, variables, environment.NUM_PROCESSES)
  process_id = _number(process_id, variables, environment.PROCESS_ID)
  if coordinator is None and num_processes is None and process_id is None:
    return None
  if coordinator is None or num_processes is None or process_id is None:
    raise errors.ConfigError(
      'coordinator, number of processes and process id go together, got '
      f'{coordinator}, {num_processes} and {process_id}; give all three, or '
      'none and let JAX ask the cluster'
    )
  if not 0 <= process_id < num_processes:
    raise errors.ConfigError(
      f'the process id must be in 0..{num_processes - 1}, got {process_id}'
    )
  address, _, port = coordinator.rpartition(':')
  if not address or not port.isdigit():
    raise errors.ConfigError(
      f'the coordinator must be address:port, got {coordinator!r}'
    )
  return Place(coordinator, num_processes, process_id)


def initialize(
  place: Place | None,
  *,
  initialization_timeout: int = 60,
  heartbeat_timeout: int = 20,
  collective_timeout: int = 300,
  shutdown_timeout: int = 60,
) -> None:
  """Joins the other processes; before anything else uses a device.

  Args:
    place: from `find_place`; None: what JAX finds.
    initialization_timeout: seconds to wait for the others to come.
    heartbeat_timeout: seconds after which a silent process counts as dead.
    collective_timeout: seconds to wait in a collective (on CPUs) for a
      process that is alive: must exceed what one process does alone, such as
      compiling more slowly, or testing and saving on process 0.
    shutdown_timeout: seconds that a process that is done waits for others.

  Raises:
    ConfigError: there is no cluster to be found, or process 0 is not there.
    RuntimeError: JAX has been used already.
  """
  # Its signal handler swallows SIGTERM: nobody could stop a stuck process.
  jax.config.update('jax_enable_preemption_service', False)
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  _add_xla_flag('xla_cpu_collective_timeout_seconds', collective_timeout)
  if place is not None and place.num_processes > 1:
    if place.process_id:
      _wait_for_coordinator(place, initialization_timeout)
    else:
      command_line.say(
        f'{place} waits at {place.coordinator} for the others, '
        f'{initialization_timeout} s at most'
      )
  try:
    jax.distributed.initialize(
      **({} if place is None else _arguments(place)),
      initialization_timeout=initialization_timeout,
      heartbeat_timeout_seconds=heartbeat_timeout,
      shutdown_timeout_seconds=shutdown_timeout,
    )
  except ValueError as error:
    if place is not None:
      raise
    raise errors.ConfigError(
      'found no cluster to join: start through `python -m experiments.cluster`,'
      ' SLURM, Open MPI, Kubernetes or on a TPU pod, or name the coordinator, '
      f'the number of processes and the process id ({error})'
    ) from error
  # Gloo gives the processes 30 s to meet in their first collective, whatever
  # its timeout is: meet before anybody compiles anything.
  multihost_utils.sync_global_devices('experiments.hosts.multihost')


@contextlib.contextmanager
def session(
  place: Place | None = None, **timeouts: int
) -> Iterator[tuple[int, int]]:
  """Joins the other processes for the time of a `with` block.

  An exception that leaves the block is printed and **ends the process**, with
  status 1 or that of a `SystemExit`: an orderly exit would first wait for
  processes that may be waiting for this one. Where all processes have agreed to
  stop (`StoppedError`) it is orderly.

  Args:
    place: which process of how many; if None, that of the environment, or
      what JAX finds.
    **timeouts: see `initialize`.

  Yields:
    (process id, number of processes).
  """
  place = find_place() if place is None else place
  initialize(place, **timeouts)
  try:
    yield jax.process_index(), jax.process_count()
  except BaseException as error:
    if not _is_orderly(error):
      _leave(error)
    jax.distributed.shutdown()
    raise
  jax.distributed.shutdown()


def _arguments(place: Place) -> dict[str, Any]:
  return {
    'coordinator_address': place.coordinator,
    'num_processes': place.num_processes,
    'process_id': place.process_id,
  }


def _is_orderly(error: BaseException) -> bool:
  """Whether all processes leave now, none of them waiting for another."""
  if isinstance(error, SystemExit):
    return not error.code
  return isinstance(error, errors.StoppedError)


def _leave(error: BaseException) -> NoReturn:
  """Says why and ends the process, without waiting for anybody."""
  who = f'process {jax.process_index()} of {jax.process_count()}'
  status = 1
  if isinstance(error, SystemExit):
    if isinstance(error.code, int):
      status = error.code
    else:
      command_line.say(str(error.code))
  elif isinstance(error, KeyboardInterrupt):
    status = 130
  elif isinstance(error, errors.UserError):
    command_line.say(f'error: {error}')
    status = error.exit_status
  else:
    traceback.print_exception(error)
    # A ValueError where it surfaces while a result is read.
    if any(name in str(error) for name in ('Gloo', 'NCCL')):
      command_line.say(
        f'error: {who} lost another process in the middle of an exchange; '
        'that one failed first, see its log'
      )
  command_line.say(f'{who} ends with status {status}, and so does the run')
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _number(
  given: int | None, variables: Mapping[str, str], name: str
) -> int | None:
  if given is not None or name not in variables:
    return given
  try:
    return int(variables[name])
  except ValueError as error:
    raise errors.ConfigError(
      f'{name} must be a whole number, got {variables[name]!r}'
    ) from error


def _wait_for_coordinator(place: Place, seconds: int) -> None:
  """Returns when process 0 listens.

  JAX would wait too, but ends in a stack trace of C++ that names no address.
  """
  address, _, port = place.coordinator.rpartition(':')
  deadline = time.monotonic() + seconds
  while True:
    try:
      socket.create_connection((address.strip('[]'), int(port)), 1).close()
      return
    except OSError as error:
      if time.monotonic() > deadline:
        raise errors.ConfigError(
          f'{place} found no process 0 at {place.coordinator} within '
          f'{seconds} s ({error})'
        ) from error
      time.sleep(0.1)


def _add_xla_flag(name: str, value: int) -> None:
  """Sets an option of XLA, unless the user did."""
  flags = os.environ.get('XLA_FLAGS', '')
  if f'--{name}' not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} --{name}={value}'.strip()
