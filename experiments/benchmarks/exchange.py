r"""Times one step of every scheme on a slow network, and counts its bytes.

  python -m experiments.benchmarks.exchange --json=exchange.json \
    --num_params=10000000 --workers=2,4 --rate=1gbit

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
  wire_bytes        sent by a host in a step, by the counters of its interface,
                    the largest over hosts, idle traffic subtracted
  plan_bytes        what `gs.plan` says
  bytes_ok          wire <= 1.05 (plan + 66 ceil(plan / 1448)) + 4096
  speedup           step_ms of dense / step_ms; null without dense
"""

import itertools
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags
from experiments import cluster
from experiments.benchmarks import exchange_worker
from experiments.benchmarks import on_hosts
from experiments.benchmarks import rows
from experiments.benchmarks import subjects
from experiments.program import command_line
from experiments.program import files

_JSON = command_line.define_json()
_NUM_PARAMS = command_line.define_numbers(
  'num_params', 10_000_000, 'numbers of parameters'
)
flags.DEFINE_alias('floats', 'num_params')  # as in the records
_SCHEMES = command_line.define_names('schemes', subjects.SCHEMES)
_DENSITY = flags.DEFINE_float(
  'density', subjects.DENSITY, 'density of the sparse schemes'
)
_REPEATS = flags.DEFINE_integer('repeats', 7, 'rounds', lower_bound=1)
_STEPS = flags.DEFINE_integer(
  'steps', 3, 'steps of a scheme in a round', lower_bound=1
)
_INSIDE = flags.DEFINE_bool(
  'inside', False, 'measure in this process: for processes that this one starts'
)
_HOSTS = on_hosts.define_flags()

# Large pages: else a fresh array of 40 MB costs 10,000 page faults, in every
# scheme and in dense.
_LARGE_PAGES = ('env', 'GLIBC_TUNABLES=glibc.malloc.hugetlb=1')


def _measured(floats: int, workers: int, rate: str, folder) -> list[Any]:
  """Runs the workers once; the folder is for their compiled programs."""
  # These depend on size and number only: another rate finds them here.
  shared = folder / f'{floats}-{workers}'
  shared.mkdir(exist_ok=True)
  path = shared / 'result.json'
  path.unlink(missing_ok=True)
  command = [
    *(*_LARGE_PAGES, sys.executable, '-m', 'experiments.benchmarks.exchange'),
    *('--inside', f'--json={path}'),
    f'--num_params={floats}',
    f'--density={_DENSITY.value}',
    f'--schemes={",".join(_SCHEMES.value)}',
    f'--repeats={_REPEATS.value}',
    f'--steps={_STEPS.value}',
  ]
  on_hosts.run(command, workers, rate, _HOSTS.timeout.value)
  return rows.make_rows(files.read_json(path), rate, _DENSITY.value)


def _inside() -> dict[str, Any]:
  return exchange_worker.measure(
    _SCHEMES.value,
    *_NUM_PARAMS.value,
    density=_DENSITY.value,
    repeats=_REPEATS.value,
    steps=_STEPS.value,
    folder=_JSON.value.parent,
  )


def main() -> None:
  """Measures, prints tables and writes the file."""
  if _INSIDE.value:
    on_hosts.inside(_JSON.value, _inside)
    return
  runs = itertools.product(_NUM_PARAMS.value, _HOSTS.kinds())
  done: list[dict[str, Any]] = []
  with (
    cluster.guarded(),
    tempfile.TemporaryDirectory(prefix='gradsparse-') as folder,
  ):
    for size, (number, rate) in runs:
      new = _measured(size, number, rate, pathlib.Path(folder))
      rows.show(new)
      done += new
      # After each: a benchmark that is stopped leaves what it has.
      files.write_json(_JSON.value, done)


if __name__ == '__main__':
  flags.mark_flag_as_required('json')
  command_line.run(main)
