"""How good a model is on the examples that it is tested on."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from experiments import tasks
from experiments.hosts import placement as placing
from experiments.training import training_step
import jax


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
    self,
    task: tasks.Task,
    *,
    placement: placing.Placement,
    average: Callable[[Any], Any],
  ):
    """Prepares the test.

    Args:
      task: has the model and the examples.
      placement: of the workers.
      average: `training_step.make_average_params`.
    """
    self._task, self._placement, self._average = task, placement, average
    self._test = task.make_test()
    self._statistics = placement.everywhere(
      functools.partial(training_step.mean_over, len(placement.axes))
    )
    self._first = placement.everywhere(self._of_the_first)

  def __call__(
    self, state: training_step.TrainState, one_worker: bool = False
  ) -> dict[str, float]:
    """Returns what the task's `scores` does, of a state: see `model`."""
    return self.of_model(self.model(state, one_worker))

  def model(
    self, state: training_step.TrainState, one_worker: bool = False
  ) -> Model:
    """Returns what is tested of a state.

    Where parameters differ between workers, that is their mean, which is one
    more average.

    Args:
      state: of the run.
      one_worker: take the first worker's own model instead; for parameters that
        differ.
    """
    params = training_step.tested_params(state)
    if one_worker:
      tested = self._first(params, state.statistics)
    else:
      # Two floats a channel of batch normalisation travel, in no step but here.
      statistics = state.statistics and self._statistics(state.statistics)
      tested = self._average(params), statistics
    # One device is enough, and all devices hold the same parameters.
    return Model(*jax.device_get(tested))

  def _of_the_first(self, params, statistics):
    """The first worker's own; of its inner workers' statistics the mean."""
    own = jax.tree.map(lambda x: x[0], (params, statistics))
    inner_axes = len(self._placement.axes) - 1
    return own[0], training_step.mean_over(inner_axes, own[1])

  def of_model(self, model: Model) -> dict[str, float]:
    """Returns what the task's `scores` does, of a model."""
    placement = self._placement
    own = self._test(*model, placement.process, placement.processes)
    return self._task.scores(placement.total(own))
