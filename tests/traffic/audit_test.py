"""audit(): collectives as the texts of several versions of XLA spell them.

That it agrees with plan() on real programs is law 5, in laws_test.py.
"""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import pytest


def program(*lines):
  body = '\n'.join(f'  %x.{i} = {line}' for i, line in enumerate(lines))
  return (
    f'HloModule jit_step\n\nENTRY %main (p: f32[6]) -> f32[6] {{\n{body}\n}}\n'
  )


GROUPS = {
  'listed': 'replica_groups={{0,1,2},{3,4,5}}',
  'iota': 'replica_groups=[2,3]<=[6]',
  'mesh': "replica_groups=mesh['node'=2,'device'=3] {'device'}",
}


@pytest.mark.parametrize('groups', GROUPS.values(), ids=GROUPS)
def test_all_spellings_of_groups_mean_the_same(groups):
  """Groups of three: a ring sends 4/3 of 24 bytes, a gather twice 24."""
  audit = gs.audit(
    program(
      f'f32[6]{{0}} all-reduce(%p), channel_id=1, {groups}, to_apply=%add',
      f'u32[3,6]{{1,0}} all-gather(%p), {groups}, dimensions={{0}}',
    )
  )
  reduce, gather = audit.collectives
  assert (reduce.kind, reduce.nbytes, reduce.workers) == ('all_reduce', 24, 3)
  assert (gather.kind, gather.nbytes, gather.workers) == ('all_gather', 24, 3)
  assert audit.sent_bytes == 32 + 48
  assert audit.branches == ()


def test_a_mesh_of_several_axes_multiplies():
  groups = "replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}"
  text = program(f'f32[4]{{0}} all-reduce(%p), {groups}, to_apply=%add')
  assert gs.audit(text).collectives[0].workers == 4


def test_groups_that_cannot_be_read_are_an_error_not_nothing():
  text = program('f32[6]{0} all-reduce(%p), replica_groups=new, to_apply=%add')
  with pytest.raises(ValueError, match='replica_groups=new'):
    gs.audit(text)


def test_kinds_and_types_are_counted_by_their_formulas():
  groups = GROUPS['listed']
  audit = gs.audit(
    program(
      # Tuples add up; half-width types count half.
      f'(f32[2]{{0}}, bf16[4]{{0}}) all-reduce(%p, %q), {groups}',
      f'(u32[1,5]{{1,0}}, u32[1,5]{{1,0}}) all-to-all(%p, %q), {groups}',
      f'f32[2]{{0}} reduce-scatter(%p), {groups}',
      'u8[7]{0} collective-permute(%p), source_target_pairs={{0,1},{2,1}}',
    )
  )
  sizes = [(c.kind, c.nbytes) for c in audit.collectives]
  assert sizes == [
    ('all_reduce', 16),
    ('all_to_all', 40),
    ('reduce_scatter', 24),
    ('permute', 7),
  ]
  assert list(audit.collectives[-1].sent) == [7, 0, 7]


def test_a_tuple_with_numbered_elements_counts_whole():
  parts = ', '.join(f'{"/*index=5*/" * (i == 5)}u32[1,3]' for i in range(7))
  text = program(f'({parts}) all-to-all(%p), {GROUPS["listed"]}')
  assert [c.nbytes for c in gs.audit(text).collectives] == [7 * 12]


def test_asynchronous_pairs_count_once():
  groups = GROUPS['listed']
  audit = gs.audit(
    program(
      f'(f32[6]{{0}}, f32[18]{{0}}) all-gather-start(%p), {groups}',
      'f32[18]{0} all-gather-done(%x.0)',
    )
  )
  assert [(c.kind, c.nbytes) for c in audit.collectives] == [('all_gather', 24)]


def test_of_a_conditional_one_branch_runs():
  """And a loop's body is inside the entry as its caller is."""
  gather = 'u32[3,{0}]{{1,0}} all-gather(%p), replica_groups={{{{0,1,2}}}}'

  def computation(name, line):
    return f'%{name} (p: f32[6]) -> f32[6] {{\n  %x = {line}\n}}\n'

  text = ''.join(
    [
      computation('small', gather.format(2)),
      computation('none', 'f32[6]{0} add(%p, %p)'),
      computation('large', gather.format(50)),
      computation('body', gather.format(1)),
      program(
        's32[] conditional(%i, %p, %p, %p), '
        'branch_computations={%small, %none, %large}',
        'f32[6]{0} while(%p), condition=%none, body=%body',
      ),
    ]
  )
  audit = gs.audit(text)
  assert audit.branches == ((16, 0, 400),)
  assert audit.fixed_bytes == 8
  assert audit.sent_bytes == 408
  assert '16 B, 0 B, 400 B' in str(audit)


def test_a_compiled_program_of_two_axes_is_read():
  mesh = jax.make_mesh(
    (2, 4), ('node', 'device'), axis_types=(AxisType.Auto,) * 2
  )

  def step(x):
    in_node = jax.lax.psum(x, 'device')
    return jax.lax.all_gather(in_node, 'node', to='invarying')

  both = P(('node', 'device'))
  fn = jax.shard_map(step, mesh=mesh, in_specs=both, out_specs=P())
  audit = gs.audit(jax.jit(fn).lower(jnp.ones(80)).compile())
  found = {(c.kind, c.nbytes, c.workers) for c in audit.collectives}
  assert found == {('all_reduce', 40, 4), ('all_gather', 40, 2)}
  assert audit.sent_bytes == 60 + 40


def test_simulated_workers_move_nothing():
  tx = gs.dense(axis_name='workers')
  step = lambda g: tx.update(g, tx.init(jnp.zeros(3)))[0]
  fn = jax.jit(jax.vmap(step, axis_name='workers'))
  audit = gs.audit(fn.lower(jnp.ones((4, 3))).compile())
  assert audit.collectives == ()
  assert audit.sent_bytes == 0
