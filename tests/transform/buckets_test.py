"""Leaves that are joined for the memory get what they get alone, to the bit."""

import gradsparse as gs
from gradsparse.transform import buckets
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests import schemes

OWN = P(gs.workers.AXIS)
WORKERS = 3
STEPS = 3
# Leaves that are joined and leaves that are not, in two places: `wide` is too
# large, and bfloat16 stays apart from float32.
PARAMS = {
  **{f'a{i}': jnp.zeros((6 + i % 3, 4)) for i in range(5)},
  **{f'b{i}': jnp.zeros(3 + i % 2) for i in range(4)},
  'c': jnp.zeros(()),
  'd_wide': jnp.zeros((20, 15)),
  **{f'e{i}': jnp.zeros((3, 2, 2, 4)) for i in range(4)},
  'f_none': None,
  **{f'g{i}': jnp.zeros((5, 4), jnp.bfloat16) for i in range(3)},
  'h_empty': jnp.zeros((0, 4)),
}
# An exchange that owes something, and each recipe.
NAMES = ('one_bit_scatter', *schemes.FIRST_NAMES)


def gradients(step):
  rng = np.random.default_rng(step)

  def draw(p):
    return jnp.asarray(rng.normal(size=(WORKERS, *p.shape)), p.dtype)

  return jax.tree.map(draw, PARAMS)


def program_of(setting, runner):
  """(compiled when it is called, the state to begin with)."""
  tx = setting.make()
  state = tx.init(PARAMS)
  specs = replay.specs_of(state)

  def step(grads, state):
    moments = jax.tree.map(lambda g: jnp.square(g.astype(jnp.float32)), grads)
    return tx.step(grads, state, second_moment=moments)

  program = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=WORKERS,
    in_specs=(OWN, specs),
    out_specs=(P(), specs, OWN),
    check_vma=runner == 'shard_map',
  )
  return program, replay.stacked(state, specs, WORKERS)


def replayed(setting, runner):
  """Updates, states and what was delivered, of some steps."""
  program, state = program_of(setting, runner)
  out = []
  for number in range(STEPS):
    updates, state, delivered = program(gradients(number), state)
    out.append(jax.tree.map(np.asarray, (updates, state, delivered)))
  return out


@pytest.fixture
def joins(monkeypatch):
  """Says from how many leaves on small ones are joined."""

  def say(fewest):
    monkeypatch.setattr(buckets, 'SMALL', (100,))
    monkeypatch.setattr(buckets, 'SHARE', 1.0)
    monkeypatch.setattr(buckets, 'FEWEST', fewest)

  return say


def compare(name, runner, joins):
  setting = schemes.BY_NAME[name]
  joins(3)
  joined = replayed(setting, runner)
  joins(1000)
  jax.tree.map(np.testing.assert_array_equal, joined, replayed(setting, runner))


@pytest.mark.parametrize('name', marks.few(NAMES, NAMES[0]))
def test_joined_leaves_get_what_they_get_alone(name, joins):
  compare(name, 'simulate', joins)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['one_bit_scatter', 'dgc', 'gtopk', 'variance']
)
def test_joined_leaves_get_what_they_get_alone_on_devices(name, joins):
  compare(name, 'shard_map', joins)


def test_types_under_shard_map_are_right(joins):
  joins(3)
  program, state = program_of(schemes.BY_NAME['one_bit'], 'shard_map')
  program.trace(gradients(0), state)


def layout_of(**changes):
  scheme = gs.dgc(0.1, axis_name=None, **changes)
  return scheme.layout(PARAMS), scheme.scheme.memory


def made(layout, memory):
  grads = jax.tree.map(jnp.ones_like, PARAMS)
  return buckets.make_buckets(layout, memory, grads, jnp.int32(0))


def named(layout, found):
  """The leaves of the buckets that have several, by their names."""
  several = [own for own in found.members if len(own) > 1]
  return [[layout.names[i][2:-2] for i in own] for own in several]


def test_which_leaves_are_joined(joins):
  joins(3)
  layout, memory = layout_of()
  assert named(layout, made(layout, memory)) == [
    ['a0', 'a1', 'a2', 'a3', 'a4'],
    ['e0', 'e1', 'e2', 'e3'],
    ['g0', 'g1', 'g2'],
    ['b0', 'b1', 'b2', 'b3', 'c', 'h_empty'],  # these stay dense
  ]
  joins(5)
  assert len(named(layout, made(layout, memory))) == 2
  every, _ = layout_of(min_size=0)
  # In the order of the message, whatever their shapes.
  assert named(every, made(every, memory))[0][:7] == [
    *('a0', 'a1', 'a2', 'a3', 'a4', 'b0', 'b1')
  ]


@pytest.mark.parametrize(
  'share, tiny, count',
  [
    # 136 elements in five leaves of `a`, 192 in four of `e`, 60 in three of
    # `g`, 15 in six that stay dense: 403 of 703, 22 a leaf.
    (0.6, 0, 4),
    (0.5, 0, 3),
    (0, 23, 4),
    (0, 22, 3),  # 211 of 14 leaves without `e`
    (0, 15, 1),
    (0.1, 0, 1),
    (0, 2, 0),
  ],
)
def test_copies_cost_next_to_nothing(share, tiny, count, joins, monkeypatch):
  joins(3)
  for name, value in (
    ('SMALL', (100, 40, 8)),
    ('SHARE', share),
    ('TINY', tiny),
  ):
    monkeypatch.setattr(buckets, name, value)
  layout, memory = layout_of()
  found = named(layout, made(layout, memory))
  assert len(found) == count
  assert (['e0', 'e1', 'e2', 'e3'] in found) == (count == 4)


def test_a_bucket_has_an_end(joins, monkeypatch):
  joins(3)
  monkeypatch.setattr(buckets, 'MOST', 90)
  layout, memory = layout_of()
  # 136 elements become two buckets of about 68: two leaves, and three.
  assert named(layout, made(layout, memory))[0] == ['a2', 'a3', 'a4']


def test_a_memory_that_looks_at_whole_leaves_gets_leaves(joins):
  joins(3)
  layout, memory = layout_of()
  for other in (
    memory._replace(facts=memory.facts._replace(elementwise=False)),
    gs.qsgd(7, axis_name=None).scheme.memory,
  ):
    found = made(layout, other)
    assert not found.joins
    assert found.join(PARAMS) is PARAMS
  paper = gs.variance_based(1.0, rounding='paper', axis_name=None)
  assert not paper.scheme.memory.facts.elementwise


def test_what_was_joined_is_cut_again(joins):
  joins(3)
  layout, memory = layout_of()
  found = made(layout, memory)
  tree = jax.tree.map(lambda g: g[0].astype(jnp.float32), gradients(0))
  joined = found.join(tree)
  assert tuple(x.shape for x in jax.tree.leaves(joined)) == found.shapes
  jax.tree.map(np.testing.assert_array_equal, found.cut(joined), tree)
  state = memory.init(tree)._replace(velocity=tree)
  back = found.cut_state(found.join_state(state))
  jax.tree.map(np.testing.assert_array_equal, back, state)
  assert jax.tree.structure(back) == jax.tree.structure(state)
