"""audit(): collectives as the texts of several versions of XLA spell them.

That it agrees with plan() on real programs is law 5, in laws_test.py.
"""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import optax
import pytest
from tests import marks
from tests import replay


def computation(name, *lines):
  body = '\n'.join(f'  %x.{i} = {line}' for i, line in enumerate(lines))
  return f'{name} (p: f32[6]) -> f32[6] {{\n{body}\n}}\n'


def program(*lines, others=(), header='HloModule jit_step'):
  return '\n'.join([header, '', *others, computation('ENTRY %main', *lines)])


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
  """And a loop's body is inside the entry, once, as its caller is."""
  gather = 'u32[3,{0}]{{1,0}} all-gather(%p), replica_groups={{{{0,1,2}}}}'
  text = program(
    's32[] conditional(%i, %p, %p, %p), '
    'branch_computations={%small, %none, %large}',
    'f32[6]{0} while(%p), condition=%none, body=%body',
    others=[
      computation('%small', gather.format(2)),
      computation('%none', 'f32[6]{0} add(%p, %p)'),
      computation('%large', gather.format(50)),
      computation('%body', gather.format(1)),
    ],
  )
  audit = gs.audit(text)
  assert audit.branches == ((16, 0, 400),)
  assert audit.fixed_bytes == 8
  assert audit.sent_bytes == 408
  assert '16 B, 0 B, 400 B' in str(audit)


def test_a_device_that_sends_once_in_two_permutes_sends_once():
  """The rounds of a tree: nobody sends in both."""
  permute = 'f32[6]{0} collective-permute(%p), source_target_pairs='
  audit = gs.audit(program(permute + '{{1,0},{3,2}}', permute + '{{2,0}}'))
  assert audit.sent_bytes == 24


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


ON_8 = 'HloModule jit_step, is_scheduled=true, num_partitions=8'
NODES = AbstractMesh((2, 4), ('node', 'device'))
REDUCE = 'f32[6]{{0}} all-reduce(%p), channel_id=1, replica_groups={}'
PERMUTE = 'f32[6]{{0}} collective-permute(%p), source_target_pairs={}'


@pytest.mark.parametrize(
  'line, axes, sent',
  [
    (REDUCE.format('{{0,4},{1,5},{2,6},{3,7}}'), ('node',), 24),
    (REDUCE.format('[2,4]<=[8]'), ('device',), 36),
    (REDUCE.format('[4,2]<=[2,4]T(1,0)'), ('node',), 24),
    (REDUCE.format("mesh['node'=2,'device'=4] {'device'}"), ('device',), 36),
    # XLA makes up names where it was given none, and a device's place counts.
    (REDUCE.format("mesh['axis_0'=4,'axis_1'=2] {'axis_1'}"), ('device',), 24),
    # Not whole axes: those that differ.
    (REDUCE.format('{{0,1},{2,3},{4,5},{6,7}}'), ('device',), 24),
    (REDUCE.format('{{0,5},{1,4},{2,7},{3,6}}'), ('node', 'device'), 24),
    (REDUCE.format('{}'), ('node', 'device'), 42),
    (REDUCE.format("mesh['node'=2,'device'=4] {}"), (), 0),
    (REDUCE.format('{{0},{1},{2},{3},{4},{5},{6},{7}}'), (), 0),
    (PERMUTE.format('{{0,4},{4,0}}'), ('node',), 24),
    (PERMUTE.format('{{0,1},{1,2}}'), ('device',), 24),
    (PERMUTE.format('{{0,1},{3,4}}'), ('node', 'device'), 24),
    (PERMUTE.format('{{3,3}}'), (), 0),
  ],
)
def test_a_collective_crosses_the_axes_along_which_its_members_differ(
  line, axes, sent
):
  audit = gs.audit(program(line, header=ON_8), NODES)
  (collective,) = audit.collectives
  assert collective.axes == axes
  key = axes[0] if len(axes) == 1 else axes
  assert audit.sent_by_axis == {key: sent}
  assert audit.sent_bytes == sent
  assert gs.audit(program(line, header=ON_8)).collectives[0].axes is None


def test_the_bytes_of_nested_conditionals_are_told_by_axis():
  """Of each the branch that sends most in all: the inner is in one of them."""
  switch = 's32[] conditional(%i, %p, %p), branch_computations={{{}}}'
  inside = REDUCE.format('[2,4]<=[8]')
  between = REDUCE.format('[4,2]<=[2,4]T(1,0)')
  everywhere = REDUCE.format('{}')
  audit = gs.audit(
    program(
      switch.format('%outer, %everywhere'),
      between,
      header=ON_8,
      others=[
        computation('%inside', inside),
        computation('%between', between),
        computation('%outer', inside, switch.format('%inside, %between')),
        computation('%everywhere', everywhere),
      ],
    ),
    NODES,
  )
  assert audit.branches == ((36 + 36, 42),)
  assert audit.sent_bytes == 72 + 24
  assert audit.sent_by_axis == {'device': 72, 'node': 24}
  lines = str(audit).splitlines()
  assert lines[0].endswith('24 B of 2 workers over node')
  assert lines[-2:] == ['  over node: 24 B', '  over device: 72 B']


