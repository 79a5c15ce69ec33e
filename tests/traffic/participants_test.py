"""Groups of devices, as the texts of several versions of XLA spell them."""

from gradsparse.traffic import participants
from jax.sharding import AbstractMesh
import pytest

PAIRED = [(0, 1), (2, 3), (4, 5), (6, 7)]
STRIDED = [(0, 4), (1, 5), (2, 6), (3, 7)]
HALVES = [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize(
  'text, expected',
  [
    ('{}', [tuple(range(8))]),
    ('{{0,1},{2,3},{4,5},{6,7}}', PAIRED),
    ('{{0,1},{2},{3,4,5,6,7}}', [(0, 1), (2,), (3, 4, 5, 6, 7)]),
    ('[2,4]<=[8]', HALVES),
    ('[4,2]<=[8]', PAIRED),
    ('[4,2]<=[2,4]T(1,0)', STRIDED),
    ('[2,4]<=[2,2,2]T(1,0,2)', [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("mesh['a'=2,'b'=4] {'b'}", HALVES),
    ("mesh['a'=2,'b'=4] {'a'}", STRIDED),
    ("mesh['a'=2,'b'=4] {'a','b'}", [tuple(range(8))]),
    ("mesh['a'=2,'b'=2,'c'=2] {'a','c'}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
    ("mesh['a'=2,'b'=4] {}", [(d,) for d in range(8)]),
    # Parts of an axis of eight: its first, middle and last binary digits.
    ("mesh['a'=8] {'a':(1)2}", STRIDED),
    ("mesh['a'=8] {'a':(2)2}", [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ("mesh['a'=8] {'a':(1)2,'a':(4)2}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
    # A mesh whose devices are not in the order of their numbers.
    (
      "mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
      [(0, 2, 4, 6), (1, 3, 5, 7)],
    ),
    (
      "mesh['a'=4,'b'=2], device_ids=(7,6,5,4,0,1,2,3) {'b'}",
      [(7, 6), (5, 4), (0, 1), (2, 3)],
    ),
  ],
)
def test_groups_are_read_however_they_are_spelled(text, expected):
  line = (
    f'%r = f32[6]{{0}} all-reduce(%p), channel_id=1, replica_groups={text}, '
    'use_global_device_ids=true, to_apply=%add, metadata={op_name="{{9}}"}'
  )
  assert participants.replica_groups(line, devices=8) == expected


@pytest.mark.parametrize(
  'text', ['', 'new', '{0,1}', '[2,4]', "mesh['a'=8]", 'maximal_mesh[0]']
)
def test_what_is_not_known_is_an_error(text):
  with pytest.raises(ValueError, match='cannot read the groups'):
    participants.replica_groups(
      f'all-reduce(%p), replica_groups={text}', devices=8
    )
  with pytest.raises(ValueError, match='cannot read the pairs'):
    participants.source_target_pairs(
      'collective-permute(%p), source_target_pairs='
    )


def test_pairs_are_read():
  line = 'collective-permute(%p), source_target_pairs={{0,5},{10,1}}, x={}'
  assert participants.source_target_pairs(line) == [(0, 5), (10, 1)]


def test_axes_are_those_along_which_a_group_differs():
  mesh = AbstractMesh((2, 1, 4), ('a', 'one', 'b'))
  assert participants.crossed_axes(HALVES, mesh) == ('b',)
  assert participants.crossed_axes(STRIDED, mesh) == ('a',)
  assert participants.crossed_axes([(0, 1), (3, 7)], mesh) == ('a', 'b')
  assert participants.crossed_axes([(0,), (5,)], mesh) == ()
  assert participants.crossed_axes([], mesh) == ()
