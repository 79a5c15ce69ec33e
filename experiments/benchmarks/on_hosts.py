"""Runs the processes of a benchmark on a cluster of its own."""

from collections.abc import Callable, Iterator, Sequence
import itertools
import pathlib
import sys
from typing import Any, NamedTuple

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

flags.disclaim_key_flags()


class FailedError(errors.UserError):
  """A worker failed."""


class Hosts(NamedTuple):
  """The flags of a program that runs on hosts."""

  workers: flags.FlagHolder[list[int]]
  rate: flags.FlagHolder[list[str]]
  loopback: flags.FlagHolder[bool]
  timeout: flags.FlagHolder[float]

  def kinds(self) -> Iterator[tuple[int, str]]:
    """Returns numbers of hosts, each with each rate, or with `LOOPBACK`."""
    rates = [LOOPBACK] if self.loopback.value else self.rate.value
    return itertools.product(self.workers.value, rates)


def define_flags() -> Hosts:
  """Defines the flags of a program that runs on hosts."""
  return Hosts(
    command_line.define_numbers('workers', 4, 'numbers of hosts'),
    command_line.define_list('rate', ('1gbit',), str, 'rates of the links'),
    flags.DEFINE_bool(
      'loopback', False, 'run on 127.0.0.1: no rates, no counted bytes, no root'
    ),
    flags.DEFINE_float(
      'timeout', 3600.0, 'seconds that the workers may take for one start'
    ),
  )


def run(
  command: Sequence[str], workers: int, rate: str, timeout: float
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


def inside(path: pathlib.Path, measure: Callable[[], Any]) -> None:
  """Joins the other processes and measures; the first writes the file."""
  jax.config.update('jax_platforms', 'cpu')
  with multihost.session(collective_timeout=600) as (rank, _):
    found = measure()
    if rank == 0:
      files.write_json(path, found)


def slowest(seconds: float) -> float:
  """The largest of all processes' numbers, which every process gets."""
  everyones = multihost_utils.process_allgather(np.float32(seconds))
  return float(np.max(everyones))
