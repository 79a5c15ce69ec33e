"""The best test of a run: it may end the run, and its model is kept."""

from collections.abc import Mapping
import math
import pathlib
from typing import Any

from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.program import files
from experiments.run import records
from experiments.training import evaluation
from experiments.training import training_step
import jax
import numpy as np


class EarlyStop:
  """Counts tests in a row that found no smaller loss than all before.

  Attributes:
    due: whether there were as many as the run may have.
  """

  def __init__(self, patience: int, before: Mapping[str, Any] | None = None):
    """Begins to count, or goes on.

    Args:
      patience: tests in a row; 0: as many as there are.
      before: what `to_dict` returned at a checkpoint.
    """
    self._patience = patience
    before = before or {}
    best = before.get('best')
    self._best = math.inf if best is None else best
    self._in_a_row = before.get('in_a_row', 0)

  @property
  def due(self) -> bool:
    return 0 < self._patience <= self._in_a_row

  @property
  def found(self) -> bool:
    """Whether a test has found a loss."""
    return math.isfinite(self._best)

  def observe(self, loss: float) -> bool:
    """Takes the loss of a test; whether it is smaller than all before."""
    better = loss < self._best
    if better:
      self._best, self._in_a_row = loss, 0
    else:
      self._in_a_row += 1
    return better

  def to_dict(self) -> dict[str, Any]:
    """Returns what a checkpoint must hold, as JSON has it."""
    best = self._best if math.isfinite(self._best) else None
    return {'best': best, 'in_a_row': self._in_a_row}


# Whose model: the mean of all workers', or, where they differ, the first one's.
MEAN = 'mean'
ONE_WORKER = 'one_worker'
# By these names.
Models = Mapping[str, evaluation.Model]


def models(
  evaluate: evaluation.Evaluation,
  state: training_step.TrainState,
  differ: bool,
) -> Models:
  """Returns the models of a state; all processes must call.

  Args:
    evaluate: tests them.
    state: of the run.
    differ: whether parameters differ between workers.
  """
  found = {MEAN: evaluate.model(state)}
  if differ:
    found[ONE_WORKER] = evaluate.model(state, one_worker=True)
  return found


class Best:
  """The models of the test with the smallest loss; a file keeps them.

  A run that goes on from a checkpoint before that test does it again, and
  writes the same file.

  Attributes:
    step: after which that test was; 0 before the first.
    models: of that step; empty before the first.
  """

  def __init__(self, path: pathlib.Path, placement: placing.Placement):
    """Keeps nothing yet.

    Args:
      path: of the file.
      placement: of the workers.
    """
    self._path, self._placement = path, placement
    self.step = 0
    self.models: Models = {}

  def keep(self, step: int, found: Models) -> None:
    """Takes the models after a step; all processes must call.

    Raises:
      FileError: they cannot be written.
    """
    self.step, self.models = step, found
    content = {'step': np.int64(step), **found}
    self._placement.on_chief(lambda: records.write_params(self._path, content))

  def restore(self, like: Models) -> None:
    """Reads what a former run has kept.

    Args:
      like: models of the same run, of any step.

    Raises:
      FileError: the file is missing, damaged or of another model.
    """
    with files.explained('read', self._path):
      content = self._path.read_bytes()
    try:
      kept = records.read_params(content, {'step': np.int64(0), **like})
    except ValueError as error:
      raise errors.FileError(
        f'{self._path} is damaged, or of another run: {error}'
      ) from error
    self.step = int(kept.pop('step'))
    self.models = jax.tree.map(np.asarray, kept)
