"""Parses one collective of a compiled program from a line of its text."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import re

from gradsparse.traffic import counting
from gradsparse.traffic import participants
from jax.sharding import AbstractMesh
from jax.sharding import Mesh


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective of a compiled program.

  Attributes:
    kind: one of counting.KINDS.
    nbytes: bytes of one worker's operand.
    workers: the number of members of a group; for a permute, the number of
      devices up to the last that takes part.
    sent: bytes sent by each device, by its place in the mesh, up to the last
      that takes part.
    axes: names of the mesh axes that it crosses, in the order of the mesh: the
      axes along which the members of a group differ, or source and target of a
      permute. None if `audit` has no mesh; () if each device is alone in its
      group, and nothing is sent. An axis of one device is not crossed.
  """

  kind: str
  nbytes: int
  workers: int
  sent: tuple[float, ...]
  axes: tuple[str, ...] | None = None


_OPS = {kind.replace('_', '-'): kind for kind in counting.KINDS}
_OPS['collective-permute'] = _OPS.pop('permute')
_COLLECTIVE = re.compile(
  r'=\s*(\(?[^=]*?)\s(send|' + '|'.join(_OPS) + r')(-start)?\('
)
# XLA numbers the elements of long tuples: /*index=5*/.
_COMMENT = re.compile(r'/\*.*?\*/')
_ARRAY = re.compile(r'\b(pred|[suf]\d+|bf16|f8\w*)\[([\d,]*)\]')


def parse(
  line: str, where: participants.Slices, mesh: Mesh | AbstractMesh | None
) -> Collective | None:
  """The collective in a line, or None.

  Args:
    line: a line of the text of a compiled program.
    where: the devices of the program.
    mesh: the mesh that the program was compiled for, or None.

  Raises:
    ValueError: the participants are written in an unknown form.
  """
  line = _COMMENT.sub('', line)
  match = _COLLECTIVE.search(line)
  if not match:
    return None
  shape, name, start = match.groups()
  members: Sequence[Sequence[int]]
  if name == 'send':
    transfer = where.transfer(line)
    if transfer is None:
      return None
    kind, members = transfer
    nbytes = _bytes(_elements(shape)[0])  # (operand, context, token)
  else:
    kind = _OPS[name]
    nbytes = _bytes(_result(shape, kind) if start else shape)
    members = where.everywhere(
      participants.source_target_pairs(line)
      if kind == 'permute'
      else participants.replica_groups(line, where.devices)
    )
    # The text shows the result.
    if kind == 'all_gather':
      nbytes //= max(map(len, members))
    elif kind == 'reduce_scatter':
      nbytes *= max(map(len, members))
  last = max((max(group) for group in members), default=0)
  if kind == 'permute':
    workers = 1 + last
    pairs = [(source, target) for source, target in members]
    sent = counting.sent_bytes(kind, nbytes, workers, pairs)
  else:
    workers = max(map(len, members))
    sent = [0.0] * (1 + last)
    for group in members:
      each = counting.sent_bytes(kind, nbytes, len(group))
      for device, own_bytes in zip(group, each, strict=True):
        sent[device] = own_bytes
  axes = None if mesh is None else participants.crossed_axes(members, mesh)
  return Collective(kind, nbytes, workers, tuple(sent), axes)


def _result(shape: str, kind: str) -> str:
  """The result's shape, in the shape of an asynchronous start operation.

  An all-reduce has only its results, unless its operands are a tuple:

    ((operands), results, ...)      any
    (operand, result, ...)          all-gather, permute
    result or (result, result)      all-reduce
  """
  elements = _elements(shape)
  if kind == 'all_reduce' and not elements[0].startswith('('):
    return shape
  return elements[1] if len(elements) > 1 else shape


def _elements(shape: str) -> list[str]:
  """The elements of a tuple, or the array itself."""
  if not shape.startswith('('):
    return [shape]
  out, depth = [''], 0
  for letter in shape[1:-1]:
    depth += (letter in '([{') - (letter in ')]}')
    if letter == ',' and not depth:
      out.append('')
    else:
      out[-1] += letter
  return [element.strip() for element in out]


def _bytes(shape: str) -> int:
  """Size of all arrays of a shape."""
  total = 0
  for dtype, dims in _ARRAY.findall(shape):
    bits = re.search(r'\d+', dtype)  # None for pred
    sizes = (int(d) for d in dims.split(',') if d)
    total += math.prod(sizes) * int(bits[0] if bits else 8) // 8
  return total
