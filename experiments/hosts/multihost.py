"""Joins the processes of a run, and ends them all where one of them dies.

  with multihost.session():
    ...                      # jax.devices() are those of all processes

The first of these that names the processes counts:

  1. the arguments (flags of a program);
  2. the environment that `experiments.cluster` sets, see
     `experiments/cluster/environment.py`;
  3. what `jax.distributed.initialize()` finds by itself: Cloud TPU pods,
     SLURM, Open MPI, Kubernetes.

A process that dies takes the others with it, in bounded time: a thread of each
(`experiments.hosts.watch`) notices that one is gone, or silent for
`host_timeout`, and ends its own process with one line that names it. A process
that is alive but never comes to a collective ends it after
`collective_timeout`. JAX alone would wait: five minutes for a process that
failed, half an hour for one that is stuck, and without end for one that was
told to stop by SIGTERM, which its preemption service swallows.

Where JAX finds the processes by itself (3.) there is no such thread: what JAX
notices ends the run, in JAX's words.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import math
import os
import traceback

from experiments.cluster import environment
from experiments.hosts import relay
from experiments.hosts.watch import Watch
from experiments.hosts.watch import end_process
from experiments.program import command_line
from experiments.program import errors
import jax
from jax.experimental import multihost_utils

# One of these is in the message where a collective, or a barrier, failed.
_EXCHANGES = ('Gloo', 'NCCL', 'coordination service', 'CoordinationService')


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

  @property
  def address(self) -> tuple[str, int]:
    """Address and port of the coordinator."""
    address, _, port = self.coordinator.rpartition(':')
    return address.strip('[]'), int(port)

  def __str__(self) -> str:
    return f'process {self.process_id} of {self.num_processes}'


def find_place(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  variables: Mapping[str, str] | None = None,
) -> Place | None:
  """Returns the place that the arguments, or else the environment, name.

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
  given = (coordinator, num_processes, process_id)
  coordinator, count, number = found = [
    variables.get(name) if value is None else value
    for value, name in zip(given, environment.NAMES, strict=True)
  ]
  if found == [None] * 3:
    return None
  with contextlib.suppress(AttributeError, TypeError, ValueError):
    place = Place(coordinator, int(count), int(number))
    if place.address[0] and 0 <= place.process_id < place.num_processes:
      return place
  raise errors.ConfigError(
    'a coordinator (address:port), the number of processes and the process id '
    f'(from 0) go together, got {coordinator}, {count} and {number}; give all '
    'three, or none and let JAX ask the cluster'
  )


@contextlib.contextmanager
def session(
  place: Place | None = None,
  *,
  initialization_timeout: int = 60,
  host_timeout: float = 60.0,
  collective_timeout: int = 300,
) -> Iterator[tuple[int, int]]:
  """Joins the other processes for the time of a `with` block.

  Before anything else uses a device. An exception that leaves the block is
  printed and **ends the process** with status 1, or that of a `UserError`: an
  orderly exit would first wait for processes that may be waiting for this one.
  Where all processes have agreed to stop (`StoppedError`) it is orderly. Where
  another process is lost, the process ends with status `watch.EXIT_LOST`.

  Args:
    place: which process of how many; if None, that of the environment, or
      what JAX finds.
    initialization_timeout: seconds to wait for the others to come.
    host_timeout: seconds after which a silent process counts as lost.
    collective_timeout: seconds to wait in a collective (on CPUs) for a process
      that is alive; must exceed what one process does alone, such as compiling
      more slowly, or testing and saving on process 0.

  Yields:
    (process id, number of processes).

  Raises:
    ConfigError: there is no cluster to be found, or process 0 is not there.
    RuntimeError: JAX has been used already.
  """
  place = find_place() if place is None else place
  watch, patience, arguments = None, 1, {}
  if place:
    if place.process_id == 0:
      told = f'{place} waits at {place.coordinator} for the others'
      command_line.say(f'{told}, {initialization_timeout} s at most')
    limits = {'timeout': host_timeout, 'meeting': initialization_timeout}
    own = place.process_id, place.num_processes, place.address
    watch = Watch(*own, **limits)
    # It names who is lost, so it must be the first to notice.
    patience = 2
    # It listens where the place says, JAX's coordinator on a port beside it.
    port = watch.service
    if place.process_id:
      port = relay.start(place.address[0], port)
    arguments = {
      'coordinator_address': f'127.0.0.1:{port}',
      'num_processes': place.num_processes,
      'process_id': place.process_id,
      # In a step of SLURM, or under Open MPI, it would hide all GPUs but one.
      'cluster_detection_method': 'deactivate',
    }
  try:
    # Its signal handler swallows SIGTERM: nobody could stop a stuck process.
    jax.config.update('jax_enable_preemption_service', False)
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    _add_xla_flag('xla_cpu_collective_timeout_seconds', collective_timeout)
    try:
      jax.distributed.initialize(
        **arguments,
        initialization_timeout=patience * initialization_timeout,
        heartbeat_timeout_seconds=math.ceil(patience * host_timeout) + 10,
        shutdown_timeout_seconds=60,
      )
    except ValueError as error:
      if place:
        raise
      raise errors.ConfigError(
        'found no cluster to join: start through `python -m '
        'experiments.cluster`, SLURM, Open MPI, Kubernetes or on a TPU pod, or '
        'name the coordinator, the number of processes and the process id '
        f'({error})'
      ) from error
    if not place:
      _keep_the_host()
    # Gloo gives the processes 30 s to meet in their first collective, whatever
    # its timeout is: meet before anybody compiles anything.
    multihost_utils.sync_global_devices('experiments.hosts.multihost')
    yield jax.process_index(), jax.process_count()
  except BaseException as error:
    # Where all have agreed to stop none of them waits for another.
    if not isinstance(error, errors.StoppedError):
      _leave(error, place, watch)  # ends the process
    raise
  finally:  # all leave
    jax.distributed.shutdown()
    if watch:
      watch.close()


