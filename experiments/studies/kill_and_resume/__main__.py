r"""Kills training runs with -9 at random moments, and resumes them.

  python -m experiments.studies.kill_and_resume --kills=50 --processes=3 \
    --json=kill_and_resume.json

Each scheme trains a perceptron on the digits, undisturbed and killed again and
again: while the processes start, between steps, and while a checkpoint is being
written. One process dies first, the others a moment later, and the same command
resumes the run. At the end the parameters, the metrics of every step and the
memories of all workers must equal those of the undisturbed run, bit for bit; a
resume that lost or repeated anything would show. The exit status is 0 only if
all are equal.
"""

import collections
import dataclasses
import pathlib
import random
import tempfile
import time
from typing import Any

from absl import flags
from experiments import cluster
from experiments.program import command_line
from experiments.program import files
from experiments.program import tables
from experiments.run import machine
from experiments.studies.kill_and_resume import trial

_SCHEMES = command_line.define_schemes(trial.SCHEMES)
_KILLS = flags.DEFINE_integer(
  'kills', 50, 'kills, of all schemes together', lower_bound=1
)
_PROCESSES = flags.DEFINE_integer(
  'processes', 3, 'processes of a run, each with one worker', lower_bound=1
)
_STEPS = flags.DEFINE_integer('steps', 200, 'steps of a run', lower_bound=1)
_EVERY = flags.DEFINE_integer(
  'checkpoint_every', 4, 'steps between two checkpoints', lower_bound=1
)
_SEED = flags.DEFINE_integer('seed', 0, 'seed of the moments of the kills')
_WORKDIR = command_line.define_workdir(
  None, 'folder for the runs; a temporary one if not given'
)
_JSON = command_line.define_json()


def main() -> int:
  """Kills and compares; returns the exit status."""
  started = time.monotonic()
  with (
    cluster.guarded(loopback=True),
    tempfile.TemporaryDirectory() as temporary,
  ):
    folder = _WORKDIR.value or pathlib.Path(temporary)
    rows = [
      _try(scheme, kills, folder / scheme)
      for scheme, kills in _shares().items()
    ]
  kills = sum(len(row['kills']) for row in rows)
  exact = sum(row['bit_exact_resumes'] for row in rows)
  tables.show(_table(rows))
  print(f'{exact} of {kills} resumes are bit-exact')
  if _JSON.value is not None:
    record = {
      'command': command_line.typed(),
      'environment': machine.describe(),
      'processes': _PROCESSES.value,
      'steps': _STEPS.value,
      'checkpoint_every': _EVERY.value,
      'seed': _SEED.value,
      'kills': kills,
      'bit_exact_resumes': exact,
      'seconds': round(time.monotonic() - started),
      'schemes': rows,
    }
    files.write_json(_JSON.value, record)
  return 0 if exact == kills else 1


def _shares() -> dict[str, int]:
  """How many kills each scheme gets."""
  count = len(_SCHEMES.value)
  return {
    scheme: (_KILLS.value + count - 1 - number) // count
    for number, scheme in enumerate(_SCHEMES.value)
  }


def _try(scheme: str, kills: int, folder: pathlib.Path) -> dict[str, Any]:
  """Kills the runs of one scheme so many times.

  A run that reaches its end before is followed by another.
  """
  setting = trial.Setting(scheme, _PROCESSES.value, _STEPS.value, _EVERY.value)
  rng = random.Random(f'{_SEED.value} {scheme}')
  whole = folder / 'whole'
  trial.undisturbed(setting, whole)
  row: dict[str, Any] = {
    'scheme': scheme,
    'runs': 0,
    'bit_exact_resumes': 0,
    'differences': [],
    'kills': [],
  }
  while len(row['kills']) < kills:
    broken = folder / f'broken{row["runs"]}'
    done = trial.disturbed(setting, broken, kills - len(row['kills']), rng)
    wrong = trial.differences(broken, whole)
    row['runs'] += 1
    row['kills'] += [dataclasses.asdict(kill) for kill in done]
    row['differences'] += wrong
    row['bit_exact_resumes'] += 0 if wrong else len(done)
    print(
      f'{scheme}: {len(row["kills"])} of {kills} kills, '
      + (f'other {" and ".join(wrong)}' if wrong else 'the same end'),
      flush=True,
    )
  return row


def _table(rows: list[dict[str, Any]]):
  cells = []
  for row in rows:
    kinds = collections.Counter(kill['kind'] for kill in row['kills'])
    writing = sum(kill['writing'] for kill in row['kills'])
    cells.append(
      [
        row['scheme'],
        *(str(kinds[kind]) for kind in trial.KINDS),
        str(writing),
        f'{row["bit_exact_resumes"]} of {len(row["kills"])}',
      ]
    )
  return tables.make(
    (
      'scheme',
      'killed at\nthe start',
      'at any\nstep',
      'for a\nwrite',
      'while one\nwas written',
      'bit-exact\nresumes',
    ),
    cells,
  )


if __name__ == '__main__':
  command_line.run(main)
