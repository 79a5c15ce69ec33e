"""What all oracles share: leaves of P workers, pending, delivered, the mean."""

import numpy as np


def copy(trees, dtype=np.float32):
  """Returns trees[w][leaf] as fresh arrays, scalars included."""
  return [[np.array(leaf, dtype) for leaf in tree] for tree in trees]


def zeros(trees, dtype=np.float32):
  """Returns zeros of the same shapes."""
  return [[np.zeros(np.shape(leaf), dtype) for leaf in tree] for tree in trees]


def worker_mean(trees):
  """Returns the mean over workers, added in rank order in the given dtype."""
  means = []
  for leaf in range(len(trees[0])):
    total = np.zeros_like(trees[0][leaf])
    for tree in trees:
      total += tree[leaf]
    total /= len(trees)
    means.append(total)
  return means


class Oracle:
  """What every scheme shows before and after a step.

  Attributes:
    dense: positions of the leaves that are all-reduced exactly.
    pending: pending[w][leaf], what the worker still owes; None before the
      first step, zeros for ever in a scheme without a memory.
    delivered: delivered[w][leaf], what of this worker got into the last mean;
      the sum over workers is P times the mean.
  """

  dtype = np.float32

  def __init__(self, *, dense=()):
    self.dense = frozenset(dense)
    self.pending = None
    self.delivered = None

  def _begin(self, gradients):
    """Copies the gradients and delivers those of dense leaves whole."""
    gradients = copy(gradients, self.dtype)
    if self.pending is None:
      self.pending = zeros(gradients, self.dtype)
    self.delivered = zeros(gradients, self.dtype)
    for w, tree in enumerate(gradients):
      for leaf in self._dense_leaves(tree):
        self.delivered[w][leaf] += tree[leaf]
    return gradients

  def _dense_leaves(self, tree):
    return [leaf for leaf in range(len(tree)) if leaf in self.dense]

  def _compressed_leaves(self, tree):
    return [leaf for leaf in range(len(tree)) if leaf not in self.dense]

  def _mean(self):
    return worker_mean(self.delivered)
