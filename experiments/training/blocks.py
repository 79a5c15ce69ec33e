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

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax


class InBlocks(NamedTuple):
  """A training step of two programs, the first of which runs once a block.

  Attributes:
    compute: from what a block of workers has to its gradients, whose arrays
      have a leading axis.
    update: `(state, gradients of each block) -> (state, metrics)`.
    split: `(state, batch) ->` what each block has.
  """

  compute: Callable[..., Any]
  update: Callable[..., Any]
  split: Callable[[Any, Any], Iterable[tuple[Any, ...]]]

  def __call__(self, state: Any, batch: Any) -> Any:
    # One at a time: a CPU would begin with the next blocks meanwhile.
    blocks = self.split(state, batch)
    parts = [jax.block_until_ready(self.compute(*block)) for block in blocks]
    return self.update(state, parts)


def compiled(
  step: Any, state: Any, batch: Any
) -> tuple[Callable[..., Any], tuple[jax.stages.Compiled, ...]]:
  """Compiles a step that `training_step.make_train_step` made.

  Returns:
    What runs it, and the programs that this runs.
  """
  if not isinstance(step, InBlocks):
    program = step.lower(state, batch).compile()
    return program, (program,)
  blocks = [*step.split(state, batch)]
  compute = step.compute.trace(*blocks[0])
  update = step.update.lower(state, [compute.out_info] * len(blocks))
  programs = compute.lower().compile(), update.compile()
  return InBlocks(*programs, step.split), programs