def _keep_the_host() -> None:
  """Gives a process that is alone on its host all GPUs that it can see.

  JAX gives a process of SLURM or of Open MPI one of them, that with its number
  on the host, unless the user has named some. No backend exists yet, so the
  options are still open; those that JAX sets, and the value that they have
  before.
  """
  named = os.environ.get('JAX_LOCAL_DEVICE_IDS')
  if not named and _is_alone_on_host(os.environ):
    jax.config.update('jax_cuda_visible_devices', 'all')
    jax.config.update('jax_rocm_visible_devices', 'all')


def _is_alone_on_host(variables: Mapping[str, str]) -> bool:
  """Whether Open MPI, or else SLURM, started no other process on this host.

  In this order, as JAX has them: `mpirun` uses SLURM to reach hosts.
  """
  if 'OMPI_COMM_WORLD_SIZE' in variables:
    return variables.get('OMPI_COMM_WORLD_LOCAL_SIZE') == '1'
  hosts = variables.get('SLURM_STEP_NUM_NODES')
  return hosts is not None and hosts == variables.get('SLURM_NTASKS')


def _leave(
  error: BaseException, place: Place | None, watch: Watch | None
) -> None:
  """Says why and ends the process, and the others."""
  is_follow_up = _is_of_another(error)
  if is_follow_up and watch:
    watch.wait()  # says who it was, and ends this process
  who = str(place or f'process {jax.process_index()} of {jax.process_count()}')
  status, reason = 1, f'{type(error).__name__}: {error}'
  if isinstance(error, KeyboardInterrupt):
    status, reason = 130, 'Ctrl-C'
  elif isinstance(error, errors.UserError):
    status, reason = error.exit_status, str(error)
    command_line.say(f'error: {error}')
  else:
    traceback.print_exception(error)
    if is_follow_up:
      command_line.say(
        f'error: {who} lost another process in the middle of an exchange; '
        'that one failed first, see its log'
      )
  if watch:
    watch.leave(reason.partition('\n')[0], status)
  end_process(f'{who} ends with status {status}, and so does the run', status)


def _is_of_another(error: BaseException | None) -> bool:
  """Whether what failed is an exchange, because another process is gone.

  A ValueError where it surfaces while a result is read, and an error of a file
  where a checkpoint is written by all.
  """
  while error is not None:
    if any(name in str(error) for name in _EXCHANGES):
      return True
    error = error.__cause__
  return False


def _add_xla_flag(name: str, value: int) -> None:
  """Sets an option of XLA, unless the user did."""
  flags = os.environ.get('XLA_FLAGS', '')
  if f'--{name}' not in flags:
    os.environ['XLA_FLAGS'] = f'{flags} --{name}={value}'.strip()
