"""A run of three hosts while one of them, or the network, fails.

Each fault has a run of its own, on hosts of `experiments.cluster`. Either the
run goes on, or all of its processes end in bounded time, each with one line
that names the lost process, and then the same command resumes the run. At the
end nothing may differ from an undisturbed run. docs/faults.md has the table.
"""

import contextlib
import dataclasses
import re
import signal
import threading
import time
from typing import NamedTuple

from experiments.cluster import network
from experiments.hosts import watch
from experiments.program import tables
import pandas as pd
import pytest
from tests.experiments.cluster import faults
from tests.experiments.faults import attempts

_HOSTS, _CHIEF, _VICTIM = 3, 0, 2
_STEPS, _AFTER, _EVERY = 60, 25, 10
_HOST_TIMEOUT = 20.0
# A process may take longer than the timeout to end: the beat that was the last
# before the fault, what it still tells the others, a slow machine.
_BOUND_SECONDS = _HOST_TIMEOUT + 10.0
_WENT_ON, _ENDED, _WAITED = 'went on', 'all ended', 'did not end'

# What no user should have to read: traces of Python's and C++' stacks, and the
# messages of the libraries below.
_NOISE = re.compile(r'Traceback|\*\*\* |\s+@ +0x|[EF]\d{4} \d\d:|terminate')


class Fault(NamedTuple):
  """What goes wrong.

  Attributes:
    what: it is, for the table.
    happen: `(network, processes)` to a `with` block of it; None for processes
      if it begins before they start.
    when: it begins: 'start', 'step', or 'write', while a checkpoint is written.
    lost: number of the process that the run loses; None: none.
    dumb: whether that process says nothing any more.
  """

  what: str
  happen: object
  when: str = 'step'
  lost: int | None = None
  dumb: bool = True


@contextlib.contextmanager
def _link_down(net, _):
  with faults.unplugged(net, net.hosts[_VICTIM]):
    time.sleep(5)
  yield


@contextlib.contextmanager
def _slow(_, children):
  """A process gets a tenth of the time."""
  over = threading.Event()

  def hold_up():
    while not over.is_set():
      children[_VICTIM].send_signal(signal.SIGSTOP)
      time.sleep(0.09)
      children[_VICTIM].send_signal(signal.SIGCONT)
      time.sleep(0.01)

  thread = threading.Thread(target=hold_up)
  thread.start()
  try:
    yield
  finally:
    over.set()
    thread.join()


def _signal(number, process):
  @contextlib.contextmanager
  def happen(_, children):
    children[process].send_signal(number)
    yield

  return happen


_kill_victim = _signal(signal.SIGKILL, _VICTIM)
FAULTS = {
  'link_down': Fault('a link down for 5 s and up again', _link_down),
  'loss_1': Fault('1 % of the packets lost', lambda n, _: faults.loss(n, 1)),
  'loss_5': Fault('5 % of the packets lost', lambda n, _: faults.loss(n, 5)),
  'delay': Fault(
    '50 ms of delay between two hosts, with 10 ms of jitter',
    lambda net, _: faults.delay(net, 25, 5),
    'start',
  ),
  'slow': Fault('a host slow by ten', _slow),
  'cut': Fault(
    'a link down for good',
    lambda net, _: faults.unplugged(net, net.hosts[_VICTIM]),
    lost=_VICTIM,
    dumb=False,
  ),
  'killed': Fault('a host killed in an exchange', _kill_victim, lost=_VICTIM),
  'killed_writing': Fault(
    'a host killed while a checkpoint is written',
    _kill_victim,
    'write',
    _VICTIM,
  ),
  'hang': Fault(
    'a host that hangs', _signal(signal.SIGSTOP, _VICTIM), lost=_VICTIM
  ),
  'chief': Fault(
    'process 0 killed', _signal(signal.SIGKILL, _CHIEF), lost=_CHIEF
  ),
}


