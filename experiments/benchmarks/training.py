r"""Times whole training runs on a slow network: `experiments.main --multihost`.

  python -m experiments.benchmarks.training --json=training.json \
    --workers=4 --rate=1gbit,100mbit --schemes=dense,dgc

Each run is a setting of --config on a cluster of its own (root and iproute2;
or `--loopback`), one process a host. The file is a list of rows:

  scheme, workers, rate, steps, parameters
  seconds          of the run, compiling included
  compile_seconds
  step_ms          median over the logged lines of the second half of the run:
                   time between two, divided by the steps between them
  step_ms_spread   distance between the quartiles
  test_accuracy    in the end, of all test images
  plan_bytes       a worker's in a step: of the whole run by `gs.plan`, stages
                   of a warm-up included, divided by its steps
  wire_bytes       a host's in a step, the largest over hosts, by the counters
                   of its interface: all that it sent from its start to its end
                   (parameters at the start, metrics, heartbeats,
                   acknowledgements, too), divided by the steps
  breakdown_ms     medians over the profiled steps, by phase: see
                   `experiments.time_breakdown`
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
import itertools
import pathlib
import statistics
import sys
import tempfile
from typing import Any

from experiments import cluster
from experiments import records
from experiments import time_breakdown
from experiments.benchmarks import rows
from experiments.benchmarks import running

_LINES = 20  # of metrics.jsonl, in a run
_PROFILED = 10  # steps of a run


def measure(
  scheme: str,
  workers: int,
  rate: str,
  options: argparse.Namespace,
  folder: pathlib.Path,
) -> dict[str, Any]:
  """Trains once and returns the row.

  Raises:
    FailedError: a process failed.
    NotPermittedError: no namespaces here.
  """
  every = max(1, options.steps // _LINES)
  fields = {
    'parallel.runner': 'shard_map',
    'parallel.num_workers': workers,
    'train.steps': options.steps,
    'train.log_every': every,
    'train.eval_every': 0,
    'train.checkpoint_every': 0,
    # On steps that are logged anyway.
    'train.time_breakdown_every': every * max(1, _LINES // _PROFILED),
  }
  command = [
    sys.executable,
    '-m',
    'experiments.main',
    '--multihost',
    f'--config={options.config}:{scheme}',
    f'--workdir={folder}',
    *(f'--config.{name}={value}' for name, value in fields.items()),
  ]
  result = running.on_hosts(
    command,
    num_hosts=workers,
    shape=cluster.Shape() if options.loopback else cluster.Shape(rate),
    loopback=options.loopback,
    timeout=options.timeout,
  )
  wire = None
  if result.traffic is not None:
    wire = max(
      host.tx_bytes - result.traffic.idle_bytes(number)
      for number, host in enumerate(result.traffic.hosts)
    )
  return make_row(
    records.read_json(folder / records.SUMMARY),
    records.read_metrics(folder / records.METRICS),
    'loopback' if options.loopback else rate,
    wire,
  )


def make_row(
  summary: Mapping[str, Any],
  metrics: Sequence[Mapping[str, Any]],
  rate: str,
  sent_bytes: int | None,
) -> dict[str, Any]:
  """The row of a run that has ended.

  Args:
    summary: of the run.
    metrics: its lines.
    rate: as given; 'loopback' where nothing was shaped.
    sent_bytes: by the host that sent most, None if nobody counted.
  """
  steps = summary['steps']
  # A profiled step takes longer than another, and so do the steps around it.
  times = [
    1e3 * (b['time/seconds'] - a['time/seconds']) / (b['step'] - a['step'])
    for a, b in itertools.pairwise(metrics)
    if a['step'] >= steps / 2 and time_breakdown.STEP not in b
  ]
  profiled = [line for line in metrics if time_breakdown.STEP in line]
  return {
    'scheme': summary['scheme'],
    'workers': summary['num_workers'],
    'rate': rate,
    'steps': steps,
    'parameters': summary['parameters'],
    'seconds': summary['seconds'],
    'compile_seconds': summary['compile_seconds'],
    'step_ms': statistics.median(times),
    'step_ms_spread': rows.quartile_distance(times),
    'test_accuracy': summary['final']['test_accuracy'],
    'plan_bytes': round(summary['comm']['sent_bytes_total'] / steps),
    'wire_bytes': None if sent_bytes is None else round(sent_bytes / steps),
    'breakdown_ms': {
      name.removeprefix('time/').removesuffix('_ms'): statistics.median(
        line[name] for line in profiled
      )
      for name in time_breakdown.NAMES
      if profiled
    },
  }


def main(argv: Sequence[str] | None = None) -> int:
  """Trains all, prints a line for each; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m experiments.benchmarks.training',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--json', type=pathlib.Path, required=True)
  parser.add_argument('--config', default='configs/digits.py')
  parser.add_argument(
    '--schemes',
    type=running.listed(str),
    default=['dense', 'dgc'],
    help='settings of the config, with commas; default: dense,dgc',
  )
  parser.add_argument(
    '--workers', type=running.listed(running.whole), default=[4]
  )
  parser.add_argument('--rate', type=running.listed(str), default=['1gbit'])
  parser.add_argument('--steps', type=running.whole, default=660)
  parser.add_argument('--loopback', action='store_true')
  parser.add_argument('--timeout', type=float, default=3600.0)
  options = parser.parse_args(argv)
  return running.exit_status(
    lambda: _measure_all(options),
    ' --loopback trains on 127.0.0.1, without shaping and without counting '
    'bytes.',
  )


def _measure_all(options: argparse.Namespace) -> None:
  rates = ['loopback'] if options.loopback else options.rate
  done: list[dict[str, Any]] = []
  with tempfile.TemporaryDirectory(prefix='gradsparse-') as folder:
    for number, (workers, rate, scheme) in enumerate(
      itertools.product(options.workers, rates, options.schemes)
    ):
      row = measure(
        scheme, workers, rate, options, pathlib.Path(folder, str(number))
      )
      print(
        f'{scheme}, {workers} workers, {rate}: {row["step_ms"]:.1f} ms a step '
        f'(+-{row["step_ms_spread"]:.1f}), {row["seconds"]:.1f} s, '
        f'{row["test_accuracy"]:.1%}, plan {row["plan_bytes"]:,} B, '
        f'wire {row["wire_bytes"]} B a step, {row["breakdown_ms"]}',
        flush=True,
      )
      done.append(row)
      running.save(done, options.json)


if __name__ == '__main__':
  sys.exit(main())
