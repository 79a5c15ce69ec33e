"""Reads the participants of a collective from the text of a compiled program.

A device is named by its number in the program, which is its place in the
mesh's order of devices. XLA writes groups in four forms:

  {{0,1},{2,3}}               each group; {} is one group of all devices
  [2,2]<=[4]                  0 to 3, as 2 groups of 2
  [2,2]<=[2,2]T(1,0)          the same of a transposed array: {{0,2},{1,3}}
  mesh['a'=2,'b'=2] {'b'}     devices that differ along axis b only

The axis names of the last form may be XLA's own, such as 'axis_0'. So all four
are read as numbers, and `crossed_axes` looks these up in a mesh.

On several TPU slices, one program runs in which a device has a number within
its slice. Its collectives stay inside a slice. Transfers between slices are
`send`s to the host, whose runtime (MegaScale) delivers them. They name devices
by their ids, in three forms:

  {{100000,200000},{100001,200001}}   each group
  "{1,2}x{0:15}"                      slices 1 and 2, each id from 0 to 15
  {{100000->200000}}                  source and target

These are read as places in the mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import Any

from gradsparse.traffic import counting
from jax.sharding import AbstractMesh
from jax.sharding import Mesh
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
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="?([{}\d,:x>-]+)')
_PRODUCT = re.compile(r'\{([\d,]+)\}x\{([\d,:]+)\}')
_GROUP = re.compile(r'\{(\d+(?:(?:,|->)\d+)*)\}')
# A device's id is its number in its slice plus this times the slice's number.
_A_SLICE = 100_000


def replica_groups(line: str, devices: int) -> list[tuple[int, ...]]:
  """The groups within which devices exchange.

  Args:
    line: an HLO instruction that has `replica_groups`.
    devices: the number of devices that run the program.

  Returns:
    The numbers of each group's devices.

  Raises:
    ValueError: the groups are written in an unknown form.
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
    ValueError: the instruction has no pairs in a known form.
  """
  pairs = _PAIRS.search(line)
  if not pairs:
    raise ValueError(f'cannot read the pairs of this collective: {line}')
  return [(source, target) for source, target in _braces(pairs.group(1))]


def crossed_axes(groups: Sequence[Sequence[int]], mesh: Any) -> tuple[str, ...]:
  """The axes along which the members of a group differ.

  Args:
    groups: numbers of the devices of each group or pair.
    mesh: the `jax.sharding.Mesh` or `AbstractMesh` that the program runs on.

  Returns:
    Names in the order of the mesh; () if each group has one member.
  """
  crossed = np.zeros(len(mesh.axis_sizes), bool)
  for group in groups:
    places = np.stack(np.unravel_index(group, mesh.axis_sizes))
    crossed |= (places != places[:, :1]).any(axis=1)
  names = zip(mesh.axis_names, crossed, strict=True)
  return tuple(name for name, is_crossed in names if is_crossed)


def _numbers(text: str) -> list[int]:
  """Parses '0,2:4' to [0, 2, 3, 4]."""
  out: list[int] = []
  for part in text.split(','):
    first, _, last = part.partition(':')
    out += range(int(first), int(last or first) + 1)
  return out


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
  """Groups by axes: devices with the same place along all other axes."""
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


# --- several slices ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slices:
  """The devices of a program, by their places in the mesh.

  Attributes:
    places: for each slice, its devices' places, in the order of their numbers.
    by_id: id of a device -> its place; empty without a mesh of devices.
  """

  places: tuple[tuple[int, ...], ...]
  by_id: Mapping[int, int] = dataclasses.field(default_factory=dict)

  @property
  def devices(self) -> int:
    """The number of devices of a slice."""
    return len(self.places[0])

  def everywhere(
    self, members: Iterable[Sequence[int]]
  ) -> list[tuple[int, ...]]:
    """Converts numbers in a slice to places in the mesh, for all slices."""
    groups = [tuple(group) for group in members]
    if len(self.places) == 1:
      return groups
    return [
      tuple(places[number] for number in group)
      for places in self.places
      for group in groups
    ]

  def transfer(self, line: str) -> tuple[str, list[tuple[int, ...]]] | None:
    """The transfer of a `send` to other slices; None if it stays at the host.

    Args:
      line: the HLO instruction.

    Returns:
      (one of counting.KINDS, places in the mesh of each group, or of source and
      target).

    Raises:
      ValueError: the kind or the target is unknown, or no mesh has the devices.
    """
    kind, target = _TYPE.search(line), _TARGET.search(line)
    if not kind:
      return None
    name = kind.group(1).lower().replace('one_to_one', 'permute')
    if not target or name not in counting.KINDS:
      raise ValueError(f'cannot read this transfer between slices: {line}')
    groups = _ids(target.group(1))
    unknown = {i for group in groups for i in group} - set(self.by_id)
    if not groups or unknown:
      raise ValueError(
        'mesh must be given to audit() with the devices of all slices, to read '
        f'a transfer to {target.group(1).rstrip(",")}'
      )
    members = [tuple(self.by_id[i] for i in group) for group in groups]
    return name, members


def slices_of(devices: int, mesh: Mesh | AbstractMesh | None) -> Slices:
  """The slices that run a program.

  Args:
    devices: the number of devices that the program names.
    mesh: the mesh that it was compiled for, or None.

  Raises:
    ValueError: neither the mesh nor each of its slices has this many devices.
  """
  by_id = {}
  if isinstance(mesh, Mesh):
    by_id = {d.id: place for place, d in enumerate(mesh.devices.flat)}
  if mesh is None or mesh.size == devices:
    return Slices((tuple(range(devices)),), by_id)
  places: dict[int, list[int]] = {}
  if isinstance(mesh, Mesh):
    for place, device in enumerate(mesh.devices.flat):
      places.setdefault(getattr(device, 'slice_index', 0), []).append(place)
  if not places or any(len(own) != devices for own in places.values()):
    raise ValueError(
      f'mesh must have the {devices} devices that the program runs on, or as '
      f'many in each slice, got {mesh.size}'
    )
  return Slices(tuple(tuple(own) for _, own in sorted(places.items())), by_id)


def _ids(target: str) -> list[tuple[int, ...]]:
  product = _PRODUCT.fullmatch(target)
  if not product:
    return [
      tuple(map(int, re.split(',|->', group)))
      for group in _GROUP.findall(target)
    ]
  slices, numbers = map(_numbers, product.groups())
  return [tuple(s * _A_SLICE + number for s in slices) for number in numbers]
