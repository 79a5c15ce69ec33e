"""What XLA must not see through is what it was, and keeps programs small."""

from gradsparse.backend import barriers
from gradsparse.backend import joining
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import loops

SHAPES = [(3,), (0,), (2, 5), (), (7,), (1, 4), (2,)]


@pytest.mark.parametrize('first', [-1.0, 1.0, np.nan])
@pytest.mark.parametrize('count', [1, 2, 7])
def test_pieces_are_the_pieces(count, first):
  """With few and many, whether the loop takes its turn or not."""
  shapes = SHAPES[:count]
  sizes = [int(np.prod(shape)) for shape in shapes]
  x = np.arange(sum(sizes), dtype=np.float32)
  x[0] = first
  cut = jax.jit(lambda x: joining.split(x, shapes))(x)
  ends = np.cumsum(sizes)[:-1]
  for got, flat, shape in zip(cut, np.split(x, ends), shapes, strict=True):
    np.testing.assert_array_equal(got, flat.reshape(shape))


def test_numbers_beside_nothing_are_the_numbers():
  assert [
    int(x) for x in barriers.hidden_numbers([3, 1, 4, 1, 5], jnp.zeros(0))
  ] == [*(3, 1, 4, 1, 5)]


def test_pieces_of_nothing():
  assert joining.split(jnp.zeros(3), []) == []
  assert [x.shape for x in joining.split(jnp.zeros(0), [(0,), (0, 3)] * 3)] == [
    (0,),
    (0, 3),
  ] * 3


@pytest.mark.parametrize('first', [-1, 0, 1])
def test_what_is_computed_once_is_the_same(first):
  tree = {'a': np.asarray([first, 5], np.int32), 'b': np.asarray([True, False])}
  out = jax.jit(lambda tree: barriers.barrier_if_shared(tree, 9))(tree)
  jax.tree.map(np.testing.assert_array_equal, out, tree)
  assert barriers.barrier_if_shared({}, 9) == {}


def test_equal_loops_over_leaves_are_compiled_once():
  """Pieces of one size are read by loops that differ in nothing."""

  def of(cut):
    program = jax.jit(
      lambda x, leaves: [
        leaf + y for leaf, y in zip(leaves, cut(x), strict=True)
      ]
    )
    leaves = [jnp.zeros(1000)] * 20
    text = program.lower(jnp.zeros(20_000), leaves).compile().as_text()
    return loops.distinct(text)

  static = lambda x: [x[i : i + 1000] for i in range(0, 20_000, 1000)]
  few = of(lambda x: joining.split(x, [(1000,)] * 20))
  assert few < 10
  assert of(static) >= 20


def test_a_long_computation_is_not_written_out_for_each_reader():
  def program(hide):
    def fn(x, at):
      y = x
      for _ in range(12):
        y = jnp.sin(y) * 1.5
      y = hide(y)
      return [
        jax.lax.dynamic_slice_in_dim(y, at[i], 5 + i) * 2 for i in range(9)
      ]

    lowered = jax.jit(fn).lower(jnp.zeros(500), jnp.zeros(9, jnp.int32))
    return lowered.compile().as_text().count(' sine(')

  # Once for all of it, and once for the number that decides about the turn.
  assert program(lambda y: barriers.barrier_if_shared(y, 9)) <= 2 * 12
  assert program(lambda y: y) > 6 * 12


def test_derivatives_go_through():
  def fn(x):
    a, b = barriers.fusion_barrier([x**2, 3 * x])
    return jnp.sum(a * b)

  x = jnp.arange(1.0, 5.0)
  np.testing.assert_allclose(jax.jit(jax.grad(fn))(x), 9 * x**2, rtol=1e-6)
  _, along = jax.jvp(fn, (x,), (jnp.ones_like(x),))
  np.testing.assert_allclose(along, jnp.sum(9 * x**2), rtol=1e-6)
