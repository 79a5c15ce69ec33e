"""The one way to show how far runs are: a bar, where a person watches."""

from collections.abc import Iterator
import contextlib
import sys
from typing import Any

from absl import logging
from rich import console as consoles
from rich import progress
from rich.table import Column


class _Screen(consoles.Console):
  """A console that leaves the cursor on: a run may be killed at any time."""

  def show_cursor(self, show: bool = True) -> bool:
    """Does nothing; returns False."""
    del show
    return False


class Bar:
  """A line for each run, that moves; nothing where nobody watches.

  Attributes:
    live: whether it is shown: on standard error, where that is a terminal.
    lines: whether lines are due: there is no bar, or standard output goes
      elsewhere.
  """

  def __init__(self, *, wanted: bool = True):
    """Prepares the bar; `shown` shows it.

    Args:
      wanted: False in processes that have nothing to say.
    """
    screen = _Screen(stderr=True)
    self.live = wanted and sys.stderr.isatty() and screen.is_interactive
    self.lines = not (self.live and sys.stdout.isatty())
    narrow = Column(no_wrap=True, overflow='ellipsis')
    self._bar = progress.Progress(
      progress.TextColumn('{task.description}', table_column=narrow),
      progress.BarColumn(bar_width=20),
      progress.MofNCompleteColumn(),
      progress.TimeElapsedColumn(),
      progress.TextColumn('{task.fields[note]}', table_column=narrow),
      console=screen,
      disable=not self.live,
      # What goes to a file is not for this screen.
      redirect_stdout=sys.stdout.isatty(),
    )
    self._task: Any = None

  @contextlib.contextmanager
  def shown(self) -> Iterator['Bar']:
    """Shows it; what is printed and logged meanwhile goes above it."""
    if not self.live:
      yield self
      return
    handler = logging.get_absl_handler().python_handler
    # It has the stream that was there when it was made; --log_dir's is a file.
    before, follows = handler.stream, handler.stream is sys.stderr
    with self._bar:
      if follows:
        handler.setStream(sys.stderr)
      try:
        yield self
      finally:
        handler.setStream(before)

  def start(self, name: str, steps: int) -> None:
    """Begins the line of a run."""
    self._task = self._bar.add_task(name, total=steps, note='compiling')

  def update(self, step: int, note: str | None = None) -> None:
    """Moves the line of the run that was started last.

    Args:
      step: that is done.
      note: what stands behind it; as it was if None.
    """
    fields = {} if note is None else {'note': note}
    self._bar.update(self._task, completed=step, **fields)
