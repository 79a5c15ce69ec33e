"""Checks of a run's state: workers that drift apart, numbers that are none."""

from collections.abc import Callable

from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.training import training_step
import gradsparse as gs
import jax
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
        'command resumes from the last checkpoint'
      ) from error

  return check


def check_finite(state: training_step.TrainState, step: int) -> None:
  """Raises if the parameters after `step` are not all numbers.

  A loss says so only one step later.

  Raises:
    DivergedError: names the first parameter.
  """
  for path, leaf in jax.tree_util.tree_leaves_with_path(state.params):
    # Replicated parameters are looked at once, those that differ all.
    held = leaf.addressable_shards[: 1 if leaf.is_fully_replicated else None]
    if not all(np.isfinite(shard.data).all() for shard in held):
      name = jax.tree_util.keystr(path, simple=True, separator='/')
      raise errors.DivergedError(
        f'parameter {name} is not finite after step {step}; {errors.CALMER}'
      )
