"""Sums of sparse messages: the leaves that a dense vector would have."""

from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.sockets import sum_by_leaf
from gradsparse.sockets import sums_by_leaf
import jax
import numpy as np
import pytest
from tests import marks
from tests import replay

SPACE = Space.whole([(50, 64), (33,), (1,), (7, 32)])
_SUM = jax.jit(
  lambda values, indices: [x / 2 for x in sum_by_leaf(values, indices, SPACE)],
  compiler_options=replay.QUICKLY,
)


def _vector(values, indices):
  total = Sparse(values[0], indices[0], SPACE).zeros()
  for own in zip(values, indices, strict=True):
    total = Sparse(*own, SPACE).add_to(total)
  return total / 2


@pytest.mark.parametrize('workers', marks.few([1, 3], 3))
def test_the_sum_is_that_of_vectors_to_the_bit(workers):
  rng = np.random.default_rng(workers)
  for filled in (0, 5, 12):
    values = np.zeros((workers, 12), np.float32)
    indices = np.full((workers, 12), SPACE.size, np.int32)
    for w in range(workers):
      # Many in the rows of the small leaves, where messages meet.
      drawn = rng.choice(SPACE.size - 3195, filled, replace=False) + 3195
      drawn[: filled // 2] = rng.choice(3195, filled // 2, replace=False)
      indices[w, :filled] = np.sort(drawn)
      values[w, :filled] = rng.normal(size=filled)
    expected = SPACE.split(_vector(values, indices))
    for x, y in zip(_SUM(values, indices), expected, strict=True):
      assert x.shape == y.shape
      np.testing.assert_array_equal(x, y)


def test_it_pays_where_its_rows_are_few():
  assert not sums_by_leaf(0, SPACE)
  assert sums_by_leaf(SPACE.size // 64, SPACE)
  assert not sums_by_leaf(SPACE.size // 64 + 1, SPACE)
