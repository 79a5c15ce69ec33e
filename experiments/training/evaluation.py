"""How good a model is on the examples that it is tested on."""

from collections.abc import Callable
from typing import Any

from experiments import tasks
from experiments.hosts import placement as placing
from experiments.training import training_step
import jax

# Of a state, and whether only the first worker's model is tested.
Evaluate = Callable[..., dict[str, float]]


def make(
  task: tasks.Task,
  *,
  placement: placing.Placement,
  average: Callable[[Any], Any],
) -> Evaluate:
  """Returns a function of a state that tests it on the whole set.

  It returns what the task's `scores` does. The processes share the work; all
  must call it. Where parameters differ between workers, what is tested is their
  mean, which is one more average; with `one_worker=True` it is the first
  worker's own model.

  Args:
    task: has the model and the examples.
    placement: of the workers.
    average: `training_step.make_average_params`.
  """
  test = task.make_test()
  average_statistics = training_step.make_average_statistics(placement)
  of_one_worker = training_step.make_of_one_worker(placement)

  def evaluate(
    state: training_step.TrainState, one_worker: bool = False
  ) -> dict[str, float]:
    params = training_step.tested_params(state)
    if one_worker:
      tested = of_one_worker(params, state.statistics)
    else:
      tested = average(params), average_statistics(state.statistics)
    # One device is enough, and all devices hold the same parameters.
    params, statistics = jax.device_get(tested)
    own = test(params, statistics, placement.process, placement.processes)
    return task.scores(placement.total(own))

  return evaluate
