"""What a collective puts on the network, and tallies that add it up.

One place for the formulas, because `plan()` (what we promise), `metrics()`
(what a step says that it sent) and `audit()` (what the compiled program does)
must count by the same rules:

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
import jax
import jax.numpy as jnp

KINDS = 'all_reduce', 'all_gather', 'all_to_all', 'reduce_scatter', 'permute'

# What a count of bytes in a state is at most: it is a uint32.
MOST_BYTES = 2**32 - 1


def total(counts: Iterable[int | jax.Array]) -> jax.Array:
  """The sum of byte counts, exact up to MOST_BYTES, and never more than that.

  Args:
    counts: whole numbers, not negative; if they are arrays, uint32 scalars.

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
  """One line of a plan: a leaf, or a group of leaves joined in one message.

  Attributes:
    name: path of the leaf, or of the leaves that were joined.
    elements: how many numbers it has.
    dense_bytes: their size as float32.
    payload_bytes: what one worker's message holds of it.
    transport: how it travels, e.g. 'dgc, all-gather' or 'dense'.
    axis: name of the mesh axis that it crosses.
    every: updates of which one sends it, and the others nothing
      (`gs.accumulate`).
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
    density: the one that it has room for.
    payload_bytes: size of one worker's message.
    sent_bytes: by the worker that sends most.
  """

  density: float
  payload_bytes: int
  sent_bytes: int


@dataclasses.dataclass(frozen=True)
class Schedule:
  """How the size of one scheme's message changes from step to step.

  Attributes:
    axis: name of the mesh axis that it crosses.
    rungs: the sizes that the message can have.
    stages: (first step, number of the rung) pairs, from step 0.
    planned: number of the rung that the plan counts.
  """

  axis: Any
  rungs: tuple[Rung, ...]
  stages: tuple[tuple[int, int], ...]
  planned: int

  def at(self, step: int) -> Rung:
    """The rung in force."""
    number = [n for first, n in self.stages if first <= step][-1]
    return self.rungs[number]


@dataclasses.dataclass
class Tally:
  """Adds up the traffic of what is being traced.

  Attributes:
    workers: P, assumed for every axis, or a mapping from axis name to P.
    sent: by axis, the bytes each worker sends, by rank.
    switched: bytes sent in branches, which are known at run time only: counts
      for `total`.
  """

  workers: int | Mapping[str, int]
  sent: dict[Any, list[float]] = dataclasses.field(default_factory=dict)
  switched: list[Any] = dataclasses.field(default_factory=list)

  def size(self, axis_name: Any) -> int:
    """P of an axis (of the product, where it is several).

    Raises:
      ValueError: the axis has no size, or is of too many workers.
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
    """Within it, a count that begins at zero and leaves nothing behind."""
    before = self.sent, self.switched
    self.sent, self.switched = {}, []
    try:
      yield
    finally:
      self.sent, self.switched = before


@dataclasses.dataclass
class Branch:
  """What was counted in a branch of a switch.

  Attributes:
    size: (payload, sent) bytes, of the worker that sends most.
    sent: the same by axis.
    message: rows of the message that was traced last.
  """

  size: tuple[int, int] = (0, 0)
  sent: Mapping[Any, int] = dataclasses.field(default_factory=dict)
  message: list[Row] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Recorder(Tally):
  """What `plan()` learns from one traced update (see `recording`).

  `sent` is what is sent outside of branches, and in the chosen ones by the
  worker that sends most there.

  Attributes:
    step: optimizer step at which schedules are read; None is the last.
    rows: what was planned, a leaf or a joined group each.
    message: rows of the message that is being traced.
    rungs: (payload, sent) bytes of every size that a ladder could take.
    schedules: of the schemes whose size of message the step decides.
    computes: whether what is traced will run, without its collectives. A plan
      does not: what sends nothing can be left out.
  """

  step: int | None = None
  rows: list[Row] = dataclasses.field(default_factory=list)
  message: list[Row] = dataclasses.field(default_factory=list)
  rungs: list[tuple[int, int]] = dataclasses.field(default_factory=list)
  schedules: list[Schedule] = dataclasses.field(default_factory=list)
  computes: bool = False

  @property
  def most_sent(self) -> int:
    """Bytes sent by the worker that sends most, chosen branches included."""
    return _most(self.sent)

  @property
  def most_sent_by_axis(self) -> dict[Any, int]:
    """The same for each axis by itself."""
    return _most_by_axis(self.sent)

  @contextlib.contextmanager
  def branch(self, payload: Callable[[], int]) -> Iterator[Branch]:
    """Counts one branch of a switch; it enters the sums once it is chosen.

    Args:
      payload: called at the end; returns the bytes of the message and of the
        leaves that stay dense.
    """
    counted = Branch()
    with self.apart():
      yield counted
      inside = self.sent
    counted.message = self.message
    counted.size = payload(), _most(inside)
    counted.sent = _most_by_axis(inside)
    self.rungs.append(counted.size)

  def choose(self, branch: Branch) -> None:
    """Adds what is sent in a branch, the one to count on, to the sums."""
    for axis, most in branch.sent.items():
      outside = self.sent.get(axis, [0.0] * self.size(axis))
      self.sent[axis] = [sent + most for sent in outside]


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
def recording(recorder: Recorder | None) -> Iterator[Recorder | None]:
  """Inside of it, `recorder` counts the collectives and none is performed.

  If it is None they are performed, even inside of another recording.
  """
  token = _ACTIVE.set(recorder)
  try:
    yield recorder
  finally:
    _ACTIVE.reset(token)


@contextlib.contextmanager
def one_of(every: int) -> Iterator[None]:
  """Inside of it, the rows of a plan are sent in one of `every` updates."""
  recorder = active()
  rows = [] if recorder is None else recorder.rows
  begin = len(rows)
  yield
  rows[begin:] = [
    dataclasses.replace(row, every=every * row.every) for row in rows[begin:]
  ]
