"""Records rows and rungs for `plan()` while an update is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
import math
from typing import Any

from gradsparse import health
from gradsparse import schedules
from gradsparse.sockets import Compressor
from gradsparse.sockets import Extras
from gradsparse.sockets import Ladder
from gradsparse.sockets import Leaves
from gradsparse.sockets import Sparse
from gradsparse.traffic import counting
from gradsparse.transform.buckets import Buckets
from gradsparse.transform.layout import Group
import jax
import jax.numpy as jnp


def message_rows(
  compressor: Compressor,
  axis: Any,
  buckets: Buckets,
  group: Group,
  own: Any,
  extras: Extras,
) -> list[counting.Row]:
  """The lines of a plan for the leaves of one message.

  Args:
    compressor: of the scheme.
    axis: name of the mesh axis that the message crosses.
    buckets: the leaves.
    group: the leaves of the message.
    own: this worker's decoded message; None if there is none.
    extras: of the exchange's result.
  """
  layout = buckets.layout
  numbers, nbytes = group.compressed, extras.message_bytes
  assert isinstance(nbytes, int)  # a plan's sizes do not depend on data
  rows: dict[int, counting.Row] = {}
  sizes = [math.prod(layout.shapes[i]) for i in numbers]
  transport = f'{compressor.name}, {extras.transport}'
  # Each leaf is charged its share of the message's entries, if it has one.
  weights = [compressor.share(layout.shapes[i]) for i in numbers]
  shared = layout.selects_globally
  if isinstance(own, Leaves):
    kinds = [x.dtype.itemsize for x in own.arrays]
    weights = [w * size for w, size in zip(weights, kinds, strict=True)]
  if isinstance(own, Sparse):
    weights = list(own.space.limits)
    shared |= sum(weights) > own.slots
  if shared and len(numbers) > 1:
    total = sum(sizes)
    rows[numbers[0]] = counting.Row(
      f'{len(numbers)} leaves, joined',
      total,
      4 * total,
      nbytes,
      transport,
      axis,
    )
  elif numbers:
    ends = [nbytes * c // sum(weights) for c in itertools.accumulate(weights)]
    begins = [0, *ends[:-1]]
    for i, n, begin, end in zip(numbers, sizes, begins, ends, strict=True):
      rows[i] = counting.Row(
        layout.names[i], n, 4 * n, end - begin, transport, axis
      )
  for i in group.dense:
    n = math.prod(layout.shapes[i])
    nbytes = n * jnp.dtype(health.wide(buckets.dtypes[i])).itemsize
    rows[i] = counting.Row(layout.names[i], n, 4 * n, nbytes, 'dense', axis)
  return [rows[i] for i in sorted(rows)]


def count_phases(
  phases: Sequence[Callable[[], Any]],
  first_steps: Sequence[int],
  axis: Any,
  recorder: counting.Recorder,
) -> Any:
  """Counts each phase of a run, and adds that of the planned step to the plan.

  Args:
    phases: for each phase of the run, a function that sends.
    first_steps: the first step of each phase, ascending from 0.
    axis: name of the mesh axis that messages cross.
    recorder: of the plan; without a step, the last phase is added.

  Returns:
    The result of the phase that was added.
  """
  step = schedules.LAST_STEP if recorder.step is None else recorder.step
  chosen = max(i for i, first in enumerate(first_steps) if first <= step)
  begin = len(recorder.rows)
  outs, rows, branches = [], [], []
  for phase in phases:
    with recorder.branch(
      lambda: sum(row.payload_bytes for row in recorder.rows[begin:])
    ) as branch:
      outs.append(phase())
    branches.append(branch)
    rows.append(recorder.rows[begin:])
    del recorder.rows[begin:]
  recorder.choose(branches[chosen])
  recorder.rows.extend(rows[chosen])
  recorder.schedules.append(
    counting.Schedule(
      axis,
      tuple(counting.Rung(1.0, *branch.size) for branch in branches),
      tuple((first, number) for number, first in enumerate(first_steps)),
      chosen,
    )
  )
  return outs[chosen]


def count_rungs(
  at_rung: Callable[[int], Any],
  rungs: Sequence[Any],
  ladder: Ladder,
  axis: Any,
  recorder: counting.Recorder,
) -> Any:
  """Counts each rung, and adds that of the planned step to the plan.

  If data decide the rung, the largest is added.
  """
  outs, branches = [], []
  for number in range(len(rungs)):
    with recorder.branch(
      lambda: sum(row.payload_bytes for row in recorder.message)
    ) as branch:
      outs.append(at_rung(number))
    branches.append(branch)
  if ladder.at_step is None:
    # Not always the last: a message with room for nearly all elements may be
    # larger than the one with all elements.
    chosen = max(range(len(rungs)), key=lambda number: branches[number].size)
  else:
    step = schedules.LAST_STEP if recorder.step is None else recorder.step
    with jax.ensure_compile_time_eval():
      chosen = int(ladder.at_step(jnp.int32(step)))
  recorder.choose(branches[chosen])
  recorder.rows.extend(branches[chosen].message)
  if ladder.at_step is not None:
    recorder.schedules.append(
      counting.Schedule(
        axis,
        tuple(
          counting.Rung(density, *branch.size)
          for density, branch in zip(rungs, branches, strict=True)
        ),
        schedules.changes(ladder.at_step),
        chosen,
      )
    )
  return outs[chosen]
