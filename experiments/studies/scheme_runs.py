"""One training of a list of schemes."""

from collections.abc import Callable
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


def train_one(
  run: Run, *, progress: Callable[..., Any] | None = None, command: str = ''
) -> dict[str, Any]:
  """Trains a scheme, or goes on with what its folder has of it.

  Args:
    run: which.
    progress: is told each step, see `loop.Progress`; without one a line is
      printed at the end.
    command: what the user typed, for the record.

  Returns:
    The summary.
  """
  try:
    summary = train.train_and_evaluate(
      run.config,
      run.folder,
      progress=progress or (lambda *_: None),
      command=command,
    )
  finally:
    jax.clear_caches()  # the next scheme compiles its own programs
  if progress is None:
    print(
      f'{run.scheme}, seed {run.config.train.seed}: '
      f'{scores.worded(summary["final"])}, {summary["seconds"]:.1f} s',
      flush=True,
    )
  return summary
