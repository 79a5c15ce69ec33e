"""Runs the processes of a benchmark on a cluster of its own."""

from collections.abc import Callable, Sequence
import pathlib
import sys
from typing import Any

from absl import flags
from experiments import cluster
from experiments.hosts import multihost
from experiments.program import command_line
from experiments.program import errors
from experiments.program import files
import jax
from jax.experimental import multihost_utils
import numpy as np

# In place of a rate: all processes on 127.0.0.1, nothing shaped or counted.
LOOPBACK = 'loopback'
# Large pages: else a fresh array of 40 MB costs 10,000 page faults, in every
# scheme and in dense.
LARGE_PAGES = ('env', 'GLIBC_TUNABLES=glibc.malloc.hugetlb=1')

flags.disclaim_key_flags()


class FailedError(errors.UserError):
  """A worker failed."""


def run(
  command: Sequence[str],
  workers: int,
  rate: str,
  *,
  timeout: float | None = None,
) -> cluster.Result:
  """`cluster.run`, with the workers' output on standard error.

  Args:
    command: the same on every host.
    workers: number of hosts.
    rate: of the links, or `LOOPBACK`.
    timeout: seconds that it may take.

  Raises:
    FailedError: a process did not end well, or not in time.
    NotPermittedError: no namespaces here.
  """
  loopback = rate == LOOPBACK
  result = cluster.run(
    command,
    num_hosts=workers,
    shape=cluster.Shape() if loopback else cluster.Shape(rate),
    loopback=loopback,
    timeout=timeout,
    output=sys.stderr,
  )
  if result.outcome.timed_out or any(result.outcome.statuses):
    raise FailedError(str(result.outcome))
  return result


def measured(
  name: str,
  words: Sequence[str],
  folder: pathlib.Path,
  workers: int,
  rate: str,
  *,
  before: Sequence[str] = (),
  timeout: float | None = None,
) -> Any:
  """Runs a benchmark with `--inside` on every host; returns what it wrote.

  Args:
    name: of the benchmark, a program beside this file.
    words: its other flags.
    folder: that all hosts see, for the file.
    workers: see `run`, which raises.
    rate: likewise.
    before: words in front of the command.
    timeout: see `run`.
  """
  path = folder / 'result.json'
  path.unlink(missing_ok=True)
  program = [sys.executable, '-m', f'experiments.benchmarks.{name}']
  command = [*before, *program, '--inside', f'--json={path}', *words]
  run(command, workers, rate, timeout=timeout)
  return files.read_json(path)


def inside(path: pathlib.Path, measure: Callable[[], Any]) -> None:
  """Joins the other processes and measures; the first writes the file."""
  jax.config.update('jax_platforms', 'cpu')
  with multihost.session(collective_timeout=600) as (rank, _):
    found = measure()
    if rank == 0:
      files.write_json(path, found)


def slowest(seconds: float) -> float:
  """Over all processes: the same in each, so that they can act on it."""
  everyones = multihost_utils.process_allgather(np.float32(seconds))
  return float(np.max(everyones))


def define_inside() -> flags.FlagHolder[bool]:
  """Defines `--inside`."""
  return flags.DEFINE_bool(
    'inside',
    False,
    'measure in this process; set by the program for those that it starts',
  )


def define_workers(*default: int) -> flags.FlagHolder[list[int]]:
  """Defines `--workers`, numbers of hosts."""
  return command_line.define_list(
    'workers', default, command_line.whole, 'numbers of hosts'
  )


def define_rate() -> flags.FlagHolder[list[str]]:
  """Defines `--rate`, of the links."""
  return command_line.define_list('rate', ('1gbit',), str, 'rates of the links')


def define_loopback() -> flags.FlagHolder[bool]:
  """Defines `--loopback`."""
  return flags.DEFINE_bool(
    'loopback',
    False,
    'run on 127.0.0.1: no rates, no counted bytes, no root needed',
  )


def define_timeout() -> flags.FlagHolder[Any]:
  """Defines `--timeout`, for one start of the workers."""
  return flags.DEFINE_float(
    'timeout', 3600.0, 'seconds that the workers may take for one start'
  )
