r"""Trains on three hosts while one of them, or the network, fails.

  python -m experiments.studies.network_faults \
    --json=experiments/results/network_faults.json

Each fault has a run of its own: a perceptron on the digits, with a worker on
each of three hosts (`experiments.cluster`; needs root and iproute2). Either the
run goes on, or all of its processes end in bounded time, each with one line
that names the lost process, and then the same command resumes the run. At the
end parameters, metrics and the memories of all workers must equal those of an
undisturbed run, bit for bit. The exit status is 0 only if all this holds.
docs/faults.md has the table.
"""

import dataclasses
import pathlib
import tempfile
import time
from typing import Any

from absl import flags
from experiments import cluster
from experiments.cluster import network
from experiments.program import command_line
from experiments.program import files
from experiments.run import machine
from experiments.studies.kill_and_resume import trial as runs
from experiments.studies.network_faults import faults
from experiments.studies.network_faults import page
from experiments.studies.network_faults import trial

_FAULTS = command_line.define_list(
  'faults',
  tuple(faults.FAULTS),
  flags.EnumParser([*faults.FAULTS]).parse,
  'which of: ' + ', '.join(faults.FAULTS),
)
_SCHEME = flags.DEFINE_enum(
  'scheme', 'dgc', list(runs.SCHEMES), 'scheme of the runs'
)
_STEPS = flags.DEFINE_integer('steps', 60, 'steps of a run', lower_bound=1)
_AFTER = flags.DEFINE_integer(
  'after_step', 25, 'the step after which a fault begins', lower_bound=1
)
_EVERY = flags.DEFINE_integer(
  'checkpoint_every', 10, 'steps between two checkpoints', lower_bound=1
)
_HOST_TIMEOUT = flags.DEFINE_float(
  'host_timeout',
  20.0,
  'host_timeout of the runs, see experiments.main',
  lower_bound=1,
)
_WORKDIR = command_line.define_workdir(
  None, 'folder for the runs; a temporary one if not given'
)
_JSON = command_line.define_json()

# A process may take so much longer than the timeout to end: the beat that was
# the last before the fault, what it still tells the others, a slow machine.
_SLACK_SECONDS = 10.0


def main() -> int:
  """Tries the faults; returns the exit status."""
  started = time.monotonic()
  setting = runs.Setting(
    _SCHEME.value,
    faults.HOSTS,
    _STEPS.value,
    _EVERY.value,
    (f'--host_timeout={_HOST_TIMEOUT.value}',),
  )
  bound = _HOST_TIMEOUT.value + _SLACK_SECONDS
  rows: list[dict[str, Any]] = []
  record = {
    'command': command_line.typed(),
    'environment': machine.describe(),
    'scheme': _SCHEME.value,
    'hosts': faults.HOSTS,
    'steps': _STEPS.value,
    'checkpoint_every': _EVERY.value,
    'host_timeout': _HOST_TIMEOUT.value,
    'bound_seconds': bound,
    'rows': rows,
  }
  with (
    cluster.guarded(loopback=False),
    tempfile.TemporaryDirectory() as temporary,
  ):
    folder = _WORKDIR.value or pathlib.Path(temporary)
    with network.Network(faults.HOSTS, network.Shape()) as net:
      runs.undisturbed(setting, folder / 'whole', net.hosts)
    for name in _FAULTS.value:
      row = trial.run(
        name, setting, folder / name, folder / 'whole', _AFTER.value, bound
      )
      rows.append(dataclasses.asdict(row))
      print(f'{name}: {row.happened}, {row.seconds} s', flush=True)
      record['seconds'] = round(time.monotonic() - started)
      if _JSON.value is not None:  # each row takes minutes
        files.write_json(_JSON.value, record)
  kept = sum(row['as_promised'] for row in rows)
  print(page.table(record))
  print(f'{kept} of {len(rows)} faults: nothing lost, and told in one line')
  return 0 if kept == len(rows) else 1


if __name__ == '__main__':
  command_line.run(main)
