"""Shows how far runs are: by a bar, where a person watches, or by lines."""

from collections.abc import Iterator, Mapping
import contextlib
import sys

from absl import logging
from experiments.run import scores
from rich import progress
from rich.console import Console
from rich.table import Column


class Display:
  """A line for each run, that moves; lines of metrics where nobody watches.

  Attributes:
    live: whether it is shown: on standard error, where that is a terminal.
    lines: whether lines are due: there is no bar, or standard output goes
      elsewhere.
  """

  def __init__(self, *, wanted: bool = True, several: bool = False):
    """Prepares the bar; `shown` shows it.

    Args:
      wanted: False in processes that have nothing to say.
      several: of several runs only tests have lines, with the run's name.
    """
    self._several = several
    screen = Console(stderr=True)
    # The cursor stays on: a run may be killed at any time.
    screen.show_cursor = lambda show=True: False
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

  @contextlib.contextmanager
  def shown(self) -> Iterator['Display']:
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
    self._name, self._told, self._tested = name, 0, ''

  def __call__(self, step: int, steps: int, line: Mapping[str, float]) -> None:
    """Takes a step of the run that was started last, see `loop.Progress`."""
    self._bar.update(self._task, completed=step)
    if not line or line['step'] <= self._told:  # it lags one behind
      return
    self._told = line['step']
    tested = scores.worded(scores.tested(line))
    loss = f'loss {line["train/loss"]:.4f}'
    self._tested = tested or self._tested
    self._bar.update(self._task, note=f'{loss}  {self._tested}')
    if self.lines and (tested or not self._several):
      name = self._name if self._several else ''
      done = f'{name}step {self._told}/{steps}  {loss}  {tested}'
      print(done.rstrip(), flush=True)
