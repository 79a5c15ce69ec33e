"""One run under one fault, and the same command after it."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import time

from experiments.cluster import network
from experiments.program import errors
from experiments.studies.kill_and_resume import trial
from experiments.studies.network_faults import faults

WENT_ON, ENDED, WAITED = 'went on', 'all ended', 'did not end'

_POLL_SECONDS = 0.002
_LIMIT_SECONDS = 900.0  # until a fault begins, and from there to the end

# What no user should have to read: traces of Python's and C++' stacks, and the
# messages of the libraries below.
_NOISE = re.compile(r'Traceback|\*\*\* |\s+@ +0x|[EF]\d{4} \d\d:|terminate')


@dataclasses.dataclass(frozen=True)
class Row:
  """What came of a fault.

  Attributes:
    fault: of `faults.FAULTS`.
    happened: one of the three above.
    seconds: from the beginning of the fault to the end of the last process.
    after_step: the last in the metrics when it began.
    statuses: of the processes; those that a fault ends, or mutes, are None.
    said: last line of each process that could speak, where the run ended.
    noise: lines of stack traces and the like.
    resumed: the step from which the same command went on, 0: from the first.
    differences: from the undisturbed run at the end; none: bit for bit alike.
    as_promised: see `is_as_promised`.
  """

  fault: str
  happened: str
  seconds: float
  after_step: int
  statuses: list[int | None]
  said: list[str]
  noise: int
  resumed: int
  differences: list[str]
  as_promised: bool = False


def run(
  name: str,
  setting: trial.Setting,
  workdir: pathlib.Path,
  whole: pathlib.Path,
  after: int,
  bound: float,
) -> Row:
  """Makes a run under a fault, and resumes it where it has ended.

  Args:
    name: of the fault.
    setting: of the run.
    workdir: of the run.
    whole: that of the undisturbed run.
    after: the step that is waited for before the fault.
    bound: seconds in which all processes must end, if they do.

  Raises:
    UserError: the run does not come to where the fault begins, or the same
      command fails after it.
  """
  fault = faults.FAULTS[name]
  with network.Network(faults.HOSTS, network.Shape()) as net:
    row = _disturbed(name, fault, net, setting, workdir, after)
    if row.happened != WENT_ON:
      with trial.attempt(setting, workdir, net.hosts) as again:
        again.finish()
      row = dataclasses.replace(row, resumed=again.resumed())
  row = dataclasses.replace(row, differences=trial.differences(workdir, whole))
  return dataclasses.replace(row, as_promised=is_as_promised(row, bound))


def is_as_promised(row: Row, bound: float) -> bool:
  """Whether nothing was lost, and an end was bounded and plain.

  Plain: the last line of every process that could speak names another one, and
  nothing of what happened inside is to be seen.
  """
  if row.happened == WENT_ON:
    return not row.differences
  named = [line for line in row.said if line.startswith('error: lost process')]
  return (
    row.happened == ENDED
    and not row.differences
    and not row.noise
    and row.seconds <= bound
    and len(row.said) >= faults.HOSTS - 1
    and named == row.said
  )


def is_noise(line: str) -> bool:
  """Whether a line is of a stack trace, or of a library's log."""
  return bool(_NOISE.match(line))


def _disturbed(
  name: str,
  fault: faults.Fault,
  net: network.Network,
  setting: trial.Setting,
  workdir: pathlib.Path,
  after: int,
) -> Row:
  with contextlib.ExitStack() as stack:
    started = time.monotonic()
    if fault.when == faults.START:
      stack.enter_context(fault.happen(faults.Scene(net, [])))
    tried = stack.enter_context(trial.attempt(setting, workdir, net.hosts))
    step = 0
    if fault.when != faults.START:
      step = _await(tried, workdir, after, fault.when == faults.WRITE)
      started = time.monotonic()
      stack.enter_context(fault.happen(faults.Scene(net, tried.children)))
    numbers = [
      number
      for number in range(faults.HOSTS)
      if not (fault.dumb and number == fault.lost)
    ]
    statuses: list[int | None] = [None] * faults.HOSTS
    has_ended = _await_end(tried, numbers)
    seconds = time.monotonic() - started
    for number in numbers:
      statuses[number] = tried.children[number].poll()
    happened = WAITED
    if has_ended:
      went_on = not any(statuses[number] for number in numbers)
      happened = WENT_ON if went_on else ENDED
    logs = [tried.said(number).splitlines() for number in numbers]
  return Row(
    fault=name,
    happened=happened,
    seconds=round(seconds, 1),
    after_step=step,
    statuses=statuses,
    said=[] if happened == WENT_ON else [(log or [''])[-1] for log in logs],
    noise=sum(is_noise(line) for log in logs for line in log),
    resumed=0,
    differences=[],
  )


def _await(
  tried: trial.Attempt, workdir: pathlib.Path, step: int, writing: bool
) -> int:
  """Waits for a step, and perhaps for a checkpoint being written after it."""
  deadline = time.monotonic() + _LIMIT_SECONDS
  while (found := trial.last_step(workdir)) < step or (
    writing and not trial.is_writing(workdir)
  ):
    if not tried.is_alive() or time.monotonic() > deadline:
      raise errors.UserError(f'did not come to step {step}:\n{tried.said()}')
    time.sleep(_POLL_SECONDS)
  return found


def _await_end(tried: trial.Attempt, numbers: list[int]) -> bool:
  deadline = time.monotonic() + _LIMIT_SECONDS
  while any(tried.children[number].poll() is None for number in numbers):
    if time.monotonic() > deadline:
      return False
    time.sleep(_POLL_SECONDS)
  return True
