"""SIGTERM and Ctrl-C: the first is acted on between two steps."""

from collections.abc import Iterator
import contextlib
import signal
import threading

from experiments.program import command_line
from experiments.program import signals


class Listener:
  """What was heard.

  Attributes:
    asked: number of the signal that was heard, 0 for none.
  """

  asked = 0


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
  """Hears the signals that ask a run to stop, for the time of a `with` block.

  Python hears a signal between two of its own instructions: one that comes
  while JAX compiles, when that is done. From then on the system itself acts on
  a second one, and ends the process wherever it is. Elsewhere than in the main
  thread nothing can be heard.
  """
  listener = Listener()
  if threading.current_thread() is not threading.main_thread():
    yield listener
    return

  def hear(number: int, frame: object) -> None:
    del frame
    listener.asked = number
    for each in signals.STOPPING:
      signal.signal(each, signal.SIG_DFL)
    command_line.say(
      f'{signal.Signals(number).name}: stops after this step; a second one '
      'ends at once'
    )

  with signals.handled(hear):
    yield listener
