"""Runs points of a sweep, each in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent import futures
import os
import signal
import subprocess
import sys

from experiments.program import errors
from experiments.program import files
from experiments.program import signals
from experiments.run import records
from experiments.run import scores
from experiments.sweep import points as sweeps


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
  running: set[subprocess.Popen] = set()
  failed: list[sweeps.Point] = []
  heard: list[int] = []

  def hear(number: int, frame: object) -> None:
    del frame
    heard.append(number)
    for child in [*running]:
      child.send_signal(number)

  def finish(point: sweeps.Point) -> None:
    if heard:
      failed.append(point)
      return
    goes_on = (point.folder / records.CONFIG).exists()
    say(f'{point.folder}: {"goes on" if goes_on else "begins"}')
    child = _start(point, writers)
    running.add(child)
    for number in heard:  # meanwhile
      child.send_signal(number)
    status = child.wait()
    running.discard(child)
    summary = point.summary()
    if status == 0 and summary is not None:
      say(f'{point.folder}: {scores.worded(summary["final"])}')
      return
    failed.append(point)
    why = f'ended with status {status}'
    say(f'{point.folder}: {why}: {point.last_words()}')

  with signals.handled(hear), futures.ThreadPoolExecutor(jobs) as pool:
    waiting = []
    for point, finished in zip(points, done, strict=True):
      if finished:
        say(f'{point.folder}: finished already')
      else:
        waiting.append(pool.submit(finish, point))
    for each in waiting:
      each.result()  # raises what a thread has raised
  if heard:
    raise errors.StoppedError(
      f'stopped by {signal.Signals(heard[0]).name}; points not finished: '
      f'{len(failed)}; the same command goes on',
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
