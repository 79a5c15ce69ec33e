"""Every scheme on digits: accuracy beside dense, bytes, seconds."""

from collections.abc import Mapping, Sequence
import pathlib
import statistics
from typing import Any

from configs import compare as settings
from experiments.program import tables
from experiments.studies import scheme_runs

_POINTS = 2.0  # what the accuracy may lose against dense


def measure(
  workdir: pathlib.Path,
  names: Sequence[str],
  seeds: Sequence[int],
  *,
  test_split: str = 'file',
  steps: int | None = None,
) -> list[dict[str, Any]]:
  """Trains each setting with each seed, afresh.

  Args:
    workdir: gets a folder for each run; former ones are replaced.
    names: of `configs.compare.SCHEMES`.
    seeds: of parameters and data order.
    test_split: 'file' is the test set, 'validation' a split of the training
      set.
    steps: fewer than the setting's, for a quick look.

  Returns:
    Rows of the table, dense first: accuracies (fractions) by seed, bytes,
    seconds.
  """
  runs = scheme_runs.list_runs(
    settings.get_config,
    scheme_runs.baseline_first(names),
    workdir,
    seeds=seeds,
    steps=steps,
    test_split=test_split,
  )
  return [
    {
      'setting': name,
      'arguments': settings.SCHEMES[name],
      'test_accuracy': scheme_runs.accuracies(summaries),
      **summaries[-1]['comm'],
      'seconds': statistics.fmean(s['seconds'] for s in summaries),
    }
    for name, summaries in scheme_runs.train_each(runs, afresh=True).items()
  ]


def points_behind(row: Mapping[str, Any], dense: Mapping[str, Any]) -> float:
  """Mean over seeds of dense's accuracy less this row's, in points."""
  return statistics.fmean(
    scheme_runs.points_above(dense['test_accuracy'], row['test_accuracy'])
  )


def results_table(rows: Sequence[Mapping[str, Any]]) -> tables.Table:
  """Returns the table, a row a setting; the first row is dense."""
  shown = []
  for row in rows:
    behind = points_behind(row, rows[0])
    cells = (
      row['setting'],
      f'{statistics.fmean(row["test_accuracy"]):.1%}',
      f'{behind:+.2f}' + ('' if behind <= _POINTS else ' (!)'),
    )
    shown.append(scheme_runs.Row(cells, row, row['seconds']))
  return scheme_runs.results_table(
    'digits, 4 simulated workers; means over seeds',
    ('setting', 'test\naccuracy', 'points\nbehind dense'),
    shown,
  )
