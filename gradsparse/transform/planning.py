"""What `plan()` learns while an update is traced: rows, and rungs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
import math
from typing import Any

from gradsparse import schedules
from gradsparse.sockets import Compressor
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Ladder
from gradsparse.sockets import Sparse
from gradsparse.traffic import counting
from gradsparse.transform.layout import Layout
import jax
import jax.numpy as jnp


def message_rows(
  compressor: Compressor,
  axis: Any,
  layout: Layout,
  own: Any,
  back: Exchanged,
) -> list[counting.Row]:
  """The lines of a plan for the leaves of this scheme.

  Args:
    compressor: of the scheme.
    axis: name of the mesh axis that the message crosses.
    layout: of the leaves.
    own: what this worker's message stands for.
    back: what came of it.
  """
  numbers, nbytes = layout.compressed, back.message_bytes
  assert isinstance(nbytes, int)  # no data, no size that depends on them
  rows: dict[int, counting.Row] = {}
  sizes = [math.prod(layout.shapes[i]) for i in numbers]
  transport = f'{compressor.name}, {back.transport}'
  if compressor.joined and numbers:
    names = [layout.names[i] for i in numbers]
    name = names[0] if len(names) == 1 else f'{len(names)} leaves, joined'
    total = sum(sizes)
    rows[numbers[0]] = counting.Row(
      name, total, 4 * total, nbytes, transport, axis
    )
  elif numbers:
    # One message for all leaves: each is charged its share of the entries.
    weights = own.space.limits if isinstance(own, Sparse) else sizes
    ends = [nbytes * c // sum(weights) for c in itertools.accumulate(weights)]
    begins = [0, *ends[:-1]]
    for i, n, begin, end in zip(numbers, sizes, begins, ends, strict=True):
      rows[i] = counting.Row(
        layout.names[i], n, 4 * n, end - begin, transport, axis
      )
  for i in layout.dense:
    n = math.prod(layout.shapes[i])
    rows[i] = counting.Row(layout.names[i], n, 4 * n, 4 * n, 'dense', axis)
  return [rows[i] for i in sorted(rows)]


def count_rungs(
  at_rung: Callable[[Any], Any],
  rungs: Sequence[Any],
  ladder: Ladder,
  axis: Any,
  recorder: counting.Recorder,
) -> Any:
  """Counts each rung by itself, and adds the one in force to the plan.

  If data decide which that is, the plan has the largest.
  """
  chosen = len(rungs) - 1
  if ladder.at_step is not None:
    step = schedules.LAST_STEP if recorder.step is None else recorder.step
    with jax.ensure_compile_time_eval():
      chosen = int(ladder.at_step(jnp.int32(step)))
  outs = []
  for number, rung in enumerate(rungs):
    with recorder.branch(
      number == chosen,
      lambda: sum(row.payload_bytes for row in recorder.message),
    ):
      outs.append(at_rung(rung))
    if number == chosen:
      recorder.rows.extend(recorder.message)
  if ladder.at_step is not None:
    sizes = recorder.rungs[-len(rungs) :]
    recorder.schedules.append(
      counting.Schedule(
        axis,
        tuple(
          counting.Rung(density, *size)
          for density, size in zip(rungs, sizes, strict=True)
        ),
        schedules.changes(ladder.at_step),
        chosen,
      )
    )
  return outs[chosen]
