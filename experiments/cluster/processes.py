"""One process a host: started together, heard together, ended together."""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO

from experiments.cluster import network

# How long a process may take to end after SIGTERM before it is killed. JAX's
# preemption service swallows SIGTERM, so this is not for unruly ones only.
_TERMINATE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How the processes ended.

  Attributes:
    statuses: of each host: the exit status, or minus the signal's number.
    first_failed: number of the host whose process failed first, None if all
      ended well.
    timed_out: the time limit ended the run.
  """

  statuses: tuple[int, ...]
  first_failed: int | None = None
  timed_out: bool = False

  def __str__(self) -> str:
    if self.timed_out:
      return 'time limit reached'
    if self.first_failed is None:
      return 'all processes ended well'
    status = self.statuses[self.first_failed]
    how = f'ended with status {status}'
    if status < 0:
      how = f'was killed by {signal.Signals(-status).name}'
    return f'the process of host{self.first_failed} failed: it {how}'


_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
  """In the child: be killed when this program is, even by SIGKILL."""
  _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def run(
  hosts: Sequence[network.Host],
  command: Sequence[str],
  variables: Sequence[Mapping[str, str]],
  *,
  grace: float,
  timeout: float | None = None,
  output: IO[str] | None = None,
) -> Outcome:
  """Runs a command on every host until all processes have ended.

  Args:
    hosts: where.
    command: the same on every host.
    variables: of the environment, of each host.
    grace: seconds that the others get to end by themselves after one has
      failed; then they are told to, and killed 3 seconds later.
    timeout: seconds after which all are ended in the same way; None: never.
    output: where the lines go that the processes print, each with the name
      of its host in front; standard output if None.

  Raises:
    StoppedError: a signal arrived (see `guard.guarded`); the processes
      have been ended.
  """
  children: list[subprocess.Popen] = []
  deadline = None if timeout is None else time.monotonic() + timeout
  timed_out, first_failed, threads = False, None, []
  try:
    for host, own in zip(hosts, variables, strict=True):
      children.append(_start(host, command, own))
    for host, child in zip(hosts, children, strict=True):
      # No thread yet when the last one is forked.
      given = (child.stdout, f'{host.name} | ', output or sys.stdout)
      threads.append(threading.Thread(target=_pass_on, args=given, daemon=True))
      threads[-1].start()
    while any(child.poll() is None for child in children):
      failed = [i for i, child in enumerate(children) if child.poll()]
      if failed and first_failed is None:
        first_failed = failed[0]
        ending = time.monotonic() + grace
        deadline = ending if deadline is None else min(deadline, ending)
      if deadline is not None and time.monotonic() > deadline:
        timed_out = first_failed is None
        break
      time.sleep(_POLL_SECONDS)
  finally:
    statuses = _end(children)
    # A signal may come before the last one is started.
    for thread in filter(threading.Thread.is_alive, threads):
      thread.join(timeout=2)  # a grandchild may hold the pipe open
  if first_failed is None and not timed_out:
    first_failed = next((i for i, s in enumerate(statuses) if s), None)
  return Outcome(statuses, first_failed, timed_out)


def _start(
  host: network.Host, command: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen:
  return subprocess.Popen(
    host.command(list(command)),
    env={**os.environ, 'PYTHONUNBUFFERED': '1', **variables},
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    errors='replace',
    # A session of its own: Ctrl-C reaches us alone, and a signal to the group
    # reaches what the child has started.
    start_new_session=True,
    preexec_fn=_die_with_parent,
  )


def _pass_on(lines: Iterable[str], head: str, output: IO[str]) -> None:
  """Writes what a process prints, each line at once."""
  for line in lines:
    output.write(f'{head}{line.rstrip()}\n')
    output.flush()


def _end(children: Sequence[subprocess.Popen]) -> tuple[int, ...]:
  """Ends what still runs, and reaps all."""
  for child in children:
    if child.poll() is None:
      _signal(child, signal.SIGTERM)
  deadline = time.monotonic() + _TERMINATE_SECONDS
  while time.monotonic() < deadline:
    if all(child.poll() is not None for child in children):
      break
    time.sleep(_POLL_SECONDS)
  for child in children:
    _signal(child, signal.SIGKILL)  # and what is left of its group
  return tuple(child.wait() for child in children)


def _signal(child: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(child.pid, number)
