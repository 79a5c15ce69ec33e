"""Simulated workers in blocks: what the backward pass holds is one block's.

A simulation computes the gradients of all workers together, and holds what the
backward pass needs of all of them: memory grows with their number. A gradient
needs no other worker. So a program of fewer workers can compute the gradients
of one block after the other; a second program then exchanges and updates for
all of them.

A loop inside one program would hold as little. But XLA on CPUs brings the
convolutions of a program into the form for which it has fast code only outside
of loops (jax-ml/jax issue 12868): ResNet-20's gradient took ten times as long.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class InBlocks:
  """A training step of two programs, the first of which runs once a block.

  Attributes:
    compute: `(params, statistics, carry, batch) -> gradients` of a block of
      workers, whose results have a leading axis.
    update: `(state, gradients of each block) -> (state, metrics)`.
    workers: how many there are.
    block: how many are computed at a time; divides their number.
    own_params: whether each worker has its own parameters.
  """

  compute: Callable[..., Any]
  update: Callable[..., Any]
  workers: int
  block: int
  own_params: bool

  def __call__(self, state: Any, batch: Any) -> Any:
    parts = []
    for first in range(0, self.workers, self.block):
      part = self.compute(*self._of_block(state, batch, first))
      # One at a time: a CPU would begin with the next blocks meanwhile.
      parts.append(jax.block_until_ready(part))
    return self.update(state, parts)

  def _of_block(self, state: Any, batch: Any, first: int) -> tuple[Any, ...]:
    """What computes the gradients of the block that begins with a worker."""

    def cut(tree):
      return jax.tree.map(lambda x: x[first : first + self.block], tree)

    params = cut(state.params) if self.own_params else state.params
    return params, *cut((state.statistics, state.carry, batch))

  def compiled(self, state: Any, batch: Any) -> 'InBlocks':
    """Returns the same, compiled for arguments like these."""
    traced = self.compute.trace(*self._of_block(state, batch, 0))
    parts = [traced.out_info] * (self.workers // self.block)
    return dataclasses.replace(
      self,
      compute=traced.lower().compile(),
      update=self.update.lower(state, parts).compile(),
    )


def compiled(
  step: Any, state: Any, batch: Any
) -> tuple[Callable[..., Any], tuple[jax.stages.Compiled, ...]]:
  """Compiles a step that `training_step.make_train_step` made.

  Returns:
    What runs it, and the programs that this runs.
  """
  if isinstance(step, InBlocks):
    step = step.compiled(state, batch)
    return step, (step.compute, step.update)
  program = step.lower(state, batch).compile()
  return program, (program,)
