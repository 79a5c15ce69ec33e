"""SIGTERM and Ctrl-C: heard at once, acted on between two steps."""

from collections.abc import Iterator
import contextlib
import os
import signal
import threading

from experiments.program import command_line

HEARD = (signal.SIGTERM, signal.SIGINT)


class Listener:
  """What was heard.

  Attributes:
    asked: number of the signal that was heard, 0 for none.
  """

  def __init__(self) -> None:
    self.asked = 0

  def hear(self, ear: int) -> None:
    """Reads numbers of signals from a pipe, until it is closed."""
    while heard := os.read(ear, 1):
      number = heard[0]
      if number not in HEARD:
        continue
      name = signal.Signals(number).name
      if self.asked:
        command_line.say(f'{name} again: ends at once, nothing more is saved')
        os._exit(128 + number)
      self.asked = number
      command_line.say(
        f'{name}: stops after this step; a second one ends at once'
      )


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
  """Hears the signals that ask a run to stop, for the time of a `with` block.

  A run may wait for minutes in a compilation or for a network, where Python
  handles no signals. So the number of a signal goes through a pipe to a thread
  that is always awake: a second signal ends the process at once, wherever it
  is. Elsewhere than in the main thread nothing can be heard.
  """
  listener = Listener()
  if threading.current_thread() is not threading.main_thread():
    yield listener
    return
  ear, mouth = os.pipe()
  os.set_blocking(mouth, False)
  fd_before = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
  before = {each: signal.signal(each, _pass) for each in HEARD}
  thread = threading.Thread(target=listener.hear, args=(ear,), daemon=True)
  thread.start()
  try:
    yield listener
  finally:
    for each, handler in before.items():
      signal.signal(each, handler)
    signal.set_wakeup_fd(fd_before)
    os.close(mouth)  # the thread reads its end
    thread.join()
    os.close(ear)


def _pass(number: int, frame: object) -> None:
  """Lets the thread act: the wake-up pipe is written only for a handler."""
  del number, frame
