"""Workers that drift apart, and gradients that are always rejected."""

from collections.abc import Callable
from typing import Any

from experiments import data
from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.training import gradients
from experiments.training import training_step
from experiments.training.experiment import Experiment
import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
import numpy as np


def make_agreement(
  specs: training_step.TrainState, placement: placing.Placement
) -> Callable[[int, training_step.TrainState], None]:
  """Returns what compares all that is declared equal on all workers.

  A checksum a leaf on each device, and one small collective: 4 bytes a leaf to
  each other worker. A program of its own, beside that of the step, which is
  compiled when it is first needed.

  Args:
    specs: which parts of the state belong to one worker.
    placement: of the workers.

  Returns:
    `(step, state after it) -> None`, which all processes must call. It raises a
    DisagreementError that names step, leaf and worker.
  """
  axes = tuple(placement.axes)
  # Without a mesh what is shared is there once: nothing can differ.
  if placement.mesh is None:
    return lambda step, state: None
  fingerprints = placement.parallel(
    lambda state: gs.workers.fingerprint(state, specs, axes),
    in_specs=(specs,),
    out_specs=PartitionSpec(),
  )

  def check(step, state):
    try:
      gs.workers.check_agreement(fingerprints(state), state, specs, axes)
    except gs.workers.DisagreementError as error:
      raise errors.DisagreementError(
        f'after step {step} {error}. No checkpoint holds this: the same '
        'command goes on from the last one'
      ) from error

  return check


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
  return np.asarray(placement.everywhere(jnp.asarray)(largest))
