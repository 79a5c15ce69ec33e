"""Cleans up after a cluster, and says what it needs."""

from collections.abc import Iterator
import contextlib
import signal

from experiments.cluster import network
from experiments.program import command_line
from experiments.program import errors
from experiments.program import signals

_SIGNALS = (*signals.STOPPING, signal.SIGHUP)
_NEEDS = (
  'This needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN) on Linux. --loopback runs '
  'the same processes on 127.0.0.1, without shaping and without counting bytes.'
)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
  """Makes a signal end a `with` block, with its clean-up.

  Further signals are ignored to the end of the block, so that they cannot
  interrupt the clean-up, whose time is bounded. First removes what killed
  programs have left.

  Raises:
    NotPermittedError: the block's own, with what to do about it.
    StoppedError: the block was ended by a signal.
  """

  def stop(number, frame):
    del frame
    for each in _SIGNALS:
      signal.signal(each, signal.SIG_IGN)
    told = f'stopped by {signal.Signals(number).name}'
    raise errors.StoppedError(f'{told}; everything is cleaned up', number)

  try:
    with signals.handled(stop, _SIGNALS):
      for name in network.remove_leftovers():
        command_line.say(f'removed {name}, left over from an earlier run')
      yield
  except network.NotPermittedError as error:
    raise network.NotPermittedError(f'{error}\n{_NEEDS}') from error
