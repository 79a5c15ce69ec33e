"""Who takes part in a collective: the device groups that HLO text spells.

A device is named by its number in the program, which is its place in the
mesh's order of devices. XLA spells groups in four ways, newer ones shorter:

  {{0,1},{2,3}}               each group; {} is one group of all devices
  [2,2]<=[4]                  0 to 3, as 2 groups of 2
  [2,2]<=[2,2]T(1,0)          the same of a transposed array: {{0,2},{1,3}}
  mesh['a'=2,'b'=2] {'b'}     those who differ along axis b only

The names in the last are XLA's own: 'axis_0', and so on, where it has none. So
all four are read as numbers, and `crossed_axes` looks these up in a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Any

import numpy as np

_LISTED = re.compile(r'replica_groups=\{((?:\{[\d,]+\},?)*)\}')
_ARRAY = r'\[([\d,]+)\](?:T\(([\d,]+)\))?'
_IOTA = re.compile(r'replica_groups=\[([\d,]+)\]<=' + _ARRAY)
_MESH = re.compile(
  r'replica_groups=mesh\[([^\]]*)\]'
  r'(?:, device_ids=\((?:' + _ARRAY + r'|([\d,]+))\))? \{([^}]*)\}'
)
_AXIS = re.compile(r"'([^']+)'=(\d+)")
# A part of an axis, 'a':(2)4, is the digit of 4 values after one of 2.
_AXIS_REF = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r'source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}')


def replica_groups(line: str, devices: int) -> list[tuple[int, ...]]:
  """The groups within which devices exchange.

  Args:
    line: an HLO instruction that has `replica_groups`.
    devices: how many run the program.

  Returns:
    The numbers of each group's devices.

  Raises:
    ValueError: the groups are spelled in a way that is not known.
  """
  listed, iota = _LISTED.search(line), _IOTA.search(line)
  mesh = _MESH.search(line)
  if listed:
    return _braces(listed.group(1)) or [tuple(range(devices))]
  if iota:
    dims, *array = iota.groups()
    return _rows(_device_array(*array).reshape(_numbers(dims)))
  if mesh:
    return _mesh_groups(*mesh.groups())
  raise ValueError(f'cannot read the groups of this collective: {line}')


def source_target_pairs(line: str) -> list[tuple[int, int]]:
  """The (source, target) pairs of devices of a collective-permute.

  Args:
    line: the HLO instruction.

  Raises:
    ValueError: it has no pairs, or not as they are known.
  """
  pairs = _PAIRS.search(line)
  if not pairs:
    raise ValueError(f'cannot read the pairs of this collective: {line}')
  return [(source, target) for source, target in _braces(pairs.group(1))]


def crossed_axes(groups: Sequence[Sequence[int]], mesh: Any) -> tuple[str, ...]:
  """The axes along which the members of a group differ.

  Args:
    groups: numbers of devices; pairs will do.
    mesh: `jax.sharding.Mesh` or `AbstractMesh` that the program runs on.

  Returns:
    Names in the order of the mesh; none where each group has one member.
  """
  crossed = np.zeros(len(mesh.axis_sizes), bool)
  for group in groups:
    places = np.stack(np.unravel_index(group, mesh.axis_sizes))
    crossed |= (places != places[:, :1]).any(axis=1)
  names = zip(mesh.axis_names, crossed, strict=True)
  return tuple(name for name, is_crossed in names if is_crossed)


def _numbers(text: str) -> list[int]:
  return [int(number) for number in text.split(',')]


def _braces(text: str) -> list[tuple[int, ...]]:
  return [tuple(_numbers(group)) for group in re.findall(r'\{([\d,]+)\}', text)]


def _rows(array: np.ndarray) -> list[tuple[int, ...]]:
  return [tuple(row) for row in array.tolist()]


def _device_array(dims: str, order: str | None) -> np.ndarray:
  """0, 1, ... in an array of these dimensions, transposed to that order."""
  sizes = _numbers(dims)
  array = np.arange(np.prod(sizes)).reshape(sizes)
  return array.transpose(_numbers(order)) if order else array


def _mesh_groups(
  axes: str,
  dims: str | None,
  order: str | None,
  listed: str | None,
  grouped: str,
) -> list[tuple[int, ...]]:
  """Groups by axes: devices that are at the same place along the others."""
  sizes = {name: int(size) for name, size in _AXIS.findall(axes)}
  shape = tuple(sizes.values())
  places = dict(zip(sizes, np.indices(shape), strict=True))
  for name, before, size in _AXIS_REF.findall(grouped):
    values = int(size or sizes[name])
    after = sizes[name] // (int(before or 1) * values)
    digit = places[name] // after % values
    places[name] = places[name] - digit * after
  group = np.ravel_multi_index(tuple(places.values()), shape).ravel()
  if listed:
    devices = np.array(_numbers(listed))
  else:
    devices = _device_array(dims or str(group.size), order).ravel()
  by_group = devices[np.argsort(group, kind='stable')]
  return _rows(by_group.reshape(np.unique(group).size, -1))
