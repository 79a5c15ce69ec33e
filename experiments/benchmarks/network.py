r"""Measures the network itself: a ping-pong, and bare dense all-reduces.

  python -m experiments.benchmarks.network --json=network.json \
    --workers=2,4,8 --rate=1gbit,100mbit

on the hosts of `experiments.cluster`. Writes a list of rows:

  scheme          'ping_pong': a message from one host to another, half of the
                  time there and back; 'all_reduce': of float32 by all hosts;
                  'compute': matrix products, which send nothing; 'beside': both
                  in one program, neither needs the other; 'after': an
                  all-reduce that needs the product
  floats, workers, rate
  step_ms         median
  step_ms_spread  distance between the quartiles
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import tempfile
import time
from typing import Any

from absl import flags
from experiments import cluster
from experiments.benchmarks import on_hosts
from experiments.benchmarks import rows
from experiments.program import command_line
from experiments.program import files
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np

_JSON = command_line.define_json()
_WORKERS = on_hosts.define_workers(2, 4, 8)
_RATE = on_hosts.define_rate()
_REPEATS = flags.DEFINE_integer('repeats', 7, 'rounds', lower_bound=1)
_INSIDE = on_hosts.define_inside()

_AXIS = 'workers'
# Floats. Some hundred kilobytes would pass in one burst of the shaper, at a
# rate that no longer message meets.
_SIZES = (250, 1_000, 1_000_000, 2_500_000)
_THERE, _BACK = ((0, 1),), ((1, 0),)
_WIDTH, _PRODUCTS = 512, 24  # of a computation as long as a slow all-reduce


def measure(repeats: int) -> list[dict[str, Any]]:
  """Times both on all joined processes; a row a size, without a rate."""
  devices = jax.devices()
  mesh = Mesh(np.asarray(devices), (_AXIS,), axis_types=(AxisType.Auto,))
  mapped = functools.partial(jax.shard_map, mesh=mesh, in_specs=P(_AXIS))

  def there_and_back(x):
    x = jax.lax.ppermute(x, _AXIS, _THERE)
    return jax.lax.ppermute(x, _AXIS, _BACK)

  def compute(x):
    y = jnp.eye(_WIDTH) + x[0, 0]
    for _ in range(_PRODUCTS):
      y = jnp.tanh(y @ y)
    return y[None]

  def after(x):
    return jax.lax.psum(x + compute(x)[0, 0, 0], _AXIS)

  def reduced(x):
    return jax.lax.psum(x, _AXIS)

  # Each with the ways of a message.
  programs = {
    'ping_pong': (mapped(there_and_back, out_specs=P(_AXIS)), 2),
    'all_reduce': (mapped(reduced, out_specs=P()), 1),
    'compute': (mapped(compute, out_specs=P(_AXIS)), 1),
    'beside': (
      mapped(lambda x: (compute(x), reduced(x)), out_specs=(P(_AXIS), P())),
      1,
    ),
    'after': (mapped(after, out_specs=P()), 1),
  }
  found = []
  for size, name in itertools.product(_SIZES, programs):
    if size < _SIZES[-1] and name in ('compute', 'beside', 'after'):
      continue
    program, ways = jax.jit(programs[name][0]), programs[name][1]
    operand = jax.make_array_from_process_local_data(
      NamedSharding(mesh, P(_AXIS)), np.ones((1, size), np.float32)
    )
    jax.block_until_ready(program(operand))
    times = []
    for _ in range(repeats):
      multihost_utils.sync_global_devices('ready')
      start = time.perf_counter()
      jax.block_until_ready(program(operand))
      # The slowest counts: a host that the ping-pong leaves out has no time.
      times.append(on_hosts.slowest(time.perf_counter() - start) / ways)
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


def main() -> None:
  """Measures on every kind of cluster; with --inside, is one of its hosts."""
  if _INSIDE.value:
    on_hosts.inside(_JSON.value, lambda: measure(_REPEATS.value))
    return
  found = []
  words = [f'--repeats={_REPEATS.value}']
  with (
    cluster.guarded(loopback=False),
    tempfile.TemporaryDirectory() as folder,
  ):
    for rate, workers in itertools.product(_RATE.value, _WORKERS.value):
      path = pathlib.Path(folder)
      new = on_hosts.measured('network', words, path, workers, rate)
      found += [{**row, 'rate': rate} for row in new]
      files.write_json(_JSON.value, found)


if __name__ == '__main__':
  flags.mark_flag_as_required('json')
  command_line.run(main)
