r"""Measures the network itself: a ping-pong, and bare dense all-reduces.

  python -m experiments.benchmarks.network --json=network.json \
    --workers=2,4,8 --rate=1gbit,100mbit

on the hosts of `experiments.cluster`. Writes a list of rows for
`experiments.cost_model --measured`, which fits alpha and beta to them:

  scheme          'ping_pong': a message from one host to another, half of the
                  time there and back; 'all_reduce': of float32 by all hosts
  floats, workers, rate
  step_ms         median
  step_ms_spread  distance between the quartiles
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
import functools
import itertools
import json
import pathlib
import sys
import tempfile
import time
from typing import Any

from experiments import cluster
from experiments import multihost
from experiments.benchmarks import rows
from experiments.benchmarks import running
import jax
from jax.experimental import multihost_utils
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

_AXIS = 'workers'
# Floats. Some hundred kilobytes would pass in one burst of the shaper, at a
# rate that no longer message meets.
_SIZES = (250, 1_000, 1_000_000, 2_500_000)
_THERE, _BACK = ((0, 1),), ((1, 0),)


def measure(repeats: int) -> list[dict[str, Any]]:
  """Times both on all joined processes; a row a size, without a rate."""
  devices = jax.devices()
  mesh = Mesh(np.asarray(devices), (_AXIS,), axis_types=(AxisType.Auto,))
  mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(_AXIS))

  def there_and_back(x):
    x = jax.lax.ppermute(x, _AXIS, _THERE)
    return jax.lax.ppermute(x, _AXIS, _BACK)

  programs = {
    'ping_pong': (jax.jit(mapped(there_and_back, out_specs=P(_AXIS))), 2),
    'all_reduce': (
      jax.jit(mapped(lambda x: jax.lax.psum(x, _AXIS), out_specs=P())),
      1,
    ),
  }
  found = []
  for size, (name, (program, ways)) in itertools.product(
    _SIZES, programs.items()
  ):
    mine = np.ones((1, size), np.float32)
    operand = jax.make_array_from_process_local_data(
      NamedSharding(mesh, P(_AXIS)), mine
    )
    jax.block_until_ready(program(operand))
    times = []
    for _ in range(repeats):
      multihost_utils.sync_global_devices('ready')
      start = time.perf_counter()
      jax.block_until_ready(program(operand))
      seconds = np.float32(time.perf_counter() - start)
      # The slowest counts: a host that the ping-pong leaves out has no time.
      times.append(
        float(np.max(multihost_utils.process_allgather(seconds))) / ways
      )
    found.append(
      {
        'scheme': name,
        'floats': size,
        'workers': len(devices),
        'step_ms': 1e3 * float(np.median(times)),
        'step_ms_spread': 1e3 * rows.quartile_distance(times),
      }
    )
  return found


def run(workers: int, rate: str, repeats: int) -> list[dict[str, Any]]:
  """Measures on a cluster of its own.

  Raises:
    FailedError: a worker failed.
    NotPermittedError: no namespaces here.
  """
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, 'rows.json')
    running.on_hosts(
      [
        sys.executable,
        '-m',
        'experiments.benchmarks.network',
        f'--json={path}',
        f'--repeats={repeats}',
        '--inside',
      ],
      num_hosts=workers,
      shape=cluster.Shape(rate),
    )
    return [{**row, 'rate': rate} for row in json.loads(path.read_text())]


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line and measures; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m experiments.benchmarks.network',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--json', type=pathlib.Path, required=True)
  parser.add_argument(
    '--workers',
    type=running.listed(running.whole),
    default=[2, 4, 8],
    help='one or more, with commas; default: 2,4,8',
  )
  parser.add_argument(
    '--rate',
    type=running.listed(str),
    default=['1gbit'],
    help='likewise; default: 1gbit',
  )
  parser.add_argument('--repeats', type=int, default=7)
  parser.add_argument('--inside', action='store_true', help=argparse.SUPPRESS)
  options = parser.parse_args(argv)
  if options.inside:
    jax.config.update('jax_platforms', 'cpu')
    with multihost.session() as (rank, _):
      found = measure(options.repeats)
      if rank == 0:
        options.json.write_text(json.dumps(found))
    return 0
  return running.exit_status(lambda: _measure_all(options))


def _measure_all(options: argparse.Namespace) -> None:
  found = []
  for rate, workers in itertools.product(options.rate, options.workers):
    found += run(workers, rate, options.repeats)
    running.save(found, options.json)


if __name__ == '__main__':
  sys.exit(main())
