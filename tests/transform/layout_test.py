"""Groups of leaves: what int32 cannot count travels in several messages."""

import math

import chex
import gradsparse as gs
from gradsparse.sockets import LeafRule
from gradsparse.transform import layout as layouts
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.replay import AXIS
from tests.schemes import example
from tests.simulation import gradients
from tests.simulation import simulated

# Several messages: no two of the matrices fit in one, 'a' is too large alone.
FEW = 60
SHAPES = {'a': (9, 8), 'b': (5, 7), 'c': (6, 6), 'd': (4,), 'e': (5, 7)}
PARAMS = {name: jnp.zeros(shape) for name, shape in SHAPES.items()}
MESSAGES = 4
FSDP, TP, BOTH = ('fsdp',), ('tp',), ('fsdp', 'tp')


@pytest.fixture
def few(monkeypatch):
  monkeypatch.setattr(layouts, 'GROUP_ELEMENTS', FEW)


@given(
  st.lists(
    st.tuples(
      st.integers(1, 50), st.sampled_from([(), (FSDP,), ((), TP), (BOTH,)])
    ),
    max_size=12,
  ),
  st.integers(1, 80),
  st.integers(0, 30),
)
def test_every_leaf_travels_once_and_no_message_is_too_large(
  leaves, limit, small
):
  tree = [jnp.zeros((n, 4)) for n, _ in leaves]
  layout = layouts.make_layout(
    tree, LeafRule(), 4 * small, None, cuts=[cut for _, cut in leaves]
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(layouts, 'GROUP_ELEMENTS', limit)
    groups = layout.groups()
  numbers = [i for g in groups for i in (*g.compressed, *g.dense)]
  assert sorted(numbers) == list(range(len(leaves)))
  assert sorted(i for g in groups for i in g.compressed) == [*layout.compressed]
  for group in groups:
    assert [*group.compressed] == sorted(group.compressed)
    sizes = [4 * leaves[i][0] for i in group.compressed]
    assert sum(sizes) <= limit or len(sizes) == 1
    for i in (*group.compressed, *group.dense):
      assert layout.axes(i) == group.axes


def test_a_device_has_its_part_of_a_leaf():
  layout = layouts.make_layout(
    [jnp.zeros((8, 6)), jnp.zeros(3)],
    LeafRule(),
    0,
    None,
    cuts=[(BOTH, ()), ()],
  )
  assert layout.on_device({'fsdp': 2, 'tp': 4}).shapes == ((1, 6), (3,))
  assert layout.axes(0) == BOTH and layout.axes(1) == ()
  with pytest.raises(ValueError, match=r'8 elements in dimension 0.*\[2, 3\]'):
    layout.on_device({'fsdp': 2, 'tp': 3})
  with pytest.raises(ValueError, match="axis 'tp', but the mesh has fsdp"):
    layout.on_device({'fsdp': 2})


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    'dgc',
    'power_sgd',
    'gradient_dropping',
    'ef21',
    'dryden',
    'strom',
    'one_bit_sgd',
  ],
)
def test_several_messages_do_what_one_does(name, monkeypatch):
  wanted = dict(scope='leaf', min_size=0)
  if name == 'strom':
    wanted['threshold'] = 0.5
  seen = []
  for limit in (layouts.GROUP_ELEMENTS, FEW):
    monkeypatch.setattr(layouts, 'GROUP_ELEMENTS', limit)
    tx = example(name, axis_name=AXIS, **wanted)
    assert len(tx.layout(PARAMS).groups()) == (1 if limit != FEW else MESSAGES)
    state, step = simulated(tx, params=PARAMS, num_workers=3)
    out = []
    for t in range(3):
      updates, state = step(gradients(3, seed=t, params=PARAMS), state)
      out.append(jax.device_get((updates, state.memory, state.compressor)))
    seen.append(out)
  one, several = seen
  if name == 'power_sgd':  # XLA adds up products of matrices in its own order
    chex.assert_trees_all_close(one, several, rtol=1e-4, atol=1e-6)
  else:
    chex.assert_trees_all_equal(one, several)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(
      name, marks=() if name == 'sign_majority' else pytest.mark.slow
    )
    for name in gs.recipes.RECIPES
    if name not in ('gtopk', 'qsgd_descent')
  ],
)
def test_the_laws_hold_for_several_messages(name, few):
  def make(axis_name):
    return example(name, axis_name=axis_name, scope='leaf', min_size=0)

  trees = {'several': SHAPES}
  gs.testing.check_scheme(
    make, num_workers=(3,), runners=('simulate',), trees=trees
  )


