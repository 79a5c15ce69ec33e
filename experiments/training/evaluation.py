"""How good the models of a run are, and which of its tests was the best."""

from collections.abc import Mapping
import dataclasses
import functools
import math
import pathlib
from typing import Any, NamedTuple

from experiments import tasks
from experiments.hosts import placement as placing
from experiments.run import records
from experiments.training import training_step
import jax
import numpy as np

# Whose model: the mean of all workers', or, where they differ, the first one's.
MEAN = 'mean'
ONE_WORKER = 'one_worker'


class Model(NamedTuple):
  """What a test needs of a state, on the host.

  Attributes:
    params: parameters, without an axis of workers.
    statistics: of batch normalisation, likewise.
  """

  params: Any
  statistics: Any


class Evaluation:
  """A test on the whole set.

  The processes share the work; all must call it.
  """

  def __init__(
    self, task: tasks.Task, placement: placing.Placement, differ: bool
  ):
    """Prepares the test.

    Args:
      task: has the model and the examples.
      placement: of the workers.
      differ: whether parameters differ between workers.
    """
    self._task, self._placement, self._differ = task, placement, differ
    self._test = task.make_test()
    self._params, self._statistics = (
      placement.compile(functools.partial(training_step.mean_over, axes))
      for axes in (1, len(placement.axes))
    )
    self._first = placement.compile(self._of_the_first)

  def models(self, state: training_step.TrainState) -> dict[str, Model]:
    """Returns the models of a state; all processes must call.

    Where parameters differ between workers, their mean is one more average.
    """
    params = training_step.tested_params(state)
    # Two floats a channel of batch normalisation travel, in no step but here.
    statistics = self._statistics(state.statistics)
    found = {MEAN: Model(params, statistics)}
    if self._differ:
      found = {
        MEAN: Model(self._params(params), statistics),
        ONE_WORKER: self._first(params, state.statistics),
      }
    # One device is enough, and all devices hold the same parameters.
    return jax.device_get(found)

  def _of_the_first(self, params, statistics):
    """The first worker's own; of its inner workers' statistics the mean."""
    params, statistics = jax.tree.map(lambda x: x[0], (params, statistics))
    inner_axes = len(self._placement.axes) - 1
    return Model(params, training_step.mean_over(inner_axes, statistics))

  def __call__(self, model: Model) -> dict[str, float]:
    """Returns what the task's `scores` does, of a model."""
    model = jax.device_put(model)  # once, not at each batch
    own = self._test(*model, jax.process_index(), jax.process_count())
    return self._task.scores(placing.total(own))


@dataclasses.dataclass
class Lowest:
  """The lowest loss that the tests of a run have found so far.

  Attributes:
    best: it; None before the first that is a number.
    in_a_row: tests since then, none of them lower.
  """

  best: float | None = None
  in_a_row: int = 0

  def observe(self, loss: float) -> bool:
    """Takes the loss of a test; whether it is lower than all before."""
    lower = loss < (math.inf if self.best is None else self.best)
    self.best = loss if lower else self.best
    self.in_a_row = 0 if lower else self.in_a_row + 1
    return lower

  def stuck(self, patience: int) -> bool:
    """Whether so many tests, or a multiple, have found no lower loss."""
    return self.in_a_row > 0 and self.in_a_row % patience == 0


class Best:
  """The models of the test with the lowest loss; a file keeps them.

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
    self.models: Mapping[str, Model] = {}

  def keep(self, step: int, models: Mapping[str, Model]) -> None:
    """Takes the models after a step; all processes must call.

    Raises:
      FileError: they cannot be written.
    """
    self.step, self.models = step, models
    content = {'step': np.int64(step), **models}
    self._placement.on_chief(lambda: records.write_params(self._path, content))

  def restore(self, like: Mapping[str, Model]) -> None:
    """Reads what a former run has kept.

    Args:
      like: models of the same run, of any step.

    Raises:
      FileError: the file is missing, damaged or of another model.
    """
    kept = records.read_params(self._path, {'step': np.int64(0), **like})
    self.step = int(kept.pop('step'))
    self.models = kept
