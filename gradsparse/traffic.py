"""What a collective puts on the network, and a recorder that adds it up.

One place for the formulas, because `plan()` (what we promise) and `audit()`
(what the compiled program does) must count by the same rules:

  all-reduce      ring: 2 (P - 1) / P times the array
  all-gather      (P - 1) times a worker's message
  all-to-all      (P - 1) / P times the array
  reduce-scatter  (P - 1) / P times the array
  permute         the array, for each worker that is a source
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import contextvars
import dataclasses
import math
from typing import Any

KINDS = (
  'all_reduce',
  'all_gather',
  'all_to_all',
  'reduce_scatter',
  'permute',
)


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
  """

  name: str
  elements: int
  dense_bytes: int
  payload_bytes: int
  transport: str
  axis: Any = None


@dataclasses.dataclass
class Recorder:
  """Adds up the traffic of one traced update (see `recording`).

  Attributes:
    workers: P, assumed for every axis, or a mapping from axis name to P.
    step: optimizer step at which schedules are read; None is the last.
    sent: by axis, the bytes each worker sends, by rank; outside of branches.
    branched: bytes sent in the chosen branches, by the worker that sends most.
    rows: what was planned, a leaf or a joined group each.
    message: rows of the message that is being traced.
    rungs: (payload, sent) bytes of every size that a ladder could take.
  """

  workers: int | Mapping[str, int]
  step: int | None = None
  sent: dict[Any, list[float]] = dataclasses.field(default_factory=dict)
  branched: int = 0
  rows: list[Row] = dataclasses.field(default_factory=list)
  message: list[Row] = dataclasses.field(default_factory=list)
  rungs: list[tuple[int, int]] = dataclasses.field(default_factory=list)

  def size(self, axis_name: Any) -> int:
    """P of an axis (of the product, where it is several)."""
    if isinstance(self.workers, int):
      return self.workers
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    return math.prod(self.workers[name] for name in names)

  def add(self, axis_name: Any, kind: str, nbytes: int, perm=None) -> None:
    new = sent_bytes(kind, nbytes, self.size(axis_name), perm)
    old = self.sent.get(axis_name, [0.0] * len(new))
    self.sent[axis_name] = [a + b for a, b in zip(old, new, strict=True)]

  @property
  def most_sent(self) -> int:
    """Bytes sent by the worker that sends most."""
    return _most(self.sent) + self.branched

  @contextlib.contextmanager
  def branch(self, chosen: bool, payload: Callable[[], int]) -> Iterator[None]:
    """Counts one branch of a switch; only a chosen one enters the sums.

    Args:
      chosen: whether this is the branch to count on.
      payload: asked at the end for the bytes of the message and of the leaves
        that stay dense.
    """
    before, self.sent = self.sent, {}
    yield
    sent, self.sent = _most(self.sent), before
    self.rungs.append((payload(), sent))
    if chosen:
      self.branched += sent


def _most(sent: Mapping[Any, Sequence[float]]) -> int:
  return math.ceil(sum(max(by_rank) for by_rank in sent.values()))


_ACTIVE: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar(
  'gradsparse_recorder', default=None
)


def active() -> Recorder | None:
  """The recorder of the trace in progress, or None in ordinary use."""
  return _ACTIVE.get()


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[Recorder]:
  """Within it, collectives are counted in `recorder` instead of performed."""
  token = _ACTIVE.set(recorder)
  try:
    yield recorder
  finally:
    _ACTIVE.reset(token)
