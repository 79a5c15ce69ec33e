"""What a compiled program moves: `audit()` reads its collectives."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from gradsparse.traffic import counting


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a compiled program.

  Attributes:
    kind: one of counting.KINDS.
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
# Long tuples are printed with the numbers of their elements: /*index=5*/.
_COMMENT = re.compile(r'/\*.*?\*/')
_ARRAY = re.compile(r'\b(pred|[suf]\d+|bf16|f8\w*)\[([\d,]*)\]')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRUE_FALSE = re.compile(
  r'true_computation=%?([\w.\-]+).*?false_computation=%?([\w.\-]+)'
)
_CALLS = re.compile(r'(?:to_apply|calls|body|condition)=%?([\w.\-]+)')
_GROUPS = re.compile(r'replica_groups=\{\{([\d,]*)\}')
_IOTA_GROUPS = re.compile(r'replica_groups=\[(\d+),(\d+)\]')
# jax 0.12: replica_groups=mesh['node'=2,'device'=4] {'device'}
_MESH_GROUPS = re.compile(r'replica_groups=mesh\[([^\]]*)\]\s*\{([^}]*)\}')
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
  line = _COMMENT.sub('', line)
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
    sent = counting.sent_bytes(kind, nbytes, workers, perm)
    return Collective(kind, nbytes, workers, computation, tuple(sent))
  groups, iota = _GROUPS.search(line), _IOTA_GROUPS.search(line)
  mesh = _MESH_GROUPS.search(line)
  if mesh:
    sizes_of = dict(re.findall(r"'([^']+)'=(\d+)", mesh.group(1)))
    names = re.findall(r"'([^']+)'", mesh.group(2))
    workers = math.prod(int(sizes_of[name]) for name in names)
  elif iota:
    workers = int(iota.group(2))
  elif groups:
    workers = len(groups.group(1).split(','))
  else:
    raise ValueError(f'cannot read the groups of this collective: {line}')
  if kind == 'all_gather':
    nbytes //= workers  # the text shows the result: P operands
  elif kind == 'reduce_scatter':
    nbytes *= workers
  sent = counting.sent_bytes(kind, nbytes, workers)
  return Collective(kind, nbytes, workers, computation, tuple(sent))


def audit(compiled: Any) -> Audit:
  """Reads what a compiled program's collectives move.

  Args:
    compiled: the result of `jax.jit(f).lower(...).compile()`, or its text.

  Returns:
    The collectives by the formulas of counting.py. Under `jax.vmap` (simulated
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