def test_what_does_not_fit_a_mesh_is_refused():
  text = program(REDUCE.format('[2,4]<=[8]'), header=ON_8)
  with pytest.raises(ValueError, match=r'mesh must be given.*got None'):
    _ = gs.audit(text).sent_by_axis
  with pytest.raises(ValueError, match='mesh must have the 8 devices.*got 4'):
    gs.audit(text, AbstractMesh((2, 2), ('node', 'device')))
  with pytest.raises(TypeError, match="mesh must be a .*got 'node'"):
    gs.audit(text, 'node')
  assert 'over' not in str(gs.audit(text))


def mesh_of(nodes, devices):
  """With devices out of order: HLO counts places in the mesh, not ids."""
  size = nodes * devices
  return jax.make_mesh(
    (nodes, devices),
    ('node', 'device'),
    axis_types=(AxisType.Auto,) * 2,
    devices=[jax.devices()[3 * place % size] for place in range(size)],
  )


@pytest.mark.parametrize(
  'nodes, devices', marks.few([(2, 2), (2, 4), (4, 2)], (2, 4))
)
def test_a_compiled_program_is_told_by_axis(nodes, devices):
  """Operands of 64 bytes; the larger branch sends 32 bytes of a ring."""
  both = ('node', 'device')

  def step(x):
    return (
      jax.lax.psum(x, 'node'),
      jax.lax.psum(x, 'device'),
      jax.lax.psum(x, both),
      jax.lax.all_gather(x, 'node'),
      jax.lax.ppermute(
        x, 'device', [(d, (d + 1) % devices) for d in range(devices)]
      ),
      jax.lax.ppermute(x, both, [(0, nodes * devices - 1)]),
      jax.lax.psum_scatter(x, 'device', tiled=True),
      jax.lax.all_to_all(x, 'node', 0, 0, tiled=True),
      jax.lax.cond(
        x[0] > 0,
        lambda x: jax.lax.psum(x[:4], 'node')[0],
        lambda x: jax.lax.psum(x[:8], 'device')[0],
        x,
      )[None],
    )

  mesh = mesh_of(nodes, devices)
  fn = jax.jit(
    jax.shard_map(
      step,
      mesh=mesh,
      in_specs=P(both),
      out_specs=P(both),
      check_vma=False,
    )
  )
  compiled = fn.lower(jnp.ones(16 * nodes * devices)).compile(replay.QUICKLY)
  audit = gs.audit(compiled, mesh)
  assert sorted((c.kind, c.axes) for c in audit.collectives) == [
    ('all_gather', ('node',)),
    ('all_reduce', ('device',)),
    ('all_reduce', ('node',)),
    ('all_reduce', both),
    ('all_to_all', ('node',)),
    ('permute', ('device',)),
    ('permute', both),
    ('reduce_scatter', ('device',)),
  ]
  in_ring = lambda p: (p - 1) / p
  assert audit.sent_by_axis == {
    'node': 64 * (2 * in_ring(nodes) + nodes - 1 + in_ring(nodes)),
    'device': 64 * (2 * in_ring(devices) + 1 + in_ring(devices))
    + 32 * 2 * in_ring(devices),
    both: 64 * 2 * in_ring(nodes * devices) + 64,
  }


def test_plan_and_audit_of_two_levels_agree_by_axis():
  tx = optax.chain(
    gs.dense(axis_name='device'),
    gs.dgc(0.1, min_size=0, axis_name='node'),
  )
  params = {'kernel': jnp.zeros((12, 10)), 'bias': jnp.zeros(10)}
  mesh = mesh_of(2, 2)
  own = P(('node', 'device'))

  def step(grads):
    """The first step: all memories are empty, so that no state comes in."""
    grads = jax.tree.map(lambda g: g[0], grads)
    updates, state = tx.update(grads, tx.init(params))
    return jax.tree.map(lambda x: x[None], (updates, state))

  fn = jax.shard_map(
    step, mesh=mesh, in_specs=own, out_specs=own, check_vma=False
  )
  grads = jax.tree.map(lambda x: jnp.ones((4, *x.shape)), params)
  compiled = jax.jit(fn).lower(grads).compile(replay.QUICKLY)
  audit = gs.audit(compiled, mesh=mesh)
  plan = gs.plan(tx, params, {'node': 2, 'device': 2})
  assert set(audit.sent_by_axis) == {'node', 'device'}
  assert plan.sent_by_axis == audit.sent_by_axis
  assert plan.sent_bytes == audit.sent_bytes
  for axis, sent in audit.sent_by_axis.items():
    assert plan.over(axis).sent_bytes == sent


def test_what_is_no_program_is_refused():
  with pytest.raises(TypeError, match='program must be a function.*, got int'):
    gs.audit(3, jnp.ones(2))
  text = program(REDUCE.format('[2,4]<=[8]'), header=ON_8)
  with pytest.raises(TypeError, match='takes no arguments here, got 2'):
    gs.audit(text, 1, 2)
