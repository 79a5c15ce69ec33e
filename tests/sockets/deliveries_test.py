"""What arrived of each leaf, in two forms, against NumPy."""

import chex
import gradsparse as gs
from gradsparse.sockets import Full
from gradsparse.sockets import Window
from gradsparse.sockets import deliveries
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import simulation

SHAPES = ((2, 3), (), (4,), (0, 2), (1, 1, 5))
SIZES = (6, 1, 4, 0, 5)
TOTAL = 16

# Below how many elements a leaf is spread out: none, some or all are.
SMALL = (0, 5, 1 << 14)


@pytest.fixture(name='small', params=marks.few(SMALL, 5))
def _small(request, monkeypatch):
  monkeypatch.setattr(deliveries, '_SMALL', request.param)
  return request.param


def entries_of(indices, slots):
  padded = np.full(slots, TOTAL, np.int32)
  padded[: len(indices)] = sorted(indices)
  values = np.where(padded < TOTAL, padded + 1.5, 0).astype(np.float32)
  return jnp.asarray(values), jnp.asarray(padded)


def dense_of(indices):
  """What the entries stand for, leaf by leaf, by NumPy."""
  flat = np.zeros(TOTAL, np.float32)
  indices = sorted(indices)
  flat[indices] = np.asarray(indices, np.float32) + 1.5
  parts = np.split(flat, np.cumsum(SIZES)[:-1])
  return [x.reshape(shape) for x, shape in zip(parts, SHAPES, strict=True)]


def leaves_of(indices, slots, limits=SIZES):
  @jax.jit  # one operation after the other takes far longer
  def leaves(values, places):
    out = deliveries.of_entries(values, places, SHAPES, limits)
    return out, [d.dense(shape) for d, shape in zip(out, SHAPES, strict=True)]

  return leaves(*entries_of(indices, slots))


@pytest.mark.parametrize('small', marks.few(SMALL, 5))
def test_every_entry_arrives_in_its_leaf(small):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(deliveries, '_SMALL', small)

    @jax.jit
    def dense(values, places):
      out = deliveries.of_entries(values, places, SHAPES, SIZES)
      return [d.dense(shape) for d, shape in zip(out, SHAPES, strict=True)]

    dense(*entries_of([], TOTAL))

  @given(st.sets(st.integers(0, TOTAL - 1)))
  def check(indices):
    chex.assert_trees_all_equal(
      dense(*entries_of(indices, TOTAL)), dense_of(indices)
    )

  check()


def test_small_leaves_are_spread_out_and_others_are_windows(small):
  out, _ = leaves_of([0, 5, 6], TOTAL)
  kinds = [Full if size < small else Window for size in SIZES]
  assert [type(d) for d in out] == kinds
  assert not any(d.is_dense for d in out)


def test_one_small_leaf_alone_is_a_window(monkeypatch):
  monkeypatch.setattr(deliveries, '_SMALL', 1)
  out, _ = leaves_of([0, 5, 6], TOTAL)
  assert [type(d) for d in out] == [Window] * len(SIZES)


def test_windows_are_no_wider_than_their_limits(small):
  """Two entries a leaf at most; the slice of the last one is clamped."""
  indices = [0, 5, 6, 8, 14, 15]
  out, dense = leaves_of(indices, len(indices), limits=(2, 1, 2, 0, 2))
  if not small:
    assert [w.indices.shape for w in out] == [(2,), (1,), (2,), (0,), (2,)]
  chex.assert_trees_all_equal(dense, dense_of(indices))


@pytest.mark.parametrize(
  'indices',
  marks.few([[0, 1, 8], [3], [6, 15], [5, 6, 7], []], [6, 15], [5, 6, 7], []),
)
def test_a_short_message_brings_nothing_to_other_leaves(small, indices):
  """Slices are moved back to the end of the message."""
  del small
  _, dense = leaves_of(indices, max(len(indices), 1))
  chex.assert_trees_all_equal(dense, dense_of(indices))


X = jnp.arange(6.0).reshape(2, 3)
HELD = {
  'window': Window(
    jnp.array([1.0, 0.0, 0.0]), jnp.array([4, 1, 6], jnp.int32), size=6
  ),
  'spread': Full(
    jnp.array([[0.0, 0, 0], [0, 1, 0]]),
    jnp.array([[False, True, False], [False, True, False]]),
  ),
}


@pytest.mark.parametrize('held', HELD.values(), ids=HELD)
def test_update_touches_only_what_was_delivered(held):
  """Also where a zero was delivered, as at the second element."""
  u = jnp.full((2, 3), 10.0)
  left = held.update(lambda x, d: x - d, X)
  np.testing.assert_array_equal(left, [[0, 1, 2], [3, 3, 5]])
  np.testing.assert_array_equal(held.plus(X, -1.0), left)
  cleared = held.update(lambda u, d: jnp.zeros_like(u), u)
  np.testing.assert_array_equal(cleared, [[10, 0, 10], [10, 0, 10]])
  three = held.update(lambda x, d, u: x + d + u, X, u)
  np.testing.assert_array_equal(three, [[0, 11, 2], [3, 15, 5]])
  np.testing.assert_array_equal(held.dense((6,)), [0, 0, 0, 0, 1, 0])
  with_nan = X.at[0, 0].set(jnp.nan)
  np.testing.assert_array_equal(
    held.update(lambda x, d: 0 * x / d, with_nan)[0, ::2], with_nan[0, ::2]
  )


def test_a_full_delivery_touches_everything():
  full = Full(X)
  ones = jnp.ones((2, 3))
  left = full.update(lambda x, d: x - d, ones)
  np.testing.assert_array_equal(left, [[1, 0, -1], [-2, -3, -4]])
  np.testing.assert_array_equal(full.dense((6,)), np.arange(6.0))
  assert not full.is_dense
  assert Full(ones, is_dense=True).is_dense


@pytest.mark.slow
@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.dgc(0.2, axis_name='workers', min_size=0),
    pytest.param(
      lambda: gs.variance_based(1.0, axis_name='workers', min_size=0),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['dgc', 'variance_based'],
)
def test_a_scheme_does_the_same_whatever_the_form(make, monkeypatch):
  steps = [simulation.gradients(3, seed=seed) for seed in range(4)]

  def run(small):
    monkeypatch.setattr(deliveries, '_SMALL', small)
    tx = make()
    state = gs.workers.stack(tx.init(simulation.PARAMS), 3)

    def update(grads, state):
      squares = jax.tree.map(jnp.square, grads)
      return tx.update(grads, state, second_moment=squares)

    mapped = jax.vmap(update, axis_name='workers')
    step = simulation.quickly(mapped, steps[0], state)
    for grads in steps:
      updates, state = step(grads, state)
    return updates, state

  chex.assert_trees_all_equal(run(0), run(1 << 14))
