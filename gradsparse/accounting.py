"""Bytes: what a scheme promises, and what a compiled program moves.

`plan()` traces the update with every collective counted and none performed;
`audit()` reads the collectives out of a compiled program. Both count by the
rules of traffic.py, and a test holds them together.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import math
import re
from typing import Any

from gradsparse import traffic
import jax
import jax.numpy as jnp
import optax


@dataclasses.dataclass(frozen=True)
class Plan:
  """What one update sends. `str()` is the table.

  Attributes:
    rows: a line for each leaf, or joined group of leaves.
    sent_bytes: what a worker puts on the network, the largest over workers.
    num_workers: P.
    rungs: (payload, sent) bytes of each size a message can have, where it
      depends on data or on a schedule; empty otherwise.
  """

  rows: tuple[traffic.Row, ...]
  sent_bytes: int
  num_workers: int | Mapping[str, int]
  rungs: tuple[tuple[int, int], ...] = ()

  @property
  def dense_bytes(self) -> int:
    """Size of the gradient as float32."""
    return sum(row.dense_bytes for row in self.rows)

  @property
  def payload_bytes(self) -> int:
    """One worker's message, and 4 bytes an element of the dense leaves."""
    return sum(row.payload_bytes for row in self.rows)

  @property
  def ratio(self) -> float:
    """dense_bytes / payload_bytes."""
    return self.dense_bytes / self.payload_bytes if self.payload_bytes else 1.0

  def __str__(self) -> str:
    head = ('leaf', 'elements', 'dense B', 'payload B', 'ratio', 'transport')
    lines = [
      (
        row.name,
        f'{row.elements:,}',
        f'{row.dense_bytes:,}',
        f'{row.payload_bytes:,}',
        _ratio(row.dense_bytes, row.payload_bytes),
        row.transport,
      )
      for row in self.rows
    ]
    lines.append(
      (
        'total',
        f'{sum(row.elements for row in self.rows):,}',
        f'{self.dense_bytes:,}',
        f'{self.payload_bytes:,}',
        f'{self.ratio:.1f}',
        f'sent by a worker: {self.sent_bytes:,} B',
      )
    )
    table = [head, *lines]
    widths = [max(len(line[c]) for line in table) for c in range(len(head))]

    def text(line):
      cells = [
        cell.ljust(w) if c in (0, 5) else cell.rjust(w)
        for c, (cell, w) in enumerate(zip(line, widths, strict=True))
      ]
      return '  '.join(cells).rstrip()

    return '\n'.join(map(text, table))


def _ratio(dense: int, payload: int) -> str:
  return f'{dense / payload:.1f}' if payload else '-'


