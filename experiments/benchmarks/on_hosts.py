"""Runs the processes of a benchmark on a cluster of its own."""

from collections.abc import Sequence
import sys
from typing import Any

from absl import flags
from experiments import cluster
from experiments.program import command_line
from experiments.program import errors

# In place of a rate: all processes on 127.0.0.1, nothing shaped or counted.
LOOPBACK = 'loopback'

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
