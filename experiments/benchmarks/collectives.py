"""The exchange of a step, alone and left out.

A step is `compute` (select, pack, unpack, update) and the collectives in the
middle. Two programs tell them apart:

  compute   the same step with every collective replaced by its own operand
            (P copies of it for an all-gather): all of the work, no network
  alone     the same collectives, of the same sizes, in the same order, on
            arrays of no meaning: all of the network, no work
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
from typing import Any

from gradsparse.collectives.devices import permute
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Call:
  """One collective of a step.

  Attributes:
    kind: one of `counting.KINDS`.
    nbytes: size of one worker's operand.
    perm: (source, destination) pairs of a permute.
  """

  kind: str
  nbytes: int
  perm: tuple[tuple[int, int], ...] | None = None

  def serial_bytes(self, workers: int) -> float:
    """Bytes that must leave some worker before the next call can begin."""
    return max(counting.sent_bytes(self.kind, self.nbytes, workers, self.perm))


@dataclasses.dataclass
class Tape(counting.Recorder):
  """A recorder that also keeps the order of what it records.

  The step that it records is run: all but the collectives is computed.
  """

  computes: bool = True
  calls: list[Call] = dataclasses.field(default_factory=list)

  def add(self, axis_name: Any, kind: str, nbytes: int, perm=None) -> None:
    super().add(axis_name, kind, nbytes, perm)
    pairs = None if perm is None else tuple((s, d) for s, d in perm)
    self.calls.append(Call(kind, nbytes, pairs))


@contextlib.contextmanager
def left_out(workers: int) -> Iterator[list[Call]]:
  """Within it, steps are traced without their collectives.

  Args:
    workers: P.

  Yields:
    The collectives that were left out; filled while a step is traced.
  """
  tape = Tape(workers)
  with counting.recording(tape):
    yield tape.calls


def alone(
  calls: list[Call], axis_name: str
) -> tuple[Callable[[list[jax.Array]], jax.Array], list[int]]:
  """A per-worker function that performs the calls, and nothing else.

  XLA performs the collectives of a program one after another.

  Args:
    calls: from `left_out`.
    axis_name: of the workers.

  Returns:
    The function: float32 operands in, a number without meaning out; and the
    length of each operand.
  """

  def run(operands: list[jax.Array]) -> jax.Array:
    results = [
      _perform(call, x, axis_name)
      for call, x in zip(calls, operands, strict=True)
    ]
    # One entry of each, so that none is optimised away.
    return sum((x.reshape(-1)[0] for x in results), jnp.float32(0))

  return run, [max(1, call.nbytes // 4) for call in calls]


def _perform(call: Call, x: jax.Array, axis_name: str) -> jax.Array:
  size = jax.lax.axis_size(axis_name)
  if call.kind == 'all_reduce':
    return jax.lax.psum(x, axis_name)
  if call.kind == 'all_gather':
    return jax.lax.all_gather(x, axis_name)
  if call.kind == 'permute':
    return permute(x, axis_name, call.perm)
  if call.kind == 'all_to_all':
    rows = x[: x.shape[0] // size * size].reshape(size, -1)
    return jax.lax.all_to_all(rows, axis_name, 0, 0)
  raise ValueError(f'do not know how to perform {call.kind}')
