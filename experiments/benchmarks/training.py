r"""Times whole training runs on a slow network: `experiments.main --multihost`.

  python -m experiments.benchmarks.training --json=training.json \
    --workers=4 --rate=1gbit,100mbit --schemes=dense,dgc

Each run is a setting of --config on a cluster of its own (root and iproute2;
or `--loopback`), one process a host. The file has `command`, `environment`,
`date` and `rows`, one for each run:

  setting, scheme, workers, rate, steps, parameters
  seconds          of the run, compiling included
  compile_seconds
  step_ms          median over the logged lines of the second half of the run:
                   time between two, divided by the steps between them
  step_ms_spread   distance between the quartiles
  test_...         scores of the last test, over the whole test set
  evaluations      every test: step, scores, seconds since the start (tests
                   included), bytes that a worker sent until then
  plan_bytes       a worker's in a step: of the whole run by `gs.plan`, stages
                   of a warm-up included, divided by its steps
  wire_bytes       a host's in a step, the largest over hosts, by the counters
                   of its interface: all that it sent from its start to its end
                   (parameters at the start, metrics, heartbeats,
                   acknowledgements, too), divided by the steps
  breakdown_ms     medians over the profiled steps, by phase: see
                   `experiments.run.time_breakdown`
"""

import itertools
import pathlib
import sys
import tempfile
from typing import Any

from absl import flags
from experiments import cluster
from experiments.benchmarks import on_hosts
from experiments.benchmarks import rows
from experiments.program import command_line
from experiments.program import files
from experiments.run import machine
from experiments.run import records
from experiments.run import scores

_JSON = command_line.define_json()
_CONFIG = flags.DEFINE_string(
  'config', 'configs/digits.py', 'configuration to train'
)
_SCHEMES = command_line.define_list(
  'schemes', ('dense', 'dgc'), str, 'settings of the config'
)
_STEPS = flags.DEFINE_integer('steps', 660, 'steps of a run', lower_bound=1)
_TESTS = flags.DEFINE_integer(
  'tests', 1, 'tests of a run, one at its end; their time counts', lower_bound=1
)
_HOSTS = on_hosts.define_flags()

_LINES = 20  # of metrics.jsonl, in a run
_PROFILED = 10  # steps of a run


def measure(
  scheme: str, workers: int, rate: str, folder: pathlib.Path
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Trains once and returns the row, and what the processes ran on.

  Raises:
    FailedError: a process failed.
    NotPermittedError: no namespaces here.
  """
  every = max(1, _STEPS.value // _LINES)
  fields = {
    'parallel.runner': 'shard_map',
    'parallel.num_workers': workers,
    'parallel.workers_per_chunk': 0,  # of simulated workers
    'train.steps': _STEPS.value,
    'train.log_every': every,
    'train.eval_every': max(1, _STEPS.value // _TESTS.value),
    'train.checkpoint_every': 0,
    'parallel.check_agreement_every': 0,
    # On steps that are logged anyway.
    'train.time_breakdown_every': every * max(1, _LINES // _PROFILED),
  }
  command = [
    *(sys.executable, '-m', 'experiments.main', '--multihost'),
    f'--config={_CONFIG.value}:{scheme}',
    f'--workdir={folder}',
    *(f'--config.{name}={value}' for name, value in fields.items()),
  ]
  result = on_hosts.run(command, workers, rate, _HOSTS.timeout.value)
  wire = None
  if result.traffic is not None:
    crossed = result.traffic
    wire = int((crossed['tx_bytes'] - crossed['idle_tx_bytes']).max())
  summary = files.read_json(folder / records.SUMMARY)
  metrics = records.read_metrics(folder / records.METRICS)
  row = rows.training_row(summary, metrics, rate, wire)
  return {'setting': scheme, **row}, summary['environment']


def main() -> None:
  """Trains all and prints a line for each."""
  runs = itertools.product(_HOSTS.kinds(), _SCHEMES.value)
  done: list[dict[str, Any]] = []
  with (
    cluster.guarded(),
    tempfile.TemporaryDirectory(prefix='gradsparse-') as folder,
  ):
    for number, ((workers, rate), scheme) in enumerate(runs):
      path = pathlib.Path(folder, str(number))
      row, environment = measure(scheme, workers, rate, path)
      print(
        f'{scheme}, {workers} workers, {rate}: {row["step_ms"]:.1f} ms a step '
        f'(+-{row["step_ms_spread"]:.1f}), {row["seconds"]:.1f} s, '
        f'{scores.worded(row)}, plan {row["plan_bytes"]:,} B, '
        f'wire {row["wire_bytes"]} B a step, {row["breakdown_ms"]}',
        flush=True,
      )
      done.append(row)
      # After each: a benchmark that is stopped leaves what it has.
      record = {
        'command': command_line.typed(),
        'environment': environment,
        'date': machine.today(),
        'rows': done,
      }
      files.write_json(_JSON.value, record)


if __name__ == '__main__':
  flags.mark_flag_as_required('json')
  command_line.run(main)
