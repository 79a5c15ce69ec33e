"""One training of a list of schemes, and who watches it."""

from collections.abc import Mapping
import pathlib
from typing import Any, NamedTuple

from experiments.run import scores
from experiments.training import train
import jax
import ml_collections


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
      f'{run.scheme}, seed {run.config.train.seed}: '
      f'{scores.worded(summary["final"])}, {summary["seconds"]:.1f} s',
      flush=True,
    )


def train_one(
  run: Run, *, watch: Watch | None = None, command: str = ''
) -> dict[str, Any]:
  """Trains a scheme, or goes on with what its folder has of it.

  Args:
    run: which.
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
