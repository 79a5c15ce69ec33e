"""Signals that a program handles for a while.

SIGTERM and Ctrl-C ask a run to stop: the first is acted on between two steps.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import signal
import threading
from typing import Any

from experiments.program import command_line

STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def handled(
  handler: Callable[[int, Any], None], numbers: Sequence[int] = STOPPING
) -> Iterator[None]:
  """Calls a handler for signals in a `with` block, then what was before."""
  before = {number: signal.signal(number, handler) for number in numbers}
  try:
    yield
  finally:
    for number, former in before.items():
      signal.signal(number, former)


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
    for each in STOPPING:
      signal.signal(each, signal.SIG_DFL)
    command_line.say(
      f'{signal.Signals(number).name}: stops after this step; a second one '
      'ends at once'
    )

  with handled(hear):
    yield listener
