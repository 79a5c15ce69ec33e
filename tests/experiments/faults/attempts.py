"""Runs of several processes that end before their time, and how they end.

A run is a perceptron on the digits, with a worker in each process. The tests
beside this file disturb it; a variable, `GRADSPARSE_RECORD`, names a JSON file
for what they have measured.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

from experiments.cluster import environment
from experiments.cluster import network
from experiments.program import files
from experiments.program import manifest
from experiments.run import checkpoints
from experiments.run import machine
from experiments.run import records
import jax
import numpy as np
import orbax.checkpoint as ocp

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
LIMIT_SECONDS = 900.0  # without progress
POLL_SECONDS = 0.002
_LOOPBACK = network.Host(0, '127.0.0.1', None)
_RESUMED = re.compile(r'resuming after step (\d+)')

# Kept memories, shared state, random rounding, agreement between workers, and
# an outer step, between whose exchanges parameters differ. Names of fields
# that have no dot are of `compression`.
SCHEMES: dict[str, dict[str, Any]] = {
  'dgc': {'density': 0.01, 'min_size': 0},
  'gtopk': {'density': 0.01},
  'one_bit_sgd': {},
  'power_sgd': {'rank': 2},
  'qsgd': {'levels': 7, 'min_size': 0},
  'outer': {
    'name': 'gradient_dropping',
    'density': 0.05,
    'min_size': 0,
    'optimizer.name': 'adamw',
    'optimizer.sync_every': 3,
  },
}


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is run: steps in all and between checkpoints, more flags."""

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
      **{
        name if '.' in name else f'compression.{name}': value
        for name, value in SCHEMES[self.scheme].items()
      },
    }
    return [
      *(sys.executable, '-m', 'experiments.main'),
      '--config=configs/default.py',
      f'--workdir={workdir.absolute()}',
      *(['--multihost'] if self.processes > 1 else []),
      *self.flags,
      *(f'--config.{name}={value}' for name, value in fields.items()),
    ]


class Attempt:
  """The processes of one attempt to reach the last step of a run.

  It is a context manager, which starts them and kills what is left of them.
  """

  def __init__(
    self,
    setting: Setting,
    workdir: pathlib.Path,
    hosts: Sequence[network.Host] = (),
  ):
    """Prepares it; without hosts all processes are on this one."""
    self.workdir, self._setting = workdir, setting
    self._hosts = hosts or [_LOOPBACK] * setting.processes
    self.children: list[subprocess.Popen] = []

  def __enter__(self):
    self.workdir.parent.mkdir(parents=True, exist_ok=True)
    count = len(self._hosts)
    coordinator = f'{self._hosts[0].address}:{environment.free_port()}'
    for number, host in enumerate(self._hosts):
      place = environment.describe(coordinator, count, number, None)
      variables = {**os.environ, 'JAX_PLATFORMS': 'cpu', **place}
      for name in ('XLA_FLAGS', 'JAX_NUM_CPU_DEVICES'):
        variables.pop(name, None)  # devices of this process
      with self._log(number).open('w') as log:
        self.children.append(
          subprocess.Popen(
            host.command(self._setting.command(self.workdir)),
            cwd=REPOSITORY,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
          )
        )
    return self

  def __exit__(self, *_):
    for child in self.children:
      child.kill()
      child.wait()

  def _log(self, number: int) -> pathlib.Path:
    return self.workdir.with_suffix(f'.{number}.log')

  def said(self, number: int) -> str:
    """Returns what a process printed."""
    return self._log(number).read_text(errors='replace')

  def reaches(self, step: int, writing: bool) -> bool:
    """Waits for a step, and perhaps for a checkpoint being written after it.

    Returns:
      False if the run came to its end before.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    while last_step(self.workdir) < step or (
      writing and not is_writing(self.workdir)
    ):
      if any(child.poll() is not None for child in self.children):
        return False
      assert time.monotonic() < deadline, self.said(0)
      time.sleep(POLL_SECONDS)
    return True

  def finish(self) -> int:
    """Waits for a good end; returns the step from which the run went on."""
    for number, child in enumerate(self.children):
      assert child.wait(LIMIT_SECONDS) == 0, self.said(number)
    return self.resumed()

  def resumed(self) -> int:
    """The step from which it went on, 0 where it began or never came so far."""
    found = [_RESUMED.search(self.said(n)) for n in range(len(self.children))]
    return next((int(one[1]) for one in found if one), 0)


def last_step(workdir: pathlib.Path) -> int:
  """Returns the last one in the metrics of a run, 0 for none."""
  return records.last_step(workdir / records.METRICS)


def is_writing(workdir: pathlib.Path) -> bool:
  """Whether a checkpoint is being written."""
  return any((workdir / 'checkpoints').glob(f'*{checkpoints.UNFINISHED}'))


def differences(found: pathlib.Path, expected: pathlib.Path) -> list[str]:
  """Returns how a run ended otherwise than another; empty: bit for bit alike.

  The parameters, every line of metrics but its times, and all arrays of the
  last checkpoint, with the workers' memories in them, are compared.
  """
  compared = {
    records.PARAMS: _params,
    records.METRICS: _metrics,
    'the last checkpoint': _state,
  }
  return [name for name, of in compared.items() if of(found) != of(expected)]


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
  folders = (workdir / 'checkpoints').iterdir()
  steps = [int(path.name) for path in folders if path.name.isdigit()]
  last = workdir / 'checkpoints' / str(max(steps))
  manifest.verify(last)
  orbax = ocp.PyTreeCheckpointer()
  as_numpy = jax.tree.map(
    lambda _: ocp.RestoreArgs(restore_type=np.ndarray),
    orbax.metadata(last).item_metadata.tree,
  )
  state = orbax.restore(last, restore_args=as_numpy)
  return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def keep(record: Mapping[str, Any]) -> None:
  """Writes what was measured, if `GRADSPARSE_RECORD` names a file for it."""
  if path := os.environ.get('GRADSPARSE_RECORD'):
    given = [f'{k}={v}' for k, v in os.environ.items() if 'GRADSPARSE_' in k]
    command = [*given, 'python', '-m', 'pytest', *sys.argv[1:]]
    described = {
      'command': ' '.join(command),
      'environment': machine.describe(),
      **record,
    }
    files.write_json(pathlib.Path(path), described)


def recorded(name: str) -> dict[str, Any]:
  """Returns a record of experiments/results."""
  return files.read_json(REPOSITORY / f'experiments/results/{name}.json')


def page(name: str) -> str:
  """Returns a page of docs/."""
  return (REPOSITORY / f'docs/{name}.md').read_text()
