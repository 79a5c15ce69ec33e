"""Measures how far compressed training stays from dense, over several seeds.

  python -m experiments.claims --output=experiments/results/digits.json

One seed on a small test set proves little (an image of the digits is 0.28
points). The claim "within one point of dense" is about the mean, over seeds,
of the difference between a scheme's test accuracy and that of the dense run
with the same seed, so the same start and the same data order. To choose
settings, use `--test-split=validation`, which never looks at the test set.
"""

import argparse
from collections.abc import Mapping, Sequence
import pathlib
import shlex
import statistics
import sys
from typing import Any

from absl import logging
from configs import digits
from experiments import devices
from experiments import records
from experiments import train
import jax

_BASELINE = 'dense'
_LIMIT_POINTS = 1.0


def compare(
  accuracies: Mapping[str, Sequence[float]],
) -> dict[str, dict[str, Any]]:
  """Returns each scheme's accuracy beside dense's, in points.

  Args:
    accuracies: fractions, in the same order of seeds for every scheme; must
      have `'dense'`.

  >>> compare({'dense': [0.98, 0.99], 'qsgd': [0.97, 0.99]})['qsgd'][
  ...   'mean_difference_points'
  ... ]
  -0.5
  """
  rows = {}
  for scheme, fractions in accuracies.items():
    differences = [
      100 * (mine - dense)
      for mine, dense in zip(fractions, accuracies[_BASELINE], strict=True)
    ]
    mean = statistics.fmean(differences)
    rows[scheme] = {
      'test_accuracy_percent': [round(100 * a, 2) for a in fractions],
      'difference_points': [round(d, 2) for d in differences],
      'mean_difference_points': round(mean, 2),
      'within_one_point': mean >= -_LIMIT_POINTS,
    }
  return rows


def measure(
  workdir: pathlib.Path,
  schemes: Sequence[str],
  seeds: Sequence[int],
  test_split: str,
  changes: Mapping[str, Any],
) -> dict[str, dict[str, Any]]:
  """Trains every scheme with every seed; finished runs are not repeated.

  Args:
    workdir: gets a folder for each run.
    schemes: of `configs.digits`.
    seeds: values of `train.seed`.
    test_split: value of `data.test_split`.
    changes: other fields, by their dotted names.

  Returns:
    What `compare` returns, with each scheme's bytes and seconds.
  """
  found: dict[str, list[Mapping[str, Any]]] = {}
  for scheme in schemes:
    for seed in seeds:
      config = digits.get_config(scheme)
      config.train.seed = seed
      config.train.checkpoint_every = config.train.steps
      config.data.test_split = test_split
      config.update_from_flattened_dict(changes)
      folder = workdir / f'{scheme}_seed{seed}'
      # A finished run has a checkpoint of its last step and returns at once.
      summary = train.train_and_evaluate(config, folder)
      jax.clear_caches()
      found.setdefault(scheme, []).append(summary)
      accuracy = summary['final']['test_accuracy']
      print(f'{scheme} seed {seed}: {accuracy:.2%}', flush=True)
  rows = compare(
    {
      scheme: [summary['final']['test_accuracy'] for summary in summaries]
      for scheme, summaries in found.items()
    }
  )
  for scheme, summaries in found.items():
    rows[scheme]['seconds'] = [summary['seconds'] for summary in summaries]
    rows[scheme]['comm'] = summaries[0]['comm']
  return rows


def main(argv: Sequence[str] | None = None) -> None:
  """Parses the command line, measures and writes the record."""
  argv = list(sys.argv[1:] if argv is None else argv)
  parser = argparse.ArgumentParser(
    prog='python -m experiments.claims', description=__doc__
  )
  parser.add_argument(
    '--output', type=pathlib.Path, required=True, help='JSON file to write'
  )
  parser.add_argument(
    '--workdir', type=pathlib.Path, default=pathlib.Path('runs', 'claims')
  )
  parser.add_argument(
    '--schemes', nargs='+', choices=digits.SCHEMES, default=digits.SCHEMES
  )
  parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
  parser.add_argument('--test-split', default='file')
  parser.add_argument('--steps', type=int, help="instead of the setting's")
  options = parser.parse_args(argv)
  logging.set_verbosity(logging.WARNING)
  schemes = [_BASELINE, *(s for s in options.schemes if s != _BASELINE)]
  changes = {'train.steps': options.steps} if options.steps else {}
  rows = measure(
    options.workdir, schemes, options.seeds, options.test_split, changes
  )
  records.write_json(
    options.output,
    {
      'claim': 'mean over seeds of (test accuracy - dense) >= -1 point',
      'command': shlex.join(['python', '-m', 'experiments.claims', *argv]),
      'setting': 'configs/digits.py',
      'test_split': options.test_split,
      'seeds': options.seeds,
      'schemes': rows,
      'environment': devices.describe(),
    },
  )
  for scheme, row in rows.items():
    verdict = 'holds' if row['within_one_point'] else 'FAILS'
    print(
      f'{scheme:<18} {row["test_accuracy_percent"]}  mean difference '
      f'{row["mean_difference_points"]:+.2f} points: {verdict}'
    )


if __name__ == '__main__':
  main()