@pytest.mark.slow
def test_what_a_reduce_scatter_owes_is_of_each_message(few):
  def make(axis_name):
    return gs.one_bit_sgd(exchange='reduce_scatter', axis_name=axis_name)

  gs.testing.check_scheme(
    make, num_workers=(3,), runners=('simulate',), trees={'several': SHAPES}
  )


@pytest.mark.slow
def test_the_plan_has_a_row_a_leaf_and_the_bytes_of_all_messages(few):
  tx = gs.dgc(0.1, min_size=0, axis_name=AXIS)
  plan = gs.plan(tx, PARAMS, num_workers=3)
  assert [row.elements for row in plan.rows] == [
    math.prod(s) for s in SHAPES.values()
  ]
  state, step = simulated(tx, params=PARAMS, num_workers=3)
  _, state = step(gradients(3, params=PARAMS), state)
  assert np.max(state.stats.sent_bytes) == plan.sent_bytes
  assert np.max(state.stats.payload_bytes) == plan.payload_bytes


BIG = jax.ShapeDtypeStruct((2**16, 2**15), jnp.float32)
LARGE = {'w': jax.ShapeDtypeStruct((2**15, 2**15), jnp.float32)}


@pytest.mark.parametrize('ask', ['init', 'plan'])
def test_a_leaf_that_no_message_can_count_is_refused(ask):
  tx = gs.dgc(0.001, axis_name=AXIS)
  with pytest.raises(
    ValueError, match=r"leaf \['w'\] has 2,147,483,648 elements.*2,147,483,616"
  ):
    _ask(ask, tx, {'w': BIG})
  stays = gs.dgc(0.001, dense_paths='w', axis_name=AXIS)
  _ask('init', stays, {'w': BIG, 'v': LARGE['w']})


@pytest.mark.parametrize('ask', ['init', 'plan'])
def test_global_selection_from_more_than_a_message_can_count_is_refused(ask):
  tree = {'a': LARGE['w'], 'b': LARGE['w']}
  for tx in (
    gs.gradient_dropping(0.001, axis_name=AXIS),
    gs.gtopk(0.001, axis_name=AXIS),
  ):
    with pytest.raises(
      ValueError, match=r'2,147,483,648 elements together.*scope='
    ):
      _ask(ask, tx, tree)


def _ask(what, tx, params):
  if what == 'init':
    jax.eval_shape(tx.init, params)
  else:
    gs.plan(tx, params, num_workers=2)


@pytest.mark.slow
def test_more_parameters_than_int32_counts():
  tree = {str(i): LARGE['w'] for i in range(3)}
  plan = gs.plan(gs.dgc(0.001, axis_name=AXIS), tree, num_workers=8)
  assert plan.dense_bytes == 3 * 2**32 and plan.ratio > 600
  state = jax.eval_shape(gs.qsgd(7, axis_name=AXIS).init, tree)
  assert state.stats.sent_elements.dtype == jnp.float32
  word28 = gs.plan(gs.variance_based(1.0, axis_name=AXIS), {'w': BIG_MATRIX}, 2)
  assert word28.dense_bytes == 4 * 3 * 2**26
  with pytest.raises(ValueError, match='268,435,455'):
    gs.plan(gs.variance_based(1.0, axis_name=AXIS), LARGE, 2)


BIG_MATRIX = jax.ShapeDtypeStruct((3, 2**26), jnp.float32)
