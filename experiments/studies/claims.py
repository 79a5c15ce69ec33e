"""How far compressed training stays from dense, as a mean over seeds."""

from collections.abc import Mapping, Sequence
import pathlib
import statistics
from typing import Any

from configs import digits
from experiments.studies import scheme_runs

CLAIM = 'mean over seeds of (test accuracy - dense) >= -1 point'
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
    differences = scheme_runs.points_above(
      fractions, accuracies[scheme_runs.BASELINE]
    )
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
  *,
  test_split: str = 'file',
  steps: int | None = None,
) -> dict[str, dict[str, Any]]:
  """Trains every scheme with every seed; finished runs are not repeated.

  Args:
    workdir: gets a folder for each run.
    schemes: of `configs.digits`.
    seeds: values of `train.seed`.
    test_split: value of `data.test_split`.
    steps: instead of the setting's.

  Returns:
    What `compare` returns, with each scheme's bytes and seconds.
  """
  runs = scheme_runs.list_runs(
    digits.get_config,
    scheme_runs.baseline_first(schemes),
    workdir,
    seeds=seeds,
    steps=steps,
    test_split=test_split,
  )
  found = scheme_runs.train_each(runs, afresh=False)
  rows = compare(
    {
      scheme: scheme_runs.accuracies(summaries)
      for scheme, summaries in found.items()
    }
  )
  for scheme, summaries in found.items():
    rows[scheme]['seconds'] = [summary['seconds'] for summary in summaries]
    rows[scheme]['comm'] = summaries[0]['comm']
  return rows


def verdicts(rows: Mapping[str, Mapping[str, Any]]) -> str:
  """Returns a line for each scheme: whether the claim holds."""
  return '\n'.join(
    f'{scheme:<18} {row["test_accuracy_percent"]}  mean difference '
    f'{row["mean_difference_points"]:+.2f} points: '
    + ('holds' if row['within_one_point'] else 'FAILS')
    for scheme, row in rows.items()
  )
