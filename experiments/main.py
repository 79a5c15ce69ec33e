r"""Runs one experiment from the command line.

  python -m experiments.main --config=configs/default.py --workdir=runs/first \
    --config.compression.name=dgc --config.compression.density=0.001

Every field of the configuration can be set as `--config.SECTION.FIELD=VALUE`,
and every argument of the scheme as `--config.compression.ARG=VALUE`. The same
command again resumes an interrupted run. The exit code is 0 only when the run
reached its last step.

With `--multihost` the same command, started in every process, is one run of all
processes. It needs `--config.parallel.runner=shard_map`, a worker (or one of
its `parallel.devices_per_node`) for every device, and a working directory that
all processes see. The processes find each other through --coordinator,
--num_processes and --process_id, through `experiments.cluster`, or as
`jax.distributed.initialize()` does (TPU pods, SLURM, Open MPI, Kubernetes).
"""

import contextlib

from absl import flags
from experiments.program import command_line
from experiments.program import errors
from experiments.run import display
from experiments.run import writers

# The arguments of a scheme are known only when its name is: `settings.check`
# refuses fields that nobody knows.
_CONFIG = command_line.define_config()
_WORKDIR = command_line.define_workdir(None)
_WRITER = writers.define_flag()
_MULTIHOST = flags.DEFINE_bool('multihost', False, 'join the other processes')
_COORDINATOR = flags.DEFINE_string(
  'coordinator', None, 'address:port on which process 0 listens'
)
_NUM_PROCESSES = flags.DEFINE_integer(
  'num_processes', None, 'number of processes of the run', lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer('process_id', None, 'this process, from 0')
_HOST_TIMEOUT = flags.DEFINE_float(
  'host_timeout',
  None,
  'seconds of silence that end the run of all processes; 60 if not given',
  lower_bound=1,
)


def check() -> None:
  """Raises where the flags make no sense together."""
  for flag in (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID, _HOST_TIMEOUT):
    if flag.value is not None and not _MULTIHOST.value:
      raise errors.ConfigError(f'--{flag.name} goes with --multihost')
  command_line.check_config(_CONFIG)  # a file that is not there raises now


def main() -> None:
  """Checks the configuration, trains, says where the result is."""
  # Imported late: a mistake in the flags is told before JAX is loaded.
  from experiments.config import settings

  settings.check(_CONFIG.value.to_dict())
  with _joined() as process:
    _train(process)


@contextlib.contextmanager
def _joined():
  """Yields the number of this process, 0 where it is alone."""
  if not _MULTIHOST.value:
    yield 0
    return
  from experiments.hosts import multihost
  from experiments.hosts import placement

  place = multihost.find_place(
    _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  )
  if place is not None:
    # Where JAX finds the place by itself, a process on CPUs is one worker.
    parallel = _CONFIG.value.parallel
    workers = parallel.num_workers * parallel.devices_per_node
    placement.pose_as(workers // place.num_processes)
  timeouts = {}
  if _HOST_TIMEOUT.value is not None:
    timeouts['host_timeout'] = _HOST_TIMEOUT.value
  with multihost.session(place, **timeouts) as (process, _):
    yield process


def _train(process: int) -> None:
  from experiments.report import page
  from experiments.training import train

  config, workdir = _CONFIG.value, _WORKDIR.value
  with display.Display(wanted=not process).shown() as shown:
    shown.start(config.compression.name, config.train.steps)
    told = {'announce': command_line.say, 'command': command_line.typed()}
    train.train_and_evaluate(
      config, workdir, progress=shown, writers=_WRITER.value, **told
    )
  if not process:
    print(page.table(page.find_runs([workdir])).T.to_string(header=False))
    print(f'see {workdir}')


if __name__ == '__main__':
  flags.mark_flags_as_required(['config', 'workdir'])
  command_line.run(main, check=check)
