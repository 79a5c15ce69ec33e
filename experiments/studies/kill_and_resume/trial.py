"""One training run of several processes that is killed again and again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import IO, Any

from experiments.cluster import environment
from experiments.cluster import network
from experiments.program import errors
from experiments.run import checkpoints
from experiments.run import manifest
from experiments.run import records
import jax
import numpy as np
import orbax.checkpoint as ocp

# Kept memories, shared state, random rounding, agreement between workers.
SCHEMES: dict[str, dict[str, Any]] = {
  'dgc': {'density': 0.01, 'min_size': 0},
  'gtopk': {'density': 0.01},
  'one_bit_sgd': {},
  'power_sgd': {'rank': 2},
  'qsgd': {'levels': 7, 'min_size': 0},
}
# Where in a run a kill may fall, and how often it does.
KINDS = {'start': 1, 'step': 4, 'write': 5}

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
_POLL_SECONDS = 0.002
_START_SECONDS = 10.0  # a kill while starting falls into these
_REST_SECONDS = 0.2  # the other processes live so much longer
_LIMIT_SECONDS = 600.0  # without progress
_RESUMED = re.compile(r'resuming after step (\d+)')


@dataclasses.dataclass(frozen=True)
class Kill:
  """What happened to a run.

  Attributes:
    kind: of `KINDS`.
    victim: number of the process that was killed first.
    after_step: last step in the metrics then.
    writing: whether a checkpoint was being written.
    resumed: step from which the next attempt went on.
  """

  kind: str
  victim: int
  after_step: int
  writing: bool
  resumed: int


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is run.

  Attributes:
    scheme: one of `SCHEMES`.
    processes: of a run, a worker each.
    steps: of a run.
    every: steps between two checkpoints.
    flags: further ones of the program.
  """

  scheme: str
  processes: int
  steps: int
  every: int
  flags: tuple[str, ...] = ()

  def command(self, workdir: pathlib.Path) -> list[str]:
    """Returns the command of one process."""
    fields = {
      'model.name': 'mlp',
      'train.steps': self.steps,
      'train.batch_size': 4,
      'train.log_every': 1,
      'train.eval_every': 0,
      'train.checkpoint_every': self.every,
      'parallel.runner': 'shard_map',
      'parallel.num_workers': self.processes,
      'compression.name': self.scheme,
      **{f'compression.{k}': v for k, v in SCHEMES[self.scheme].items()},
    }
    return [
      *(sys.executable, '-m', 'experiments.main'),
      f'--config={_REPOSITORY / "configs" / "default.py"}',
      f'--workdir={workdir.absolute()}',
      *(['--multihost'] if self.processes > 1 else []),
      *self.flags,
      *(f'--config.{name}={value}' for name, value in fields.items()),
    ]


class Attempt:
  """The processes of one attempt to reach the last step of a run.

  Attributes:
    children: the processes, by number.
  """

  def __init__(
    self,
    setting: Setting,
    workdir: pathlib.Path,
    hosts: Sequence[network.Host] = (),
  ):
    """Starts them.

    Args:
      setting: of the run.
      workdir: of the run.
      hosts: one for each process; if none, all are on this one.
    """
    hosts = hosts or [network.LOOPBACK] * setting.processes
    coordinator = f'{hosts[0].address}:{environment.free_port()}'
    self._logs = [
      workdir.with_suffix(f'.{number}.log') for number in range(len(hosts))
    ]
    self.children: list[subprocess.Popen] = []
    for number, host in enumerate(hosts):
      place = environment.describe(coordinator, len(hosts), number, None)
      with self._logs[number].open('w') as log:
        command = host.command(setting.command(workdir))
        self.children.append(_start(command, place, log))

  def is_alive(self) -> bool:
    """Whether no process has ended yet."""
    return all(child.poll() is None for child in self.children)

  def kill(self, victim: int) -> None:
    """Kills one process, and the others a moment later."""
    self.children[victim].send_signal(signal.SIGKILL)
    time.sleep(_REST_SECONDS)
    self.end()

  def end(self) -> None:
    """Kills what is left."""
    for child in self.children:
      child.kill()
      child.wait()

  def finish(self) -> None:
    """Waits for the end of all.

    Raises:
      UserError: one of them failed, or does not end; with what it said.
    """
    try:
      statuses = [child.wait(_LIMIT_SECONDS) for child in self.children]
    except subprocess.TimeoutExpired as error:
      raise errors.UserError(f'does not end:\n{self.said()}') from error
    if any(statuses):
      raise errors.UserError(f'ended with {statuses}:\n{self.said()}')

  def said(self, process: int | None = None) -> str:
    """Returns what the processes printed, or one of them."""
    logs = self._logs if process is None else [self._logs[process]]
    return ''.join(log.read_text(errors='replace') for log in logs)

  def resumed(self) -> int:
    """The step from which it went on, 0 where it began or never came so far."""
    found = _RESUMED.search(self.said())
    return int(found[1]) if found else 0


