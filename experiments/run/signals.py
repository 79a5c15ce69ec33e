"""SIGTERM and Ctrl-C: heard at once, acted on between two steps."""

import os
import signal
import threading

from experiments.program import command_line

HEARD = (signal.SIGTERM, signal.SIGINT)


class Listener:
  """Hears the signals that ask a run to stop, for the time of a `with` block.

  A run may wait for minutes in a compilation or for a network, where Python
  handles no signals. So the number of a signal goes through a pipe to a thread
  that is always awake: a second signal ends the process at once, wherever it
  is. Elsewhere than in the main thread nothing can be heard.

  Attributes:
    asked: number of the signal that was heard, 0 for none.
  """

  def __init__(self) -> None:
    self.asked = 0
    self._undo: list[tuple[int, object]] = []

  def __enter__(self) -> 'Listener':
    if threading.current_thread() is not threading.main_thread():
      return self
    self._ear, self._mouth = os.pipe()
    os.set_blocking(self._mouth, False)
    self._fd_before = signal.set_wakeup_fd(
      self._mouth, warn_on_full_buffer=False
    )
    self._undo = [(each, signal.signal(each, _pass)) for each in HEARD]
    self._thread = threading.Thread(target=self._hear, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    if not self._undo:
      return
    for each, handler in self._undo:
      signal.signal(each, handler)
    signal.set_wakeup_fd(self._fd_before)
    os.close(self._mouth)  # the thread reads its end
    self._thread.join()
    os.close(self._ear)

  def _hear(self) -> None:
    while heard := os.read(self._ear, 1):
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


def _pass(number: int, frame: object) -> None:
  """Lets the thread act: the wake-up pipe is written only for a handler."""
  del number, frame
