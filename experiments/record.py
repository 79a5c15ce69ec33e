"""Gathers finished runs into one JSON file, to be kept with the project.

  python -m experiments.record DIR... --output=experiments/results/NAME.json

Each run is there with its command, its machine, its result and the curves of
its loss and test accuracy.
"""

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import sys
from typing import Any

from experiments import errors
from experiments import records
from experiments import report

_CURVES = ('train/loss', 'test/accuracy', 'comm/sent_bytes_total')


def gather(runs: Sequence[report.Run]) -> dict[str, Any]:
  """Returns the summaries and curves of the runs, by name.

  Raises:
    UserError: a run is not finished.
  """
  found = {}
  for run in runs:
    if run.summary is None:
      raise errors.UserError(f'{run.name} has not reached its last step')
    found[run.name] = {
      **run.summary,
      'curves': {name: _curve(run.metrics, name) for name in _CURVES},
    }
  return found


def _curve(metrics: Sequence[Mapping[str, Any]], name: str) -> list[list[Any]]:
  """Returns [step, value] pairs."""
  return [[line['step'], line[name]] for line in metrics if name in line]


def main(argv: Sequence[str] | None = None) -> None:
  """Parses the command line and writes the file."""
  parser = argparse.ArgumentParser(
    prog='python -m experiments.record', description=__doc__
  )
  parser.add_argument('directories', nargs='+', metavar='DIR')
  parser.add_argument('--output', type=pathlib.Path, required=True)
  options = parser.parse_args(argv)
  try:
    record = gather(report.find_runs(options.directories))
  except errors.UserError as error:
    sys.exit(f'error: {error}')
  records.write_json(options.output, record)
  print(options.output)


if __name__ == '__main__':
  main()
