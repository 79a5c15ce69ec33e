"""Trains a list of schemes one after another, and puts them in one table."""

from collections.abc import Callable, Mapping, Sequence
import pathlib
import shutil
from typing import Any, NamedTuple

from experiments.program import tables
from experiments.run import byte_counter
from experiments.run import records
from experiments.training import train
import jax
import ml_collections

BASELINE = 'dense'


class Run(NamedTuple):
  """One training of a list.

  Attributes:
    scheme: the name that its configuration gives it.
    config: of the run.
    folder: for its records.
  """

  scheme: str
  config: ml_collections.ConfigDict
  folder: pathlib.Path


class Watch:
  """Is told how the runs go; this one prints a line at the end of each."""

  def start(self, run: Run) -> None:
    """A run begins."""

  def update(self, step: int, steps: int, line: Mapping[str, float]) -> None:
    """A step is done, see `loop.Progress`."""

  def end(self, run: Run, summary: Mapping[str, Any]) -> None:
    """A run has reached its last step."""
    print(
      f'{run.scheme}, seed {run.config.train.seed}: test accuracy '
      f'{summary["final"]["test_accuracy"]:.2%}, {summary["seconds"]:.1f} s',
      flush=True,
    )


def baseline_first(schemes: Sequence[str]) -> list[str]:
  """Returns the schemes with the one that all are compared to in front."""
  return [BASELINE, *(scheme for scheme in schemes if scheme != BASELINE)]


def list_runs(
  get_config: Callable[[str], ml_collections.ConfigDict],
  schemes: Sequence[str],
  workdir: pathlib.Path,
  *,
  seeds: Sequence[int] = (),
  steps: int | None = None,
  test_split: str = 'file',
) -> list[Run]:
  """Returns a run for each scheme and seed.

  Args:
    get_config: of a file in configs/.
    schemes: what it knows.
    workdir: gets a folder for each run.
    seeds: of parameters and data order; that of the configuration if empty.
    steps: fewer than the configuration's, for a quick look.
    test_split: value of `data.test_split`.
  """
  runs = []
  for scheme in schemes:
    for seed in seeds or (None,):
      config = get_config(scheme)
      config.train.steps = steps or config.train.steps
      config.data.test_split = test_split
      name = scheme.replace(':', '_')
      if seed is not None:
        config.train.seed = seed
        name = f'{name}_seed{seed}'
      runs.append(Run(scheme, config, workdir / name))
  return runs


def train_each(
  runs: Sequence[Run], *, afresh: bool, watch: Watch | None = None
) -> dict[str, list[dict[str, Any]]]:
  """Trains all.

  Args:
    runs: from `list_runs`.
    afresh: replace former runs, and write no checkpoints; else what is
      finished is not repeated.
    watch: is told what happens.

  Returns:
    The summaries by scheme, in the order of the runs.
  """
  summaries: dict[str, list[dict[str, Any]]] = {}
  for run in runs:
    # A finished run has a checkpoint of its last step and returns at once.
    every = 0 if afresh else run.config.train.steps
    run.config.train.checkpoint_every = every
    if afresh and (run.folder / records.CONFIG).exists():
      shutil.rmtree(run.folder)
    summaries.setdefault(run.scheme, []).append(train_one(run, watch=watch))
  return summaries


def train_one(
  run: Run, *, watch: Watch | None = None, command: str = ''
) -> dict[str, Any]:
  """Trains one, or goes on with what its folder has of it.

  Args:
    run: from `list_runs`, or made by hand.
    watch: is told what happens.
    command: what the user typed, for the record.

  Returns:
    The summary.
  """
  watch = watch or Watch()
  watch.start(run)
  try:
    summary = train.train_and_evaluate(
      run.config, run.folder, progress=watch.update, command=command
    )
  finally:
    jax.clear_caches()  # the next scheme compiles its own programs
  watch.end(run, summary)
  return summary


def accuracies(summaries: Sequence[Mapping[str, Any]]) -> list[float]:
  """Returns the test accuracy of each run, a fraction."""
  return [summary['final']['test_accuracy'] for summary in summaries]


def points_above(mine: Sequence[float], other: Sequence[float]) -> list[float]:
  """Returns differences of accuracies with the same seed, in points."""
  return [100 * (a - b) for a, b in zip(mine, other, strict=True)]


class Row(NamedTuple):
  """A line of the table.

  Attributes:
    cells: of the columns that a study has for itself.
    comm: of a summary.
    seconds: that a run took.
  """

  cells: Sequence[str]
  comm: Mapping[str, Any]
  seconds: float


def results_table(
  title: str, columns: Sequence[str], rows: Sequence[Row]
) -> tables.Table:
  """Returns the table of a study.

  Args:
    title: above it.
    columns: headings of `Row.cells`.
    rows: one a scheme.
  """

  def both(row: Row, name: str, *form: str) -> str:
    return byte_counter.last_and_average(row.comm, name, *form)

  return tables.make(
    (
      *columns,
      'message\n(bytes)',
      'sent a step\n(bytes)',
      'compression\nratio',
      'seconds',
    ),
    [
      (
        *row.cells,
        both(row, 'payload_bytes_per_step'),
        both(row, 'sent_bytes_per_step'),
        both(row, 'ratio', '{:,.1f}x'),
        f'{row.seconds:.1f}',
      )
      for row in rows
    ],
    title=title,
    caption='second line: the average over the whole run, warm-up included',
  )
