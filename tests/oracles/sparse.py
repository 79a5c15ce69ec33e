"""Exact top-k: how many elements, which ones, over one leaf or over several.

Magnitudes are compared in the dtype given (the oracles give float32), so that
ties are those that float32 arithmetic makes.
"""

import math

import numpy as np


def count(density, n):
  """k = min(n, max(1, ceil(density * n - 1e-6))), in Python floats.

  >>> [count(0.001, n) for n in (1, 999, 1000, 1001, 25_557_032)]
  [1, 1, 1, 2, 25558]
  """
  return min(n, max(1, math.ceil(density * n - 1e-6)))


def top_k(x, k):
  """Returns the sorted indices of the k largest |x|; ties to the lower index.

  >>> top_k(np.float32([1, -3, 3, 0, 3]), 2)
  [1, 2]
  """
  x = np.ravel(x)
  by_magnitude = sorted(range(x.size), key=lambda i: (-abs(x[i]), i))
  return sorted(by_magnitude[:k])


def groups(num_leaves, scope, dense=()):
  """Returns lists of leaf positions; each list is one joined selection.

  Args:
    num_leaves: of the tree.
    scope: 'global', one selection over all leaves joined in order, or 'leaf'.
    dense: positions of leaves that take no part.
  """
  leaves = [leaf for leaf in range(num_leaves) if leaf not in dense]
  if scope == 'leaf':
    return [[leaf] for leaf in leaves]
  if scope == 'global':
    return [leaves] if leaves else []
  raise ValueError(f"scope must be 'global' or 'leaf', got {scope!r}")


def places(tree, group):
  """Returns (leaf, offset) of every element of the joined vector, in order.

  >>> places([np.zeros((1, 2)), np.zeros(3)], [0, 1])
  [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
  """
  return [
    (leaf, offset) for leaf in group for offset in range(np.size(tree[leaf]))
  ]


def join(tree, group):
  """Returns the leaves of a group, each in C order, as one vector."""
  return np.concatenate([np.ravel(tree[leaf]) for leaf in group])
