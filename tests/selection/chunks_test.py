"""The largest of each chunk, in whichever way they are found."""

import functools
import math

from gradsparse import selection
import jax
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.selection.vectors import numbers
from tests.selection.vectors import ranked

# Chunks in rows of rows, which need no sorting, and of any other size.
SIZES = (2048, 1024, 100)
LEAVES = (5000, 4096, 70, 2048)


@functools.cache
def chunked(chunk_size, density):
  return jax.jit(
    lambda xs, now: selection.chunked_top_k_of_each(
      xs, density, chunk_size, now
    )[:2],
    compiler_options=replay.QUICKLY,
  )


@pytest.mark.parametrize('chunk_size', marks.few(SIZES, 1024, 100))
@pytest.mark.parametrize('density', marks.few([0.003, 0.3], 0.3))
def test_each_chunk_sends_its_largest(chunk_size, density):
  for seed in range(6):
    xs = [numbers(size, seed + i) for i, size in enumerate(LEAVES)]
    now = density / (1 + seed // 2)
    expected, slots, begin = [], 0, 0
    for x in xs:
      for start in range(0, len(x), chunk_size):
        own = x[start : start + chunk_size]
        k = max(1, math.ceil(np.float32(now) * len(own) - 1e-6))
        slots += selection.count(density, len(own))
        expected += (begin + start + np.sort(ranked(own)[:k])).tolist()
      begin += len(x)
    values, indices = chunked(chunk_size, density)(xs, np.float32(now))
    assert indices.shape == (slots,)
    np.testing.assert_array_equal(indices[: len(expected)], expected)
    np.testing.assert_array_equal(
      values[: len(expected)], np.concatenate(xs)[expected]
    )
    np.testing.assert_array_equal(indices[len(expected) :], begin)
