"""Simulated workers, all at once or in blocks, in memory that is known.

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

from experiments.run import machine
import jax
import jax.numpy as jnp

# Of the device's memory; the rest is for data sets and what JAX itself needs.
_SHARE = 0.8


@dataclasses.dataclass(frozen=True)
class CompiledStep:
  """A training step, compiled for arguments of the same types.

  Attributes:
    run: `(state, batch) -> (state, metrics)`.
    programs: what it runs.
    peak_bytes: what a device holds at most meanwhile, the state included.
  """

  run: Callable[[Any, Any], Any]
  programs: tuple[jax.stages.Compiled, ...]
  peak_bytes: int | None

  def __call__(self, state: Any, batch: Any) -> Any:
    return self.run(state, batch)


@dataclasses.dataclass(frozen=True)
class InBlocks:
  """A training step of two programs, the first of which runs once a block.

  Attributes:
    compute: `(params, statistics, carry, batch) -> gradients` of a block of
      workers, whose results have a leading axis.
    update: `(state, gradients) -> (state, metrics)` of all workers.
    workers: how many there are.
    block: how many are computed at a time; divides their number.
    own_params: whether each worker has its own parameters.
  """

  compute: jax.stages.Wrapped
  update: Callable[[Any, Any], Any]
  workers: int
  block: int
  own_params: bool

  def compile(self, state: Any, batch: Any) -> CompiledStep:
    """Compiles both programs for arguments like these."""
    firsts = range(0, self.workers, self.block)

    def arguments(state, batch, first):
      """What computes the gradients of the block that begins with a worker."""

      def cut(tree):
        return jax.tree.map(lambda x: x[first : first + self.block], tree)

      params = cut(state.params) if self.own_params else state.params
      return params, *cut((state.statistics, state.carry, batch))

    def finish(state, parts):
      joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
      return self.update(state, joined)

    def run(state, batch):
      parts = []
      for first in firsts:
        part = compute(*arguments(state, batch, first))
        # One at a time: a CPU would begin with the next blocks meanwhile.
        parts.append(jax.block_until_ready(part))
      return update(state, tuple(parts))

    example = arguments(state, batch, 0)
    traced = self.compute.trace(*example)
    parts = (traced.out_info,) * len(firsts)
    compute = traced.lower().compile()
    update = jax.jit(finish, donate_argnums=0).lower(state, parts).compile()
    peak, other = map(machine.peak_bytes, (compute, update))
    if peak is not None and other is not None:
      # In the last block the device also holds the gradients of the others, and
      # of the state what no gradient depends on.
      peak += _nbytes(parts[1:]) + _nbytes(state) - _nbytes(example[:2])
      peak = max(peak, other)
    return CompiledStep(run, (compute, update), peak)


def compiled(step: Any, state: Any, batch: Any) -> CompiledStep:
  """Compiles a step that `training_step.make_train_step` made."""
  if isinstance(step, InBlocks):
    return step.compile(state, batch)
  program = step.lower(state, batch).compile()
  return CompiledStep(program, (program,), machine.peak_bytes(program))


def fitting(
  make: Callable[[int | None], Any],
  state: Any,
  batch: Any,
  *,
  workers: int,
  memory_bytes: int,
  block: int = 0,
) -> tuple[CompiledStep, int]:
  """Compiles a step of as many workers at a time as the memory holds.

  Args:
    make: returns the step of so many workers at a time; all for None.
    state: before a step.
    batch: of all workers.
    workers: how many there are.
    memory_bytes: what the device has.
    block: so many instead; 0: as many as fit.

  Returns:
    The step, and how many workers it computes at a time.
  """
  if 0 < block < workers:
    return compiled(make(block), state, batch), block
  whole = compiled(make(None), state, batch)
  room = _SHARE * memory_bytes
  if block or workers == 1 or (whole.peak_bytes or 0) <= room:
    return whole, workers
  held = _nbytes(state)
  each = (whole.peak_bytes - held) / workers
  # As large as parameters are the gradients, which wait for each other.
  waiting = workers * _nbytes(state.params)
  smaller = [b for b in range(1, workers) if not workers % b]
  fits = [b for b in smaller if held + waiting + b * each <= room]
  block = max(fits, default=1)
  return compiled(make(block), state, batch), block


def text(step: CompiledStep, workers: int, block: int, memory: int) -> str:
  """What a step takes, in a line for users.

  Args:
    step: of these workers.
    workers: how many are simulated.
    block: how many at a time.
    memory: bytes that the device has.
  """
  peak = (
    'unknown' if step.peak_bytes is None else f'{step.peak_bytes / 1e9:.2f}'
  )
  return (
    f'gradients of {block} of {workers} simulated workers at a time: a step '
    f'takes {peak} of {memory / 1e9:.1f} GB of memory'
  )


def _nbytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
