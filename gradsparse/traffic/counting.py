"""The bytes that collectives send, and tallies of them.

`plan()`, `metrics()` and `audit()` of the compiled program share these
formulas:

  all-reduce      ring: 2 (P - 1) / P times the array
  all-gather      (P - 1) times a worker's message
  all-to-all      (P - 1) / P times the array
  reduce-scatter  (P - 1) / P times the array
  permute         the array, for each worker that is a source
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import dataclasses
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import schedules
import jax
import jax.numpy as jnp

KINDS = 'all_reduce', 'all_gather', 'all_to_all', 'reduce_scatter', 'permute'

# The largest count of bytes in a state, a uint32.
MOST_BYTES = 2**32 - 1


def total(counts: Iterable[int | jax.Array]) -> jax.Array:
  """The sum of byte counts, exact up to MOST_BYTES, where it saturates.

  Args:
    counts: nonnegative whole numbers, or uint32 scalars.

  Returns:
    uint32 scalar.
  """
  known, sum_of = 0, jnp.uint32(0)
  for count in counts:
    if isinstance(count, int):
      known += count
    else:
      sum_of = _added(sum_of, count)
  return _added(sum_of, jnp.uint32(min(known, MOST_BYTES)))


def _added(a: jax.Array, b: jax.Array) -> jax.Array:
  both = a + b
  return jnp.where(both < a, jnp.uint32(MOST_BYTES), both)


def sent_bytes(
  kind: str,
  nbytes: int,
  workers: int,
  perm: Sequence[tuple[int, int]] | None = None,
) -> list[float]:
  """Bytes that each worker sends in one collective.

  Args:
    kind: one of `KINDS`.
    nbytes: size in bytes of one worker's operand.
    workers: P, how many workers take part.
    perm: (source, destination) pairs, for 'permute' only.

  Returns:
    P numbers, bytes.
  """
  if kind == 'permute':
    sources = {s for s, d in perm or () if s != d}
    return [float(nbytes) if w in sources else 0.0 for w in range(workers)]
  factor = {
    'all_reduce': 2 * (workers - 1) / workers,
    'all_gather': workers - 1,
    'all_to_all': (workers - 1) / workers,
    'reduce_scatter': (workers - 1) / workers,
  }[kind]
  return [factor * nbytes] * workers


@dataclasses.dataclass(frozen=True)
class Row:
  """One line of a plan: a leaf, or several leaves in one message.

  Attributes:
    name: path of the leaf, or of the leaves.
    elements: number of elements.
    dense_bytes: their bytes as float32.
    payload_bytes: their bytes in one worker's message.
    transport: scheme and collective, such as 'dgc, all-gather' or 'dense'.
    axis: name of the mesh axis that the message crosses.
    every: the message is sent in one of this many updates (`gs.accumulate`).
  """

  name: str
  elements: int
  dense_bytes: int
  payload_bytes: int
  transport: str
  axis: Any = None
  every: int = 1


class Rung(NamedTuple):
  """One size of a message that follows a schedule of density.

  Attributes:
    density: the density that the message has room for.
    payload_bytes: bytes of one worker's message.
    sent_bytes: bytes sent by the worker that sends most.
  """

  density: float
  payload_bytes: int
  sent_bytes: int


@dataclasses.dataclass(frozen=True)
class Schedule:
  """How the size of one scheme's message changes from step to step.

  Attributes:
    axis: name of the mesh axis that the message crosses.
    rungs: the sizes of the message.
    stages: (first step, number of the rung) pairs, from step 0.
    planned: number of the rung that the plan counts.
  """

  axis: Any
  rungs: tuple[Rung, ...]
  stages: tuple[tuple[int, int], ...]
  planned: int

  def at(self, step: int) -> Rung:
    """The rung at a step."""
    number = [n for first, n in self.stages if first <= step][-1]
    return self.rungs[number]


@dataclasses.dataclass
class Tally:
  """Counts the bytes of the program that is traced.

  Attributes:
    workers: P of every axis, or a mapping from axis name to P.
    sent: axis -> the bytes that each worker sends, by rank.
    switched: bytes sent in branches, known at run time only, for `total`.
  """

  workers: int | Mapping[str, int]
  sent: dict[Any, list[float]] = dataclasses.field(default_factory=dict)
  switched: list[Any] = dataclasses.field(default_factory=list)

  def size(self, axis_name: Any) -> int:
    """P of an axis, or of the product of several.

    Raises:
      ValueError: the axis has no size, or too many workers.
    """
    if isinstance(self.workers, int):
      return self.workers
    names = arguments.axis_names(axis_name)
    for name in names:
      if name not in self.workers:
        raise ValueError(
          f'num_workers must give the size of axis {name!r}, got '
          f'{dict(self.workers)}{arguments.did_you_mean(name, self.workers)}'
        )
    return arguments.num_workers(math.prod(self.workers[n] for n in names))

  def add(self, axis_name: Any, kind: str, nbytes: int, perm=None) -> None:
    new = sent_bytes(kind, nbytes, self.size(axis_name), perm)
    old = self.sent.get(axis_name, [0.0] * len(new))
    self.sent[axis_name] = [a + b for a, b in zip(old, new, strict=True)]

  @property
  def most_sent(self) -> Any:
    """Bytes sent by the worker that sends most, a uint32 scalar."""
    return total([_most(self.sent), *self.switched])

  @contextlib.contextmanager
  def apart(self) -> Iterator[None]:
    """A context with its own count, which is dropped at the end."""
    before = self.sent, self.switched
    self.sent, self.switched = {}, []
    try:
      yield
    finally:
      self.sent, self.switched = before


@dataclasses.dataclass
class Recorder(Tally):
  """The records of one traced update, for `plan()` (see `recording`).

  `sent` has the bytes outside of switches, and of the branches that `switch`
  added those of the worker that sends most there.

  Attributes:
    step: optimizer step at which schedules are read; None is the last.
    rows: the lines of the plan.
    rungs: (payload, sent) bytes of every rung of a ladder.
    schedules: one for each scheme whose size of message the step decides.
    computes: whether the traced program will run, without its collectives. A
      plan does not run, so computations can be left out.
  """

  step: int | None = None
  rows: list[Row] = dataclasses.field(default_factory=list)
  rungs: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  schedules: list[Schedule] = dataclasses.field(default_factory=list)
  computes: bool = False

  @property
  def most_sent(self) -> int:
    """Bytes sent by the worker that sends most, chosen branches included."""
    return _most(self.sent)

  @property
  def most_sent_by_axis(self) -> dict[Any, int]:
    """`most_sent` of each axis."""
    return _most_by_axis(self.sent)

  def switch(
    self,
    branches: Sequence[Callable[[], Any]],
    densities: Sequence[Any],
    axis: Any,
    at_step: Callable[[jax.Array], jax.Array] | None = None,
  ) -> Any:
    """Counts each branch of a switch, and adds one of them to the plan.

    Args:
      branches: functions that send.
      densities: of each branch's message.
      axis: name of the mesh axis that the messages cross.
      at_step: int32 step -> the number of the branch; then that of the planned
        step is added. None: data decide, and the largest branch is added.

    Returns:
      The result of the branch that was added.
    """
    outs, sizes, rows, sent = [], [], [], []
    for branch in branches:
      begin = len(self.rows)
      with self.apart():
        outs.append(branch())
        inside = self.sent
      rows.append(self.rows[begin:])
      del self.rows[begin:]
      payload = sum(row.payload_bytes for row in rows[-1])
      sizes.append((payload, _most(inside)))
      sent.append(_most_by_axis(inside))
      self.rungs.append(sizes[-1])
    if at_step is None:
      # Not always the last: a message with room for nearly all elements may be
      # larger than the one with all elements.
      chosen = max(range(len(sizes)), key=lambda number: sizes[number])
    else:
      step = arguments.LAST_STEP if self.step is None else self.step
      with jax.ensure_compile_time_eval():
        chosen = int(at_step(jnp.int32(step)))
      rungs = tuple(
        Rung(density, *size)
        for density, size in zip(densities, sizes, strict=True)
      )
      stages = schedules.changes(at_step)
      self.schedules.append(Schedule(axis, rungs, stages, chosen))
    self.rows.extend(rows[chosen])
    for name, most in sent[chosen].items():
      outside = self.sent.get(name, [0.0] * self.size(name))
      self.sent[name] = [nbytes + most for nbytes in outside]
    return outs[chosen]


def _most(sent: Mapping[Any, Sequence[float]]) -> int:
  return math.ceil(sum(max(by_rank) for by_rank in sent.values()))


def _most_by_axis(sent: Mapping[Any, Sequence[float]]) -> dict[Any, int]:
  return {axis: math.ceil(max(by_rank)) for axis, by_rank in sent.items()}


_ACTIVE: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
  'gradsparse_recorder', default=None
)


def active() -> Recorder | None:
  """The recorder of the trace in progress, or None in ordinary use."""
  return _ACTIVE.get()


@contextlib.contextmanager
def one_call_late() -> Iterator[None]:
  """Plans an update of the gradient of the call before, as that of `delayed`.

  The first two calls are at step 0 of the scheme inside.
  """
  recorder = active()
  if recorder is None:
    yield
    return
  step, begin = recorder.step, len(recorder.schedules)
  recorder.step = step - 1 if step else step
  yield
  recorder.step = step
  recorder.schedules[begin:] = [
    dataclasses.replace(
      schedule, stages=tuple((n and n + 1, rung) for n, rung in schedule.stages)
    )
    for schedule in recorder.schedules[begin:]
  ]


@contextlib.contextmanager
def recording(recorder: Recorder | None) -> Iterator[Recorder | None]:
  """A context in which `recorder` counts collectives instead of running them.

  With None, collectives run, even inside another recording.
  """
  token = _ACTIVE.set(recorder)
  try:
    yield recorder
  finally:
    _ACTIVE.reset(token)


@contextlib.contextmanager
def one_of(every: int) -> Iterator[None]:
  """A context whose rows of a plan are sent in one of `every` updates."""
  recorder = active()
  rows = [] if recorder is None else recorder.rows
  begin = len(rows)
  yield
  rows[begin:] = [
    dataclasses.replace(row, every=every * row.every) for row in rows[begin:]
  ]
