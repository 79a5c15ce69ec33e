"""What a compiled program says that it costs.

XLA for TPUs writes an estimate of its own, in cycles, beside each operation.
Custom calls, sorts, gathers and scatters have none: they count as zero, so the
true cost is higher. They are listed beside the estimate, by how often they run.
Kernels of gradsparse say how many bytes they read and write.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import re

# How often a loop runs whose number of turns XLA does not know.
UNKNOWN_TURNS = 20
_FREE = ('parameter', 'constant', 'get-tuple-element', 'tuple', 'bitcast')
_UNCOUNTED = ('custom-call', 'sort', 'gather', 'scatter')

_COMPUTATION = re.compile(r'^(ENTRY )?%?([\w.\-]+) .*\{\s*$')
_OPERATION = re.compile(r' = (?:\([^=]*?\)|[^ ]+) ([a-z][a-z0-9\-]*)\(')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_BYTES = re.compile(r'"bytes_accessed":"?(\d+)')
_TURNS = re.compile(r'known_(?:trip_count|init_step)[^0-9]*(\d+)')
_NAME = re.compile(r'op_name="([^"]*)"')
# A condition that compares nothing but a counter.
_COUNTER = re.compile(
  r'ROOT \S+ = \S+ compare\(\S+, %([\w.\-]+)\), direction=LT'
)
_COMMENT = re.compile(r'/\*.*?\*/')  # XLA counts the parts of a long tuple


@dataclasses.dataclass(frozen=True)
class Cost:
  """The cost of one program.

  Attributes:
    cycles: XLA's estimate; 0 where it makes none (CPUs, GPUs). Of several
      branches the most expensive one runs.
    of_sizes: the same for each branch of a switch between more than two, which
      are the sizes of a message; () if there is no such switch.
    launches: operations that run, those of loops as often as these turn.
    unknown_loops: loops whose number of turns only the data decide.
    uncounted: name of an operation without an estimate -> how often it runs.
    kernel_bytes: what kernels read and write, as they say.
    rows: (cycles, operation), the most expensive first.
  """

  cycles: int
  of_sizes: tuple[int, ...]
  launches: int
  unknown_loops: int
  uncounted: Mapping[str, int]
  kernel_bytes: int
  rows: tuple[tuple[int, str], ...]


def _called(line: str, name: str) -> str:
  return ''.join(re.findall(rf'{name}=%?([\w.\-]+)', line)[:1])


def _branches(line: str) -> list[str]:
  if found := re.search(r'branch_computations=\{([^}]*)\}', line):
    return [name.strip().lstrip('%') for name in found.group(1).split(',')]
  return [_called(line, f'{kind}_computation') for kind in ('true', 'false')]


def _counted(condition: Sequence[str]) -> int | None:
  """The turns of a loop that counts from 0 to a constant, else None."""
  for line in condition:
    if found := _COUNTER.search(line):
      constant = rf'%{re.escape(found.group(1))} = \S+ constant\((\d+)\)'
      bounds = [re.search(constant, other) for other in condition]
      return next((int(b.group(1)) for b in bounds if b), None)
  return None


def _computations(text: str) -> tuple[str, dict[str, list[str]]]:
  """The name of the entry, and the lines of each computation."""
  entry, own = '', []
  found: dict[str, list[str]] = {}
  for line in _COMMENT.sub('', text).splitlines():
    head = _COMPUTATION.match(line)
    if head:
      own = found.setdefault(head.group(2), [])
      entry = head.group(2) if head.group(1) else entry
    elif line.startswith('}'):
      own = []
    elif ' = ' in line:
      own.append(line)
  return entry, found


def of(text: str) -> Cost:
  """Reads the text of a compiled program (`Compiled.as_text`)."""
  entry, computations = _computations(text)
  rows: collections.Counter[str] = collections.Counter()
  uncounted: collections.Counter[str] = collections.Counter()
  sizes: list[int] = []
  unknown = touched = 0

  def turns(line):
    nonlocal unknown
    if known := _TURNS.search(line):
      return int(known.group(1))
    if known := _counted(computations.get(_called(line, 'condition'), ())):
      return known
    unknown += 1
    return UNKNOWN_TURNS

  def run(name, times):
    """(cycles, launches) of a computation that runs so often."""
    nonlocal touched
    cycles = launches = 0
    for line in computations.get(name, ()):
      operation = _OPERATION.search(line)
      kind = operation.group(1) if operation else '?'
      if kind in _FREE:
        continue
      launches += times
      if kind == 'while':
        parts = [run(_called(line, 'body'), times * turns(line))]
      elif kind == 'conditional':
        each = [run(branch, times) for branch in _branches(line)]
        parts = [max(each)]
        sizes[:] = [own for own, _ in each] if len(each) > 2 else sizes
      elif kind == 'call':
        parts = [run(_called(line, 'to_apply'), times)]
      else:
        parts = []
        estimate = _CYCLES.search(line)
        if estimate and not kind.endswith('-done'):
          own = times * int(estimate.group(1))
          label = _NAME.search(line)
          rows[f'{kind} {label.group(1) if label else "?"}'] += own
          cycles += own
        elif kind in _UNCOUNTED:
          uncounted[kind] += times
          touched += times * sum(map(int, _BYTES.findall(line)))
      cycles += sum(part[0] for part in parts)
      launches += sum(part[1] for part in parts)
    return cycles, launches

  cycles, launches = run(entry, 1)
  ranked = tuple((n, name) for name, n in rows.most_common())
  of_sizes = tuple(cycles - max(sizes) + own for own in sizes)
  return Cost(cycles, of_sizes, launches, unknown, uncounted, touched, ranked)
