"""A cluster on one Linux machine: hosts, a slow network, one process each.

  python -m experiments.cluster --hosts=4 --rate=1gbit -- COMMAND...

runs COMMAND once on each of four hosts, which are network namespaces whose
links carry 1 Gbit/s, and prints how many bytes each of them sent. It needs
root and iproute2; `--loopback` needs neither, and neither shapes nor counts.
The processes find each other by the variables in
`experiments/cluster/environment.py` (`experiments.hosts.multihost` reads
them).
"""

from collections.abc import Sequence
import dataclasses
import time
from typing import IO

from experiments.cluster import environment
from experiments.cluster import network
from experiments.cluster import processes
from experiments.cluster import traffic
from experiments.cluster.guard import guarded as guarded
from experiments.cluster.network import NotPermittedError as NotPermittedError
from experiments.cluster.network import Shape as Shape
from experiments.cluster.network import remove_leftovers as remove_leftovers
from experiments.cluster.processes import Outcome as Outcome
from experiments.program import errors
import pandas as pd

_PORT = 47700  # free on every host: nothing else runs in a new namespace
_IDLE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Result:
  """What a run on the cluster gave.

  Attributes:
    outcome: how the processes ended.
    traffic: see `traffic.crossed`; None on loopback.
  """

  outcome: Outcome
  traffic: pd.DataFrame | None


def run(
  command: Sequence[str],
  *,
  num_hosts: int,
  shape: Shape | None = None,
  loopback: bool = False,
  grace: float = 10.0,
  timeout: float | None = None,
  output: IO[str] | None = None,
) -> Result:
  """Runs a command on every host of a cluster that lives as long as it does.

  Args:
    command: the same on every host.
    num_hosts: how many.
    shape: of the links; 1 Gbit/s without delay if None.
    loopback: all processes on 127.0.0.1: no namespaces, no shaping, no
      counting.
    grace: seconds that processes get to end by themselves after one failed.
    timeout: seconds the processes may take; None: as long as they like.
    output: where their output goes; standard output if None.

  Raises:
    ConfigError: an argument out of range.
    NotPermittedError: namespaces are not to be had.
    StoppedError: a signal, inside `guarded`.
  """

  def start(hosts, port, interface=None):
    coordinator = f'{hosts[0].address}:{port}'
    variables = [
      environment.describe(coordinator, len(hosts), host.number, interface)
      for host in hosts
    ]
    return processes.run(
      hosts, command, variables, grace=grace, timeout=timeout, output=output
    )

  if loopback:
    if num_hosts < 1:
      raise errors.ConfigError(
        f'the number of hosts must be at least 1, got {num_hosts}'
      )
    hosts = [network.Host(i, '127.0.0.1', None) for i in range(num_hosts)]
    return Result(start(hosts, environment.free_port()), None)
  with network.Network(num_hosts, shape or Shape()) as net:
    quiet = traffic.count(net.hosts)
    time.sleep(_IDLE_SECONDS)
    before, began = traffic.count(net.hosts), time.monotonic()
    outcome = start(net.hosts, _PORT, network.INTERFACE)
    after, end = traffic.count(net.hosts), time.monotonic()
  found = traffic.crossed(quiet, before, after, _IDLE_SECONDS, end - began)
  return Result(outcome, found)
