"""How a program uses the cluster: nothing stays behind, trouble is told."""

from collections.abc import Iterator
import contextlib

from experiments.cluster import network
from experiments.cluster import processes
from experiments.program import command_line

_NEEDS = (
  'This needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) on Linux. --loopback runs '
  'the same processes on 127.0.0.1, without shaping and without counting bytes.'
)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
  """For the time of a `with` block, a signal ends it and cleans up.

  First removes what programs that were killed have left.

  Raises:
    NotPermittedError: that of the block, with what can be done about it.
    StoppedError: the block was ended by a signal.
  """
  try:
    with processes.stopping_on_signals():
      for name in network.remove_leftovers():
        command_line.say(f'removed {name}, left over from an earlier run')
      yield
  except network.NotPermittedError as error:
    raise network.NotPermittedError(f'{error}\n{_NEEDS}') from error
