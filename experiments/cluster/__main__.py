"""Makes a cluster of hosts on this machine, and runs a command on each.

  python -m experiments.cluster --hosts=4 --rate=1gbit -- COMMAND...

The hosts are network namespaces on this machine with links of 1 Gbit/s. The
program prints how many bytes each host sent. It needs root and iproute2.
`--loopback` needs neither, but shapes no link and counts no bytes.

The command finds these in its environment:
  GRADSPARSE_COORDINATOR    address:port of process 0
  GRADSPARSE_NUM_PROCESSES  how many processes there are
  GRADSPARSE_PROCESS_ID     which of them this is, from 0
  GRADSPARSE_INTERFACE      network interface of this host, not with --loopback
"""

from collections.abc import Sequence

from absl import flags
from experiments import cluster
from experiments.program import command_line

_HOSTS = flags.DEFINE_integer('hosts', 2, 'number of hosts')
_RATE = flags.DEFINE_string(
  'rate', '1gbit', "rate of every link, such as 100mbit, or 'unlimited'"
)
_DELAY = flags.DEFINE_string('delay', None, 'delay of each packet, such as 1ms')
_LOOPBACK = flags.DEFINE_bool(
  'loopback', False, 'no network namespaces, for where they are not permitted'
)
_GRACE = flags.DEFINE_float(
  'grace', 10.0, 'seconds that others may go on after one process has failed'
)
_TIMEOUT = flags.DEFINE_float(
  'timeout', None, 'seconds that the whole run may take'
)

_EXIT_FAILED, _EXIT_TIMEOUT = 1, 124
_LOOPBACK_NOTE = (
  'loopback: all processes on 127.0.0.1, without shaping; bytes are not counted'
)


def main(command: Sequence[str]) -> int:
  """Runs the command on the cluster; returns the exit status."""
  with cluster.guarded():
    if _LOOPBACK.value:
      command_line.say(_LOOPBACK_NOTE)
    result = cluster.run(
      command,
      num_hosts=_HOSTS.value,
      shape=cluster.Shape(_RATE.value, _DELAY.value),
      loopback=_LOOPBACK.value,
      grace=_GRACE.value,
      timeout=_TIMEOUT.value,
    )
  if result.traffic is not None:
    command_line.say(result.traffic.map('{:,}'.format).to_string())
  if result.outcome.timed_out:
    command_line.say(f'error: the run took more than {_TIMEOUT.value:g} s')
    return _EXIT_TIMEOUT
  if result.outcome.first_failed is not None:
    command_line.say(f'error: {result.outcome}')
    return _EXIT_FAILED
  return 0


if __name__ == '__main__':
  command_line.run(main, arguments='-- COMMAND...')
