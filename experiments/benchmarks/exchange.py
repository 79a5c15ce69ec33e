r"""Times one step of every scheme on a slow network, and counts its bytes.

  python -m experiments.benchmarks.exchange --json=exchange.json \
    --floats=10000000 --workers=2,4 --rate=1gbit

A step is select + pack + exchange + unpack + parameter update, of a network
with the shapes of ResNet-50. The workers are the hosts of `experiments.cluster`
(root and iproute2 are needed; `--loopback` needs neither, and then nothing is
shaped and no byte counted). Schemes take turns in every round; a figure is the
median over the rounds. All run with GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
A worker needs about 150 bytes a parameter where all schemes are measured
together, and half of that for `--schemes=dense,dgc`.

The file is a list of rows, one for each scheme, size, number of workers and
rate:

  scheme, floats, workers, rate, density
  step_ms           median time of a step, of the slowest worker
  step_ms_spread    distance between the quartiles of the rounds
  compute_ms        the same step with its collectives left out, all workers at
                    the same time: they share the cores of this machine
  collectives_ms    the same collectives with nothing around them
  exchange_ms       step_ms - compute_ms
  wire_bytes        sent by a host in a step, by the counters of its interface,
                    the largest over hosts, idle traffic subtracted
  plan_bytes        what `gs.plan` says
  bytes_ok          wire <= 1.05 (plan + 66 ceil(plan / 1448)) + 4096
  serial_ms         what must be sent one after another, at the nominal rate
  speedup           step_ms of dense / step_ms
  break_even        bandwidths at which the scheme's step is shorter than the
                    dense one, from compute_ms and the serial bytes of both:
                    {"wins": "below" or "above", "mbit": Mbit/s}, or "always"
                    or "never" with null; null for dense itself, and where
                    dense was not measured
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import itertools
import json
import pathlib
import sys
import tempfile
from typing import Any

from experiments import cluster
from experiments.benchmarks import rows
from experiments.benchmarks import running
from experiments.benchmarks import subjects

WORKER = 'experiments.benchmarks.exchange_worker'
# Large pages: else a fresh array of 40 MB costs 10,000 page faults, in every
# scheme and in dense.
MALLOC = 'glibc.malloc.hugetlb=1'

_GRID = {
  'floats': (1_000_000, 10_000_000, 25_600_000),
  'workers': (2, 4, 8),
  'rate': ('1gbit', '100mbit'),
}


def measure(
  floats: int,
  workers: int,
  rate: str,
  options: argparse.Namespace,
  folder: pathlib.Path,
) -> list[dict[str, Any]]:
  """Runs the workers once.

  Args:
    floats: about how many parameters.
    workers: number of hosts.
    rate: of the links.
    options: of the command line.
    folder: for the workers' result and compiled programs.

  Raises:
    FailedError: a worker failed.
    NotPermittedError: no namespaces here.
  """
  # The programs depend on size and number only: another rate finds them here.
  shared = folder / f'{floats}-{workers}'
  shared.mkdir(exist_ok=True)
  path = shared / 'result.json'
  path.unlink(missing_ok=True)
  command = [
    sys.executable,
    '-m',
    WORKER,
    f'--json={path}',
    f'--floats={floats}',
    f'--density={options.density}',
    f'--schemes={",".join(options.schemes)}',
    f'--repeats={options.repeats}',
    f'--steps={options.steps}',
  ]
  command = ['env', f'GLIBC_TUNABLES={MALLOC}', *command]
  running.on_hosts(
    command,
    num_hosts=workers,
    shape=cluster.Shape() if options.loopback else cluster.Shape(rate),
    loopback=options.loopback,
    timeout=options.timeout,
  )
  return rows.make_rows(
    json.loads(path.read_text()),
    'loopback' if options.loopback else rate,
    options.density,
  )


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m experiments.benchmarks.exchange',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--json', type=pathlib.Path, required=True)
  parser.add_argument(
    '--floats',
    type=running.listed(running.whole),
    default=[10_000_000],
    help='one or more, with commas; default: 10000000',
  )
  parser.add_argument(
    '--workers',
    type=running.listed(running.whole),
    default=[4],
    help='likewise; default: 4',
  )
  parser.add_argument(
    '--rate',
    type=running.listed(str),
    default=['1gbit'],
    help='likewise; 1gbit',
  )
  parser.add_argument(
    '--grid',
    action='store_true',
    help='1, 10 and 25.6 million floats, 2, 4 and 8 workers, 1gbit and '
    '100mbit; takes hours on two cores',
  )
  parser.add_argument(
    '--schemes',
    type=running.listed(str),
    default=list(subjects.SCHEMES),
    help='default: all, ' + ','.join(subjects.SCHEMES),
  )
  parser.add_argument('--density', type=float, default=subjects.DENSITY)
  parser.add_argument(
    '--repeats', type=running.whole, default=7, help='rounds; default: 7'
  )
  parser.add_argument(
    '--steps',
    type=running.whole,
    default=3,
    help='of a scheme in a round; default: 3',
  )
  parser.add_argument('--loopback', action='store_true', help='see above')
  parser.add_argument(
    '--timeout', type=float, default=3600.0, help='seconds for one table'
  )
  return parser


def main(argv: Sequence[str] | None = None) -> int:
  """Measures, prints tables and writes the file; returns the exit status."""
  parser = _parser()
  options = parser.parse_args(argv)
  unknown = set(options.schemes) - set(subjects.SCHEMES)
  if unknown:
    parser.error(
      f'unknown scheme {sorted(unknown)[0]!r}; there are '
      + ', '.join(subjects.SCHEMES)
    )
  return running.exit_status(
    lambda: _measure_all(options),
    ' --loopback runs the same workers on 127.0.0.1, without shaping and '
    'without counting bytes.',
  )


def _measure_all(options: argparse.Namespace) -> None:
  grid = _GRID if options.grid else vars(options)
  rates = ['loopback'] if options.loopback else grid['rate']
  done: list[dict[str, Any]] = []
  with tempfile.TemporaryDirectory(prefix='gradsparse-') as folder:
    for floats, workers, rate in itertools.product(
      grid['floats'], grid['workers'], rates
    ):
      new = measure(floats, workers, rate, options, pathlib.Path(folder))
      print(rows.table(new), flush=True)
      done += new
      running.save(done, options.json)


if __name__ == '__main__':
  sys.exit(main())
