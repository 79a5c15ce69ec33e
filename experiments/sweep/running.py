"""Runs points of a sweep, each in a process of its own."""

from collections.abc import Callable, Sequence
import os
import signal
import subprocess
import sys
import time

from experiments.program import errors
from experiments.program import files
from experiments.run import records
from experiments.run import scores
from experiments.sweep import points as sweeps

_POLL = 0.1  # seconds


def run(
  points: Sequence[sweeps.Point],
  *,
  jobs: int,
  writers: Sequence[str] = (),
  say: Callable[[str], None] = print,
) -> list[sweeps.Point]:
  """Runs `experiments.main` for each point that is not finished.

  It begins, or goes on from the checkpoint that the point's folder has. What
  it says is added to `output.txt` there. SIGTERM and Ctrl-C are passed on to
  the runs, which stop after their step, and no further one begins.

  Args:
    points: which.
    jobs: how many of them run at once.
    writers: `--writer` of each.
    say: is told of each.

  Returns:
    The points that came to no end.

  Raises:
    ResumeError: a folder has the result of a run with other fields.
    StoppedError: SIGTERM or Ctrl-C.
  """
  done = [point.summary() is not None for point in points]
  for point, finished in zip(points, done, strict=True):
    if finished:
      say(f'{point.folder}: finished already')
  waiting = [p for p, f in zip(points, done, strict=True) if not f]
  running: dict[subprocess.Popen, sweeps.Point] = {}
  failed: list[sweeps.Point] = []
  heard: list[int] = []
  before = {
    number: signal.signal(number, lambda number, frame: heard.append(number))
    for number in (signal.SIGTERM, signal.SIGINT)
  }
  told = 0
  try:
    while running or (waiting and not heard):
      while waiting and len(running) < jobs and not heard:
        point = waiting.pop(0)
        goes_on = (point.folder / records.CONFIG).exists()
        say(f'{point.folder}: {"goes on" if goes_on else "begins"}')
        running[_start(point, writers)] = point
      for number in heard[told:]:
        for child in running:
          child.send_signal(number)
        told += 1
      time.sleep(_POLL)
      for child in [c for c in running if c.poll() is not None]:
        point = running.pop(child)
        summary = point.summary()
        if child.returncode == 0 and summary is not None:
          say(f'{point.folder}: {scores.worded(summary["final"])}')
          continue
        failed.append(point)
        why = f'ended with status {child.returncode}'
        say(f'{point.folder}: {why}: {point.last_words()}')
  finally:
    for child in running:  # none, unless something went wrong here
      child.terminate()
    for number, handler in before.items():
      signal.signal(number, handler)
  if heard:
    left = len(failed) + len(waiting)
    raise errors.StoppedError(
      f'stopped by {signal.Signals(heard[0]).name}, {left} points are not '
      'finished; the same command goes on',
      heard[0],
    )
  return failed


def _start(point: sweeps.Point, writers: Sequence[str]) -> subprocess.Popen:
  """Starts the run of a point."""
  files.make_folder(point.folder)
  output = point.folder / sweeps.OUTPUT
  workdir = f'--workdir={point.folder}'
  command = [sys.executable, '-m', 'experiments.main', *point.words, workdir]
  if writers:
    command.append(f'--writer={",".join(writers)}')
  with files.explained('write', output), output.open('ab') as file:
    return subprocess.Popen(
      command,
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'PYTHONUNBUFFERED': '1'},
      # Else Ctrl-C would reach it twice: from the terminal, and from us.
      process_group=0,
    )
