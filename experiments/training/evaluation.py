"""How good a model is on the examples that it is tested on."""

from collections.abc import Callable
from typing import Any

from experiments import tasks
from experiments.hosts import placement as placing
from experiments.training import training_step
import jax


def make(
  task: tasks.Task,
  *,
  placement: placing.Placement,
  average: Callable[[Any], Any],
) -> Callable[[training_step.TrainState], dict[str, float]]:
  """Returns a function of a state that tests it on the whole set.

  It returns what the task's `scores` does. The processes share the work; all
  must call it.

  Args:
    task: has the model and the examples.
    placement: of the workers.
    average: `training_step.make_average_params`; what it returns is tested.
  """
  test = task.make_test()
  average_statistics = training_step.make_average_statistics(placement)

  def evaluate(state: training_step.TrainState) -> dict[str, float]:
    # One device is enough, and all devices hold the same parameters.
    params, statistics = jax.device_get(
      (
        average(training_step.tested_params(state)),
        average_statistics(state.statistics),
      )
    )
    own = test(params, statistics, placement.process, placement.processes)
    return task.scores(placement.total(own))

  return evaluate