@dataclasses.dataclass
class Row:
  """What came of a fault; the step in the metrics when it began.

  Those whom it ends or mutes have no status and say nothing; the others have
  said their last line, if the run ended.
  """

  fault: str
  happened: str
  seconds: float
  after_step: int
  statuses: list[int | None]
  said: list[str]
  noise: int
  resumed: int = 0
  differences: list[str] = dataclasses.field(default_factory=list)
  as_promised: bool = False


def _is_as_promised(row):
  """Whether nothing was lost, and an end was bounded and plain.

  Plain: the last line of every process that could speak names another one, and
  nothing of what happened inside is to be seen.
  """
  if row.happened == _WENT_ON:
    return not row.differences
  return (
    row.happened == _ENDED
    and not row.differences
    and not row.noise
    and row.seconds <= _BOUND_SECONDS
    and len(row.said) >= _HOSTS - 1
    and all(line.startswith('error: lost process') for line in row.said)
  )


def _disturbed(name, net, setting, workdir):
  """One run under a fault."""
  fault = FAULTS[name]
  alive = [n for n in range(_HOSTS) if not (fault.dumb and n == fault.lost)]
  statuses = [None] * _HOSTS
  with contextlib.ExitStack() as stack:
    started, step = time.monotonic(), 0
    if fault.when == 'start':
      stack.enter_context(fault.happen(net, None))
    tried = stack.enter_context(attempts.Attempt(setting, workdir, net.hosts))
    if fault.when != 'start':
      assert tried.reaches(_AFTER, fault.when == 'write'), tried.said(0)
      started, step = time.monotonic(), attempts.last_step(workdir)
      stack.enter_context(fault.happen(net, tried.children))
    deadline = started + attempts.LIMIT_SECONDS
    while None in (now := [tried.children[n].poll() for n in alive]):
      if time.monotonic() > deadline:
        break
      time.sleep(attempts.POLL_SECONDS)
    seconds = time.monotonic() - started
    for number, status in zip(alive, now, strict=True):
      statuses[number] = status
    logs = [tried.said(number).splitlines() for number in alive]
  happened = _WAITED if None in now else _ENDED if any(now) else _WENT_ON
  return Row(
    fault=name,
    happened=happened,
    seconds=round(seconds, 1),
    after_step=step,
    statuses=statuses,
    said=[] if happened == _WENT_ON else [(log or [''])[-1] for log in logs],
    noise=sum(bool(_NOISE.match(line)) for log in logs for line in log),
  )


@pytest.fixture(scope='module')
def setting():
  flags = (f'--host_timeout={_HOST_TIMEOUT}',)
  return attempts.Setting('dgc', _HOSTS, _STEPS, _EVERY, flags)


@pytest.fixture(scope='module')
def whole(setting, tmp_path_factory):
  """The undisturbed run."""
  workdir = tmp_path_factory.mktemp('faults') / 'whole'
  with (
    network.Network(_HOSTS, network.Shape()) as net,
    attempts.Attempt(setting, workdir, net.hosts) as tried,
  ):
    tried.finish()
  return workdir


@pytest.fixture(scope='module')
def rows():
  """Of the record, which is kept as it grows."""
  return []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('name', FAULTS)
def test_nothing_is_lost(namespaces, name, setting, request, rows, tmp_path):
  whole = request.getfixturevalue('whole')  # after `namespaces`, which skips
  workdir = tmp_path / name
  with network.Network(_HOSTS, network.Shape()) as net:
    row = _disturbed(name, net, setting, workdir)
    if row.happened != _WENT_ON:
      with attempts.Attempt(setting, workdir, net.hosts) as again:
        row.resumed = again.finish()
  row.differences = attempts.differences(workdir, whole)
  row.as_promised = _is_as_promised(row)
  rows.append(dataclasses.asdict(row))
  attempts.keep(
    {
      'scheme': setting.scheme,
      'hosts': _HOSTS,
      'steps': _STEPS,
      'checkpoint_every': _EVERY,
      'host_timeout': _HOST_TIMEOUT,
      'bound_seconds': _BOUND_SECONDS,
      'rows': rows,
    }
  )
  lost = FAULTS[name].lost
  assert row.as_promised, row
  assert (row.happened == _WENT_ON) == (lost is None), row
  if name in ('killed', 'killed_writing', 'hang', 'chief'):
    start = f'error: lost process {lost} of 3 ('
    assert all(line.startswith(start) for line in row.said), row