def plan(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  step: int | None = None,
) -> Plan:
  """What an update of `tx` will send, from shapes alone.

  Args:
    tx: a scheme, or any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs.
    num_workers: P, or a mapping from axis name to P for several axes.
    step: at which density schedules are read; None is their last density.
      Where a message's size depends on data, the largest is planned and
      `rungs` lists all.

  Raises:
    ValueError: num_workers is not positive, or no scheme is inside.
  """
  sizes = num_workers if isinstance(num_workers, Mapping) else {'': num_workers}
  for size in sizes.values():
    if size < 1:
      raise ValueError(f'num_workers must be at least 1, got {num_workers}')
  shapes = jax.tree.map(
    lambda p: jax.ShapeDtypeStruct(jnp.shape(p), jnp.result_type(p)), params
  )
  recorder = traffic.Recorder(num_workers, step)
  update = optax.with_extra_args_support(tx).update

  # A new function each time: eval_shape caches by identity, and a cached
  # trace would record nothing.
  def once(params):
    state = tx.init(params)
    return update(params, state, params, second_moment=params)

  with traffic.recording(recorder):
    jax.eval_shape(once, shapes)
  if not recorder.rows and jax.tree.leaves(params):
    raise ValueError(
      'found no gradsparse scheme in this transformation: nothing would be '
      'averaged over workers'
    )
  return Plan(
    tuple(recorder.rows),
    recorder.most_sent,
    num_workers,
    tuple(recorder.rungs),
  )


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a compiled program.

  Attributes:
    kind: one of traffic.KINDS.
    nbytes: size of one worker's operand.
    workers: how many take part.
    computation: name of the HLO computation that holds it.
    sent: bytes sent, by position in the group.
  """

  kind: str
  nbytes: int
  workers: int
  computation: str
  sent: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Audit:
  """The collectives of a compiled program.

  Attributes:
    collectives: those outside of any branch.
    branches: sent bytes of each branch of each conditional that holds
      collectives (the rungs of a ladder).
  """

  collectives: tuple[Collective, ...]
  branches: tuple[tuple[int, ...], ...]

  @property
  def fixed_bytes(self) -> int:
    """Sent by the worker that sends most, outside of branches."""
    return _most_sent(self.collectives)

  @property
  def sent_bytes(self) -> int:
    """The same, with the largest branch of each conditional."""
    return self.fixed_bytes + sum(max(b) for b in self.branches)

  def __str__(self) -> str:
    lines = [
      f'{c.kind:<15}{c.nbytes:>14,} B of {c.workers} workers'
      for c in self.collectives
    ]
    for sizes in self.branches:
      lines.append('one of          ' + ', '.join(f'{s:,} B' for s in sizes))
    lines.append(f'sent by a worker: {self.sent_bytes:,} B')
    return '\n'.join(lines)


def _most_sent(collectives) -> int:
  by_size: dict[int, list[float]] = {}
  for c in collectives:
    old = by_size.get(len(c.sent), [0.0] * len(c.sent))
    by_size[len(c.sent)] = [a + b for a, b in zip(old, c.sent, strict=True)]
  return math.ceil(sum(max(sent) for sent in by_size.values()))


_OPS = {
  'all-reduce': 'all_reduce',
  'all-gather': 'all_gather',
  'all-to-all': 'all_to_all',
  'reduce-scatter': 'reduce_scatter',
  'collective-permute': 'permute',
}
_COMPUTATION = re.compile(r'^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s*\(.*->.*\{\s*$')
_COLLECTIVE = re.compile(
  r'=\s*(\(?[^=]*?)\s(' + '|'.join(_OPS) + r')(?:-start)?\('
)
_ARRAY = re.compile(r'\b(pred|[suf]\d+|bf16|f8\w*)\[([\d,]*)\]')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRUE_FALSE = re.compile(
  r'true_computation=%?([\w.\-]+).*?false_computation=%?([\w.\-]+)'
)
_CALLS = re.compile(r'(?:to_apply|calls|body|condition)=%?([\w.\-]+)')
_GROUPS = re.compile(r'replica_groups=\{\{([\d,]*)\}')
_IOTA_GROUPS = re.compile(r'replica_groups=\[(\d+),(\d+)\]')
_PAIRS = re.compile(r'source_target_pairs=\{(.*?)\}\}')


def _array_bytes(text: str) -> list[int]:
  out = []
  for dtype, dims in _ARRAY.findall(text):
    bits = 8 if dtype == 'pred' else int(re.sub(r'\D', '', dtype[:4]) or 8)
    bits = 8 if dtype.startswith('f8') else bits
    count = math.prod(int(d) for d in dims.split(',') if d)
    out.append(count * bits // 8)
  return out


def _parse(line: str, computation: str) -> Collective | None:
  match = _COLLECTIVE.search(line)
  if not match or '-done(' in line:
    return None
  kind = _OPS[match.group(2)]
  sizes = _array_bytes(match.group(1))
  if f'{match.group(2)}-start(' in line and len(sizes) > 1:
    sizes = sizes[len(sizes) // 2 :]  # (operands, results)
  nbytes = sum(sizes)
  if kind == 'permute':
    pairs = _PAIRS.search(line)
    perm = [
      (int(a), int(b))
      for a, b in re.findall(
        r'\{(\d+),(\d+)\}', pairs.group(0) if pairs else ''
      )
    ]
    workers = 1 + max((max(p) for p in perm), default=0)
    sent = traffic.sent_bytes(kind, nbytes, workers, perm)
    return Collective(kind, nbytes, workers, computation, tuple(sent))
  groups, iota = _GROUPS.search(line), _IOTA_GROUPS.search(line)
  if iota:
    workers = int(iota.group(2))
  elif groups:
    workers = len(groups.group(1).split(','))
  else:
    workers = 1
  if kind == 'all_gather':
    nbytes //= workers  # the text shows the result: P operands
  elif kind == 'reduce_scatter':
    nbytes *= workers
  sent = traffic.sent_bytes(kind, nbytes, workers)
  return Collective(kind, nbytes, workers, computation, tuple(sent))


def audit(compiled: Any) -> Audit:
  """Reads what a compiled program's collectives move.

  Args:
    compiled: the result of `jax.jit(f).lower(...).compile()`, or its text.

  Returns:
    The collectives by the formulas of traffic.py. Under `jax.vmap` (simulated
    workers) there are none.
  """
  text = compiled if isinstance(compiled, str) else compiled.as_text()
  own: dict[str, list[Collective]] = {}
  calls: dict[str, list[str]] = {}
  switches: dict[str, list[list[str]]] = {}
  name = entry = ''
  for line in text.splitlines():
    header = _COMPUTATION.match(line)
    if header:
      name = header.group(1)
      entry = name if line.lstrip().startswith('ENTRY') else entry
      own[name], calls[name], switches[name] = [], [], []
      continue
    found = _parse(line, name)
    if found:
      own[name].append(found)
      continue
    branches, pair = _BRANCHES.search(line), _TRUE_FALSE.search(line)
    if branches:
      switches[name].append(re.findall(r'[\w.\-]+', branches.group(1)))
    elif pair:
      switches[name].append(list(pair.groups()))
    elif name:
      calls[name].extend(_CALLS.findall(line))

  def collect(name):
    """(collectives, branch sizes) of a computation and what it calls."""
    flat, sizes = list(own.get(name, [])), []
    for callee in calls.get(name, []):
      more, inner = collect(callee)
      flat += more
      sizes += inner
    for branches in switches.get(name, []):
      totals = []
      for branch in branches:
        inside, nested = collect(branch)
        totals.append(_most_sent(inside) + sum(max(n) for n in nested))
      if any(totals):
        sizes.append(tuple(totals))
    return flat, sizes

  flat, sizes = collect(entry)
  return Audit(tuple(flat), tuple(sizes))
