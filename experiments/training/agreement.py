"""Whether the workers still hold the same of all that they share."""

from experiments.hosts import placement as placing
from experiments.program import errors
from experiments.training import training_step
import gradsparse as gs
from jax.sharding import PartitionSpec


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
      self._prints = gs.workers.parallel(
        lambda state: gs.workers.fingerprint(state, specs, self._axes),
        runner=placement.runner,
        num_workers=placement.axes,
        in_specs=(specs,),
        out_specs=PartitionSpec(),
        devices=placement.devices,
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
