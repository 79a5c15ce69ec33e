"""How good the models of a run are, and which of its tests was the best."""

import dataclasses
import math
from typing import Any, NamedTuple

from experiments import tasks
from experiments.hosts.placement import Placement
from experiments.hosts.placement import total
from experiments.program import errors
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

  def __init__(self, task: tasks.Task, placement: Placement, differ: bool):
    """Prepares the test.

    Args:
      task: has the model and the examples.
      placement: of the workers.
      differ: whether parameters differ between workers.
    """
    self._task, self._placement, self._differ = task, placement, differ
    self._test = task.make_test()
    self._models = placement.compile(self._of)

  def models(self, state: training_step.TrainState) -> dict[str, Model]:
    """Returns the models of a state; all processes must call.

    Where parameters differ between workers, their mean is one more average.
    """
    params = training_step.tested_params(state)
    # One device is enough, and all devices hold the same.
    return jax.device_get(self._models(params, state.statistics))

  def _of(self, params, statistics):
    # Two floats a channel of batch normalisation travel, in no step but here.
    axes = len(self._placement.axes)
    mean = training_step.mean_over(axes, statistics)
    if not self._differ:
      return {MEAN: Model(params, mean)}
    first, own = jax.tree.map(lambda x: x[0], (params, statistics))
    return {
      MEAN: Model(training_step.mean_over(1, params), mean),
      # Of its inner workers' statistics the mean.
      ONE_WORKER: Model(first, training_step.mean_over(axes - 1, own)),
    }

  def __call__(self, model: Model) -> dict[str, float]:
    """Tests a model, and returns the scores of the task."""
    model = jax.device_put(model)  # once, not at each batch
    own = self._test(*model, jax.process_index(), jax.process_count())
    return self._task.scores(total(own))


@dataclasses.dataclass
class Lowest:
  """The lowest loss that the tests of a run have found so far.

  Attributes:
    best: the lowest loss; None before the first that is a number.
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


def check_finite(state: training_step.TrainState, step: int) -> None:
  """Raises if the parameters after `step` are not all numbers.

  A loss says so only one step later.

  Raises:
    DivergedError: names the first parameter.
  """
  for path, leaf in jax.tree.leaves_with_path(state.params):
    # Replicated parameters are looked at once, those that differ all.
    held = leaf.addressable_shards[: 1 if leaf.is_fully_replicated else None]
    if not all(np.isfinite(shard.data).all() for shard in held):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      raise errors.DivergedError(
        f'parameter {name} is not finite after step {step}; {errors.CALMER}'
      )
