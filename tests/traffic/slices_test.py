"""Programs of several slices of TPUs, as XLA spells what travels between them.

The lines are from programs that libtpu compiled for two and four slices of
v5e, without what is not read.
"""

import dataclasses

import gradsparse as gs
from gradsparse.traffic import participants
from jax.sharding import AbstractMesh
from jax.sharding import Mesh
import numpy as np
import pytest

_SEND = (
  '  %send = ({shape}, u32[], token[]) send(%x, %after-all), channel_id=2, '
  'is_host_transfer=true, frontend_attributes={{'
  '_xla_host_transfer_handler_name="xla_megascale_runtime",'
  '_xla_host_transfer_rendezvous="psum.1_0",{more}'
  '_xla_megascale_target={target},'
  '_xla_megascale_transfer_type="{kind}"}}, backend_config={{"a":[]}}'
)
_DONE = (
  '  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true'
)


@dataclasses.dataclass(frozen=True)
class Device:
  id: int
  slice_index: int


def devices(count, each):
  """Of `count` slices of `each`, with the ids that compiled programs name."""
  return np.array(
    [
      Device(100_000 * (s + 1) + number, s)
      for s in range(count)
      for number in range(each)
    ]
  )


def send(shape, target, kind, more=''):
  return _SEND.format(shape=shape, target=target, kind=kind, more=more)


def audited(mesh, *lines, partitions=4):
  head = f'HloModule jit_step, is_scheduled=true, num_partitions={partitions}'
  body = '\n'.join(lines)
  return gs.audit(
    f'{head}\n\nENTRY %main (p: f32[6]) -> f32[6] {{\n{body}\n}}\n', mesh
  )


TWO = Mesh(devices(2, 4).reshape(2, 4), ('slice', 'chip'))


@pytest.mark.parametrize(
  'shape, kind, more, sent',
  [
    (
      'f32[3,8,128]{2,1,0:T(8,128)}',
      'ALL_REDUCE',
      '_xla_megascale_reduce_operation="SUM",',
      3 * 4096,
    ),
    ('f32[1,1,896]{2,1,0:T(1,128)}', 'ALL_GATHER', '', 3584),
    ('f32[2,1,500]{2,1,0:T(1,128)}', 'ALL_TO_ALL', '', 2000),
    ('f32[8,1,128]{2,1,0:T(1,128)}', 'REDUCE_SCATTER', '', 2048),
    ('u8[7]{0:T(1024)(4,1)}', 'ALL_GATHER', '', 7),
  ],
)
def test_a_transfer_between_two_slices_counts_by_its_kind(
  shape, kind, more, sent
):
  audit = audited(TWO, send(shape, '"{1,2}x{0:3}"', kind, more), _DONE)
  assert [c.kind for c in audit.collectives] == [kind.lower()]
  assert audit.sent_by_axis == {'slice': sent}
  assert audit.collectives[0].sent == (sent,) * 8


@pytest.mark.parametrize(
  'target, axes, workers',
  [
    ('"{1,2,3,4}x{0:3}"', ('t', 's'), 4),
    ('"{1,2}x{0,2:3}"', ('s',), 2),
    ('{{100000,200000},{100001,200001},{300000,400000}}', ('s',), 2),
    ('{{100000,300000},{100001,300001}}', ('t',), 2),
    # To another number of another slice.
    ('{{100000,200003},{100003,200000}}', ('s', 'chip'), 2),
  ],
)
def test_groups_of_slices_are_read_by_the_ids_of_devices(target, axes, workers):
  mesh = Mesh(devices(4, 4).reshape(2, 2, 4), ('t', 's', 'chip'))
  audit = audited(mesh, send('f32[1,8,128]{2,1,0}', target, 'ALL_REDUCE'))
  (collective,) = audit.collectives
  assert (collective.axes, collective.workers) == (axes, workers)


def test_pairs_send_from_their_sources():
  target = '{{100000->200001},{200001->100002}}'
  mesh = Mesh(devices(2, 4), ('workers',))
  audit = audited(mesh, send('f32[1024]{0:T(1024)}', target, 'ONE_TO_ONE'))
  (permute,) = audit.collectives
  assert permute.kind == 'permute' and permute.axes == ('workers',)
  assert permute.sent == (4096, 0, 0, 0, 0, 4096)


def test_collectives_inside_of_slices_are_those_of_each():
  """Numbers are places in the slice, wherever the mesh has its devices."""
  mesh = Mesh(
    devices(2, 4).reshape(2, 2, 2).transpose(1, 0, 2), ('x', 'slice', 'y')
  )
  line = '  %r = f32[6]{{0}} all-reduce(%p), replica_groups={}, to_apply=%add'
  audit = audited(
    mesh, line.format('{{0,2},{1,3}}'), line.format('{{0,1},{2,3}}')
  )
  assert audit.sent_by_axis == {'x': 24, 'y': 24}
  assert audit.collectives[0].sent == (24,) * 8
  permute = (
    '  %c = (f32[6]{0:T(256)}, f32[6]{0:T(256)S(1)}, u32[]{:S(2)}, '
    'u32[]{:S(2)}) collective-permute-start(%p), channel_id=1, '
    'source_target_pairs={{0,1},{1,3}}'
  )
  audit = audited(mesh, permute, '  %d = f32[6] collective-permute-done(%c)')
  assert audit.sent_by_axis == {('x', 'y'): 24}
  assert audit.collectives[0].sent == (24,) * 4 + (0,) * 4


def test_what_leaves_to_the_host_is_no_transfer_between_slices():
  line = '  %s = (f32[6], u32[], token[]) send(%p, %t), is_host_transfer=true'
  assert audited(TWO, line).collectives == ()


def test_what_cannot_be_read_is_an_error_not_nothing():
  line = send('f32[6]', '"{1,2}x{0:3}"', 'ALL_REDUCE')
  with pytest.raises(ValueError, match=r'mesh must be given.*\{1,2\}x\{0:3\}'):
    audited(None, line)
  with pytest.raises(ValueError, match='mesh must have the 4 .* got 8'):
    audited(AbstractMesh((2, 4), ('slice', 'chip')), line)
  with pytest.raises(ValueError, match='mesh must have the 3 .* got 8'):
    audited(TWO, line, partitions=3)
  with pytest.raises(ValueError, match='cannot read this transfer.*"NEW"'):
    audited(TWO, send('f32[6]', '"{1,2}x{0:3}"', 'NEW'))
  for target in ('new', '{{100000,300000}}'):
    with pytest.raises(ValueError, match='mesh must be|cannot read'):
      audited(TWO, send('f32[6]', target, 'ALL_REDUCE'))


def test_one_slice_is_as_it_was():
  where = participants.slices_of(4, None)
  assert where.places == ((0, 1, 2, 3),)
  assert where.everywhere([(0, 1), (2, 3)]) == [(0, 1), (2, 3)]
