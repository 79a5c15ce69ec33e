"""What a process of a cluster finds in its environment.

`experiments.cluster` sets these for every process that it starts, and
`experiments.hosts.multihost` reads them. Any other launcher may set the first
three as well.

  GRADSPARSE_COORDINATOR    address:port of process 0, `10.77.0.1:47700`
  GRADSPARSE_NUM_PROCESSES  how many processes there are
  GRADSPARSE_PROCESS_ID     which of them this is, from 0
  GRADSPARSE_INTERFACE      network interface of this host, `eth0`; not set
                            where the hosts share one (loopback)
"""

import socket

COORDINATOR = 'GRADSPARSE_COORDINATOR'
NUM_PROCESSES = 'GRADSPARSE_NUM_PROCESSES'
PROCESS_ID = 'GRADSPARSE_PROCESS_ID'
NAMES = (COORDINATOR, NUM_PROCESSES, PROCESS_ID)
INTERFACE = 'GRADSPARSE_INTERFACE'


def describe(
  coordinator: str, num_processes: int, process_id: int, interface: str | None
) -> dict[str, str]:
  """Returns the variables for one process."""
  place = (coordinator, str(num_processes), str(process_id))
  variables = dict(zip(NAMES, place, strict=True))
  return variables if interface is None else {**variables, INTERFACE: interface}


def free_port() -> int:
  """Returns a port of this host for a coordinator; nobody has it now."""
  with socket.socket() as probe:
    probe.bind(('', 0))
    return probe.getsockname()[1]
