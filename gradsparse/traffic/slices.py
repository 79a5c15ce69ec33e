"""Several slices of TPUs: which device is which, and what travels between them.

All slices run one program, in which a device has a number within its slice. The
collectives of a program stay inside of a slice. What crosses slices is a `send`
to the host, whose runtime (MegaScale) delivers it. It names devices by their
ids, in three ways:

  {{100000,200000},{100001,200001}}   each group
  "{1,2}x{0:15}"                      slices 1 and 2, each id from 0 to 15
  {{100000->200000}}                  source and target

So all are read as places in the mesh, the order of its devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import re
from typing import NamedTuple

from jax.sharding import AbstractMesh
from jax.sharding import Mesh

_KINDS = {
  'ALL_REDUCE': 'all_reduce',
  'ALL_GATHER': 'all_gather',
  'ALL_TO_ALL': 'all_to_all',
  'REDUCE_SCATTER': 'reduce_scatter',
  'ONE_TO_ONE': 'permute',
}
_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="?([{}\d,:x>-]+)')
_PRODUCT = re.compile(r'\{([\d,]+)\}x\{([\d,:]+)\}')
_GROUP = re.compile(r'\{(\d+(?:(?:,|->)\d+)*)\}')
# The id of a device is its number in its slice, and that of the slice times
# this.
_A_SLICE = 100_000


class Transfer(NamedTuple):
  """Between slices.

  Attributes:
    kind: one of counting.KINDS.
    members: places in the mesh of each group, or of source and target.
  """

  kind: str
  members: list[tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Slices:
  """The devices of a program, by their places in the mesh.

  Attributes:
    places: of the devices of each slice, in the order of their numbers.
    by_id: id of a device -> its place; empty without a mesh of devices.
  """

  places: tuple[tuple[int, ...], ...]
  by_id: Mapping[int, int] = dataclasses.field(default_factory=dict)

  @property
  def devices(self) -> int:
    """How many a slice has."""
    return len(self.places[0])

  def everywhere(
    self, members: Iterable[Sequence[int]]
  ) -> list[tuple[int, ...]]:
    """Groups by number in a slice, in all slices, by place in the mesh."""
    groups = [tuple(group) for group in members]
    if len(self.places) == 1:
      return groups
    return [
      tuple(places[number] for number in group)
      for places in self.places
      for group in groups
    ]

  def transfer(self, line: str) -> Transfer | None:
    """What a `send` delivers to other slices; None if it stays at the host.

    Args:
      line: the HLO instruction.

    Raises:
      ValueError: its kind or its target is not known, or there is no mesh that
        knows the devices.
    """
    kind, target = _TYPE.search(line), _TARGET.search(line)
    if not kind:
      return None
    if not target or kind.group(1) not in _KINDS:
      raise ValueError(f'cannot read this transfer between slices: {line}')
    groups = _ids(target.group(1))
    unknown = {i for group in groups for i in group} - set(self.by_id)
    if not groups or unknown:
      raise ValueError(
        'mesh must be given to audit() with the devices of all slices, to read '
        f'a transfer to {target.group(1).rstrip(",")}'
      )
    members = [tuple(self.by_id[i] for i in group) for group in groups]
    return Transfer(_KINDS[kind.group(1)], members)


def of(devices: int, mesh: Mesh | AbstractMesh | None) -> Slices:
  """The slices that run a program.

  Args:
    devices: that the program names.
    mesh: that it was compiled for, or None.

  Raises:
    ValueError: mesh has another number of devices, and they are not those of
      several slices either.
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


def _numbers(text: str) -> list[int]:
  """Of 0,2:4: 0, 2, 3, 4."""
  out: list[int] = []
  for part in text.split(','):
    first, _, last = part.partition(':')
    out += range(int(first), int(last or first) + 1)
  return out
