"""Chunk-wise selection, worked by hand, and what follows from its rule."""

import numpy as np
import pytest
from tests.oracles import checks
from tests.oracles import chunks
from tests.oracles import dgc
from tests.oracles import gradient_dropping
from tests.oracles import selection
from tests.oracles import sparse
from tests.oracles import wire_sizes


def test_each_run_has_its_own_k():
  # 10 = 4 + 4 + 2: ceil(0.5 * 4) = 2 twice, and ceil(0.5 * 2) = 1.
  x = np.float32([1, -5, 2, 0, 9, 8, -7, 6, 0.1, -0.2])
  assert chunks.largest(x, 0.5, 4) == [1, 2, 4, 5, 9]
  # At least one of each run, however small the density.
  assert chunks.largest(x, 1e-9, 4) == [1, 4, 9]
  assert chunks.largest(x, 1.0, 4) == list(range(10))
  # ceil(0.3 * 4) = 2, ceil(0.3 * 2) = 1.
  assert chunks.counts(10, 0.3, 4) == [2, 2, 1]


@pytest.mark.parametrize(
  'density, m, k',
  [
    (0.001, 4096, 5),  # ceil(4.096)
    (4 / 4096, 4096, 4),
    (0.001, 1000, 1),  # the 1e-6 takes off what float arithmetic adds
    (0.001, 904, 1),  # a last run
    (0.07, 100, 7),  # 0.07 * 100 = 7.000000000000001
    (1.0, 3, 3),
  ],
)
def test_k_of_a_run(density, m, k):
  assert chunks.counts(m, density, 4096) == [k]


def test_ties_keep_the_lower_index_of_their_run():
  x = np.float32([2, -2, 2, 2, 0, 0, 0, 0, -3, 3])
  assert chunks.largest(x, 0.5, 4) == [0, 1, 4, 5, 8]


def test_a_leaf_is_read_in_c_order():
  x = np.float32([[1, 2, 3], [9, 5, 4]])
  # Runs of four: 1 2 3 9 and 5 4.
  assert chunks.largest(x, 0.25, 4) == [3, 4]
  assert chunks.largest(np.float32(7), 0.5, 4) == [0]
  assert chunks.largest(np.zeros((0, 3), np.float32), 0.5, 4) == []


@pytest.mark.parametrize('chunk_size', [1, 3, 7, 24, 100])
def test_every_run_gives_its_k_and_no_smaller_element(chunk_size):
  rng = np.random.default_rng(chunk_size)
  # Few different magnitudes: many ties.
  x = rng.integers(-4, 5, 52).astype(np.float32)
  chosen = set(chunks.largest(x, 0.2, chunk_size))
  counts = []
  for start, stop in chunks.runs(x.size, chunk_size):
    inside = sorted(chosen & set(range(start, stop)))
    counts.append(len(inside))
    for i in inside:
      for j in set(range(start, stop)) - chosen:
        assert abs(x[i]) > abs(x[j]) or (abs(x[i]) == abs(x[j]) and i < j)
  assert counts == chunks.counts(x.size, 0.2, chunk_size)


def test_scopes():
  tree = [np.float32([1, 4, 0, 2]), np.float32([3, 2, 5, 6])]
  largest = lambda **options: selection.largest(tree, 0.25, **options)
  assert largest(scope='global') == [(1, 2), (1, 3)]
  assert largest(scope='leaf') == [(0, 1), (1, 3)]
  by_two = largest(scope='chunk', chunk_size=2)
  assert by_two == [(0, 1), (0, 3), (1, 0), (1, 3)]
  assert largest(scope='chunk', chunk_size=2, dense=(0,)) == by_two[2:]
  # Runs end where their leaf does.
  assert largest(scope='chunk', chunk_size=8) == largest(scope='leaf')


SCHEMES = {
  'dropping': gradient_dropping.GradientDropping,
  'dgc': dgc.DeepGradientCompression,
}


@pytest.mark.parametrize('make', SCHEMES.values(), ids=SCHEMES)
def test_a_chunk_as_long_as_its_leaf_is_the_leaf(make):
  rng = np.random.default_rng(0)
  by_leaf = make(0.3, scope='leaf')
  by_chunk = make(0.3, scope='chunk', chunk_size=24)
  for _ in range(3):
    gradients = checks.draw(rng, 2)
    by_leaf.step(gradients)
    by_chunk.step(gradients)
    for w in range(2):
      for a, b in zip(by_leaf.pending[w], by_chunk.pending[w], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('make', SCHEMES.values(), ids=SCHEMES)
def test_a_leaf_cut_between_chunks_gives_the_same(make):
  rng = np.random.default_rng(0)
  whole, cut = (make(0.3, scope='chunk', chunk_size=4) for _ in range(2))
  for _ in range(3):
    grads = rng.normal(size=(3, 10)).astype(np.float32)
    (mean,) = whole.step([[g] for g in grads])
    means = cut.step([[g[:4], g[4:8], g[8:]] for g in grads])
    np.testing.assert_array_equal(mean, np.concatenate(means))
    for w in range(3):
      np.testing.assert_array_equal(
        whole.pending[w][0], np.concatenate(cut.pending[w])
      )


def test_indices_of_whole_chunks_take_a_constant_number_of_bits():
  shapes = {'kernel': (100, 4096)}
  for k in (4, 5, 41, 409):
    count = wire_sizes.chunk_count(shapes, k / 4096, 4096)
    assert count == 100 * k
    bits = wire_sizes.elias_fano_bits(count, 409_600) / count
    assert bits <= wire_sizes.chunk_index_bits(4096)
  # One or two of a chunk: the place in the chunk is the shorter code.
  assert wire_sizes.elias_fano_bits(100, 409_600) / 100 == 14
  # Short leaves have a k each: more in all than of the leaves joined.
  shapes = {'a': (10,), 'b': (10,), 'c': (5000,)}
  count = wire_sizes.chunk_count(shapes, 0.001, 4096)
  assert count == 1 + 1 + 5 + 1 > sparse.count(0.001, 5020)
