"""The faults of the study: what each does to a run of three hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import signal
import subprocess
import threading
import time

from experiments.cluster import faults
from experiments.cluster import network

HOSTS = 3
CHIEF, VICTIM = 0, 2
_DOWN_SECONDS = 5.0
_SLICE_SECONDS = 0.1  # of which a slow host works a tenth

# When a fault begins: before the processes are started, at a step of theirs, or
# while a checkpoint is written after that.
START, STEP, WRITE = 'start', 'step', 'write'


@dataclasses.dataclass(frozen=True)
class Scene:
  """Where a fault happens.

  Attributes:
    net: the network.
    children: the processes, by number; none yet at `START`.
  """

  net: network.Network
  children: list[subprocess.Popen]


Happening = Callable[[Scene], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True)
class Fault:
  """What goes wrong.

  Attributes:
    what: it is, for the table.
    happen: a `with` block of it.
    when: it begins.
    lost: number of the process that the run loses; None: none.
    dumb: whether that process says nothing any more.
  """

  what: str
  happen: Happening
  when: str = STEP
  lost: int | None = None
  dumb: bool = True


@contextlib.contextmanager
def _link_down(scene: Scene) -> Iterator[None]:
  with faults.unplugged(scene.net, scene.net.hosts[VICTIM]):
    time.sleep(_DOWN_SECONDS)
  yield


@contextlib.contextmanager
def _slow(scene: Scene) -> Iterator[None]:
  """A process gets a tenth of the time."""
  child, over = scene.children[VICTIM], threading.Event()

  def hold_up() -> None:
    while not over.is_set():
      child.send_signal(signal.SIGSTOP)
      time.sleep(0.9 * _SLICE_SECONDS)
      child.send_signal(signal.SIGCONT)
      time.sleep(0.1 * _SLICE_SECONDS)

  thread = threading.Thread(target=hold_up)
  thread.start()
  try:
    yield
  finally:
    over.set()
    thread.join()


def _signal(number: signal.Signals, process: int) -> Happening:
  """A process gets a signal."""

  @contextlib.contextmanager
  def happen(scene: Scene) -> Iterator[None]:
    scene.children[process].send_signal(number)
    yield

  return happen


_kill = functools.partial(_signal, signal.SIGKILL)
_stop = functools.partial(_signal, signal.SIGSTOP)


def _lossy(percent: float) -> Happening:
  return lambda scene: faults.loss(scene.net, percent)


FAULTS = {
  'link_down': Fault('a link down for 5 s and up again', _link_down),
  'loss_1': Fault('1 % of the packets lost', _lossy(1)),
  'loss_5': Fault('5 % of the packets lost', _lossy(5)),
  'delay': Fault(
    '50 ms of delay between two hosts, with 10 ms of jitter',
    lambda scene: faults.delay(scene.net, 25, 5),
    START,
  ),
  'slow': Fault('a host slow by ten', _slow),
  'cut': Fault(
    'a link down for good',
    lambda scene: faults.unplugged(scene.net, scene.net.hosts[VICTIM]),
    lost=VICTIM,
    dumb=False,
  ),
  'killed': Fault('a host killed in an exchange', _kill(VICTIM), lost=VICTIM),
  'killed_writing': Fault(
    'a host killed while a checkpoint is written', _kill(VICTIM), WRITE, VICTIM
  ),
  'hang': Fault('a host that hangs', _stop(VICTIM), lost=VICTIM),
  'chief': Fault('process 0 killed', _kill(CHIEF), lost=CHIEF),
}
