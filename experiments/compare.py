"""Trains every scheme on digits with four workers and prints the table.

  python -m experiments.compare

The settings are in `configs/compare.py`. Takes about ten minutes on two idle
cores and writes each run's records below `runs/compare`; `--output` keeps the
table as JSON. One test image is 0.28 points: the mean over seeds
(`--seeds 0 1 2`) says more than one.
"""

import argparse
from collections.abc import Sequence
import json
import pathlib
import shutil
from typing import Any

from absl import logging
from configs import compare as settings
from experiments import communication
from experiments import devices
from experiments import train
import jax
import numpy as np
from rich import box
from rich import console
from rich import table

_WORKDIR = pathlib.Path('runs', 'compare')
_FILE_WIDTH = 100  # of the table, where there is no terminal to say
_POINTS = 2.0  # what the accuracy may lose against dense


def run_setting(
  name: str,
  workdir: pathlib.Path,
  seeds: Sequence[int],
  *,
  split: str = 'file',
  steps: int | None = None,
) -> dict[str, Any]:
  """Trains one setting with each seed.

  Args:
    name: of `configs.compare.SCHEMES`.
    workdir: gets a folder a seed; former ones are replaced.
    seeds: of parameters and data order.
    split: 'file' is the test set, 'validation' a split of the training set.
    steps: fewer than the setting's, for a quick look.

  Returns:
    A row of the table: accuracies (fractions) by seed, bytes, seconds.
  """
  summaries = []
  for seed in seeds:
    config = settings.get_config(name)
    config.train.seed = seed
    config.data.test_split = split
    config.train.steps = steps or config.train.steps
    folder = workdir / name.replace(':', '_') / str(seed)
    shutil.rmtree(folder, ignore_errors=True)
    summaries.append(train.train_and_evaluate(config, folder))
    jax.clear_caches()
  return {
    'setting': name,
    'arguments': settings.SCHEMES[name],
    'test_accuracy': [s['final']['test_accuracy'] for s in summaries],
    **summaries[-1]['comm'],
    'seconds': float(np.mean([s['seconds'] for s in summaries])),
  }


def points_behind(row: dict[str, Any], dense: dict[str, Any]) -> float:
  """Mean over seeds of dense's accuracy less this row's, in points."""
  pairs = zip(dense['test_accuracy'], row['test_accuracy'], strict=True)
  return 100 * float(np.mean([d - a for d, a in pairs]))


def results_table(rows: Sequence[dict[str, Any]]) -> table.Table:
  """Returns the table, a row a setting; the first row is dense."""
  shown = table.Table(
    box=box.SIMPLE_HEAD,
    title='digits, 4 simulated workers; means over seeds',
    caption='second line: the average over the whole run, warm-up included',
  )
  shown.add_column('setting', no_wrap=True)
  for heading in (
    'test\naccuracy',
    'points\nbehind dense',
    'message\n(bytes)',
    'sent a step\n(bytes)',
    'compression\nratio',
    'seconds',
  ):
    shown.add_column(heading, justify='right', no_wrap=True)
  for row in rows:
    behind = points_behind(row, rows[0])
    shown.add_row(
      row['setting'],
      f'{np.mean(row["test_accuracy"]):.1%}',
      f'{behind:+.2f}' + ('' if behind <= _POINTS else ' (!)'),
      communication.last_and_average(row, 'payload_bytes_per_step'),
      communication.last_and_average(row, 'sent_bytes_per_step'),
      communication.last_and_average(row, 'ratio', '{:,.1f}x'),
      f'{row["seconds"]:.1f}',
    )
  return shown


def main(argv: Sequence[str] | None = None) -> None:
  """Parses the command line, trains, prints."""
  parser = argparse.ArgumentParser(
    prog='python -m experiments.compare', description=__doc__
  )
  parser.add_argument('--workdir', type=pathlib.Path, default=_WORKDIR)
  parser.add_argument('--output', type=pathlib.Path, help='JSON of the table')
  parser.add_argument('--seeds', type=int, nargs='+', default=[0])
  parser.add_argument('--split', choices=('file', 'validation'), default='file')
  parser.add_argument(
    '--settings', nargs='+', choices=settings.SCHEMES, metavar='SETTING'
  )
  parser.add_argument('--steps', type=int, help='fewer, for a quick look')
  options = parser.parse_args(argv)
  logging.set_verbosity(logging.WARNING)
  names = list(options.settings or settings.SCHEMES)
  if 'dense' not in names:
    names.insert(0, 'dense')
  names.sort(key=lambda name: name != 'dense')
  rows = []
  for name in names:
    row = run_setting(
      name,
      options.workdir,
      options.seeds,
      split=options.split,
      steps=options.steps,
    )
    rows.append(row)
    print(
      f'{name}: test accuracy {np.mean(row["test_accuracy"]):.2%}, '
      f'{row["seconds"]:.1f} s',
      flush=True,
    )
  screen = console.Console()
  if not screen.is_terminal:
    screen.width = _FILE_WIDTH
  screen.print(results_table(rows))
  if options.output:
    options.output.parent.mkdir(parents=True, exist_ok=True)
    seeds = ' '.join(map(str, options.seeds))
    record = {
      'command': (
        f'python -m experiments.compare --seeds {seeds} --split '
        f'{options.split} --output {options.output}'
      ),
      'environment': devices.describe(),
      'split': options.split,
      'seeds': options.seeds,
      'rows': rows,
    }
    options.output.write_text(json.dumps(record, indent=2) + '\n')


if __name__ == '__main__':
  main()
