"""Chunk-wise selection: the largest of each run of consecutive elements.

Each run has its own k, by the rule that a whole leaf has elsewhere, so shapes
are static, and leaves that are cut between runs give the same selection.
"""

import numpy as np
from tests.oracles import sparse


def runs(n, chunk_size):
  """Returns (start, stop) of each run; only the last one may be shorter.

  >>> runs(10, 4)
  [(0, 4), (4, 8), (8, 10)]
  """
  return [(i, min(i + chunk_size, n)) for i in range(0, n, chunk_size)]


def counts(n, density, chunk_size):
  """Returns how many elements of each run are selected.

  >>> counts(10, 0.5, 4)
  [2, 2, 1]
  """
  return [
    sparse.count(density, stop - start) for start, stop in runs(n, chunk_size)
  ]


def largest(x, density, chunk_size):
  """Returns the sorted indices, in the flattened x, of the selection.

  >>> largest(np.float32([1, -3, 3, 0, 9, 9, 9, 9]), 0.25, 4)
  [1, 4]
  """
  x = np.ravel(x)
  selected = []
  for start, stop in runs(x.size, chunk_size):
    k = sparse.count(density, stop - start)
    selected += [start + i for i in sparse.top_k(x[start:stop], k)]
  return selected
