"""Which worker's gradient it is that steps are rejected for."""

from typing import Any

from experiments import data
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
  """The largest magnitude in each leaf, NaN where not all is finite.

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
    return jnp.stack(
      [
        jnp.where(
          jnp.all(jnp.isfinite(g)), jnp.max(jnp.abs(g), initial=0), jnp.nan
        )
        for g in jax.tree.leaves(got.grads)
      ]
    )

  by_worker = PartitionSpec(*placement.axes)
  largest = gs.workers.parallel(
    step,
    runner=placement.runner,
    num_workers=placement.axes,
    in_specs=(experiment.specs, by_worker),
    out_specs=by_worker,
    devices=placement.devices,
  )(state, batch)
  if placement.processes > 1:
    return multihost_utils.process_allgather(largest, tiled=True)
  return np.asarray(largest)