_SAID = 'error: lost process 2 of 3 (far, 10.77.0.3): its connection broke; x'
_ROW = Row('killed', _ENDED, 3.04, 25, [75, 75, None], [_SAID, _SAID], 0, 20)


@pytest.mark.parametrize(
  'changes, kept',
  [
    ({}, True),
    ({'happened': _WENT_ON, 'said': [], 'seconds': 100.0}, True),
    ({'said': [_SAID] * 3}, True),
    # XLA says how slow a compilation is on a machine that is busy.
    ({'happened': _WENT_ON, 'said': [], 'noise': 6}, True),
    ({'differences': ['params.npz']}, False),
    ({'seconds': 30.5}, False),
    ({'happened': _WAITED}, False),
    ({'noise': 1}, False),
    ({'said': [_SAID]}, False),
    ({'said': [_SAID, 'Aborted']}, False),
  ],
)
def test_what_is_promised(changes, kept):
  assert _is_as_promised(dataclasses.replace(_ROW, **changes)) == kept


@pytest.mark.parametrize(
  'line',
  [
    'Traceback (most recent call last):',
    '*** Check failure stack trace: ***',
    '    @     0x7fac90a40634  absl::lts_20260107::log_internal::SendToLog()',
    'F1122 09:09:11.797824    6694 client.h:80] Terminating process because',
    "terminate called after throwing an instance of 'std::bad_cast'",
  ],
)
def test_noise_is_seen(line):
  assert _NOISE.match(line)
  assert not _NOISE.match(_SAID)
  assert not _NOISE.match('step 3/60  loss 2.3026')


def _cells(row):
  """Of docs/faults.md; each line that was said once, to the semicolon."""
  said = dict.fromkeys(line.partition(';')[0] for line in row['said'])
  return (
    FAULTS[row['fault']].what,
    row['happened'],
    f'{row["seconds"]:.1f}',
    '<br>'.join(f'`{line}`' for line in said) or '-',
    str(row['resumed']) if said else '-',
    ', '.join(row['differences']) or 'nothing',
  )


def test_the_page_has_the_recorded_table():
  rows = attempts.recorded('network_faults')['rows']
  head = (
    *('fault', 'what happened', 'after s', 'what was said'),
    *('went on after step', 'what was lost'),
  )
  table = tables.markdown(
    pd.DataFrame([_cells(row) for row in rows], columns=head)
  )
  assert table in attempts.page('faults'), f'paste\n{table}'
  assert [row['fault'] for row in rows] == list(FAULTS)
  assert all(row['as_promised'] for row in rows)


def test_without_the_watch_nobody_names_the_lost_process():
  """As docs/faults.md says."""
  by_jax = attempts.recorded('network_faults_by_jax')['rows']
  ours = attempts.recorded('network_faults')['rows']
  assert [(row['fault'], row['happened']) for row in by_jax] == [
    (row['fault'], row['happened']) for row in ours
  ]
  ended = [row for row in by_jax if row['happened'] == _ENDED]
  seconds = [row['seconds'] for row in ended]
  words = ' '.join(attempts.page('faults').split())
  assert f'ended in {min(seconds)} to {max(seconds)} s' in words
  assert not any(row['differences'] for row in by_jax)
  for row in ended:
    assert not any('lost process' in line for line in row['said'])
    assert row['noise'] and watch.EXIT_LOST not in row['statuses']
