"""Workers that drift apart, and gradients that are always rejected."""

from typing import Any

from experiments import data
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.training import gradients
from experiments.training import training_step
from experiments.training.experiment import Experiment
import gradsparse as gs
import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np


class Agreement:
  """Compares what is declared equal on all workers, bit for bit.

  A checksum a leaf on each device, and one small collective: 4 bytes a leaf to
  each other worker. A program of its own, beside that of the step.
  """

  def __init__(
    self, specs: training_step.TrainState, placement: placing.Placement
  ):
    """Prepares the check; it is compiled when it is first made.

    Args:
      specs: which parts of the state belong to one worker.
      placement: of the workers.
    """
    self._specs = specs
    self._axes = tuple(placement.axes)
    self._prints = None
    # Without a mesh what is shared is there once: nothing can differ.
    if placement.mesh is not None:
      self._prints = placement.parallel(
        lambda state: gs.workers.fingerprint(state, specs, self._axes),
        in_specs=(specs,),
        out_specs=PartitionSpec(),
      )

  def check(self, step: int, state: training_step.TrainState) -> None:
    """Raises unless all workers hold the same; all processes must call.

    Args:
      step: that was taken last.
      state: after it.

    Raises:
      DisagreementError: names step, leaf and worker.
    """
    if self._prints is None:
      return
    try:
      gs.workers.check_agreement(
        self._prints(state), state, self._specs, self._axes
      )
    except gs.workers.DisagreementError as error:
      raise errors.DisagreementError(
        f'after step {step} {error}. No checkpoint holds this: the same '
        'command goes on from the last one'
      ) from error


def too_many(
  experiment: Experiment,
  state: training_step.TrainState,
  step: int,
  in_a_row: int,
) -> errors.DivergedError:
  """Returns the error that names leaf and worker; all processes must call.

  The gradients are computed once more: a rejected step has left the parameters
  as they were.

  Args:
    experiment: of the run.
    state: after the step.
    step: the last one that was rejected.
    in_a_row: how many were.
  """
  batch = experiment.placement.batch(experiment.sampler.batch(step - 1))
  largest = _largest_gradients(experiment, state, batch)
  worst = np.unravel_index(np.argmax(largest), largest.shape)  # NaN above all
  paths = jax.tree_util.tree_leaves_with_path(experiment.shapes)
  leaf = jax.tree_util.keystr(paths[worst[-1]][0], simple=True, separator='/')
  value = largest[worst]
  told = f'reaches {value:.3g}' if np.isfinite(value) else 'is not finite'
  worker = ', device '.join(map(str, worst[:-1]))
  return errors.DivergedError(
    f'{in_a_row} steps in a row were rejected (train.max_rejected_steps), the '
    f'last is step {step}: the gradient of {leaf} on worker {worker} {told}; '
    f'{errors.CALMER}'
  )


def _largest_gradients(
  experiment: Experiment, state: training_step.TrainState, batch: data.Batch
) -> np.ndarray:
  """The largest magnitude in each leaf, NaN where one is.

  Returns:
    float32 with an axis for each of the placement's, and one of leaves.
  """
  placement = experiment.placement

  def step(state, batch):
    params: Any = state.params
    for axis in placement.axes:
      params = gs.workers.local(params, axis)
    got = gradients.plain(
      experiment.task, params, state.statistics, state.carry, batch
    )
    leaves = jax.tree.leaves(got.grads)
    return jnp.stack([jnp.max(jnp.abs(g), initial=0) for g in leaves])

  by_worker = PartitionSpec(*placement.axes)
  largest = placement.parallel(
    step,
    in_specs=(experiment.specs, by_worker),
    out_specs=by_worker,
  )(state, batch)
  if placement.processes > 1:
    return multihost_utils.process_allgather(largest, tiled=True)
  return np.asarray(largest)