@contextlib.contextmanager
def attempt(
  setting: Setting,
  workdir: pathlib.Path,
  hosts: Sequence[network.Host] = (),
) -> Iterator[Attempt]:
  """An attempt for the time of a `with` block; see `Attempt`."""
  workdir.parent.mkdir(parents=True, exist_ok=True)
  tried = Attempt(setting, workdir, hosts)
  try:
    yield tried
  finally:
    tried.end()


def undisturbed(
  setting: Setting,
  workdir: pathlib.Path,
  hosts: Sequence[network.Host] = (),
) -> None:
  """Makes the run that all others must end like."""
  with attempt(setting, workdir, hosts) as tried:
    tried.finish()


def disturbed(
  setting: Setting, workdir: pathlib.Path, kills: int, rng: random.Random
) -> list[Kill]:
  """Makes a run that is killed on its way, and resumed each time.

  Args:
    setting: of the run.
    workdir: of the run.
    kills: how many at most; fewer where the run reaches its end before.
    rng: draws the moments.

  Returns:
    The kills, in the order in which they happened.
  """
  done: list[Kill] = []
  for count in range(kills + 1):
    with attempt(setting, workdir) as tried:
      killed = None
      if count < kills:
        killed = _kill_once(tried, setting, workdir, rng)
      if killed is None:  # all kills are done, or it was faster
        tried.finish()
      if done:
        done[-1] = dataclasses.replace(done[-1], resumed=tried.resumed())
      if killed is None:
        return done
      done.append(killed)
  return done


def differences(found: pathlib.Path, expected: pathlib.Path) -> list[str]:
  """Returns how a run ended otherwise than another; empty: bit for bit alike.

  The parameters, every line of metrics but its times, and all arrays of the
  last checkpoint, with the workers' memories in them, are compared.
  """
  wrong = []
  for name, read in (
    (records.PARAMS, _params),
    (records.METRICS, _metrics),
    ('the last checkpoint', _state),
  ):
    if read(found) != read(expected):
      wrong.append(name)
  return wrong


def _start(
  command: list[str], place: Mapping[str, str], log: IO[str]
) -> subprocess.Popen:
  variables = {**os.environ, 'JAX_PLATFORMS': 'cpu', **place}
  variables.pop('XLA_FLAGS', None)  # devices of this process
  return subprocess.Popen(
    command,
    cwd=_REPOSITORY,
    env=variables,
    stdin=subprocess.DEVNULL,
    stdout=log,
    stderr=subprocess.STDOUT,
    start_new_session=True,
  )


def _kill_once(
  tried: Attempt,
  setting: Setting,
  workdir: pathlib.Path,
  rng: random.Random,
) -> Kill | None:
  """Kills an attempt at a random moment, or returns None: it came to its end.

  The moment is one while the processes start, or one some steps after the
  last: any, or the next at which a checkpoint is being written.
  """
  (kind,) = rng.choices(list(KINDS), list(KINDS.values()))
  victim = rng.randrange(setting.processes)
  wait = rng.uniform(0, _START_SECONDS if kind == 'start' else 0.03)
  if kind != 'start':
    target = last_step(workdir) + rng.randint(1, 3 * setting.every)
    deadline = time.monotonic() + _LIMIT_SECONDS
    while last_step(workdir) < target or (
      kind == 'write' and not is_writing(workdir)
    ):
      if not tried.is_alive():
        return None
      if time.monotonic() > deadline:
        raise errors.UserError(f'no progress:\n{tried.said()}')
      time.sleep(_POLL_SECONDS)
  time.sleep(wait)
  if not tried.is_alive():
    return None
  writing = is_writing(workdir)
  tried.kill(victim)
  return Kill(kind, victim, last_step(workdir), writing, 0)


def last_step(workdir: pathlib.Path) -> int:
  """Returns the last one in the metrics of a run, 0 for none."""
  lines = records.read_metrics(workdir / records.METRICS)
  return lines[-1]['step'] if lines else 0


def is_writing(workdir: pathlib.Path) -> bool:
  """Whether a checkpoint is being written."""
  return any((workdir / 'checkpoints').glob(f'*{checkpoints.UNFINISHED}'))


def _params(workdir: pathlib.Path) -> dict[str, bytes]:
  with np.load(workdir / records.PARAMS) as archive:
    return {name: archive[name].tobytes() for name in archive}


def _metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
  return [
    {k: v for k, v in line.items() if not k.startswith('time/')}
    for line in records.read_metrics(workdir / records.METRICS)
  ]


def _state(workdir: pathlib.Path) -> list[bytes]:
  """All arrays of the last checkpoint, whichever devices had them."""
  last = max(
    (
      path
      for path in (workdir / 'checkpoints').iterdir()
      if path.name.isdigit()
    ),
    key=lambda path: int(path.name),
  )
  manifest.verify(last)
  orbax = ocp.PyTreeCheckpointer()
  tree = orbax.metadata(last).item_metadata.tree
  as_numpy = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree
  )
  state = orbax.restore(last, restore_args=as_numpy)
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]
