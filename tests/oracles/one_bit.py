"""1-bit SGD (Seide 2014): a bit an element, two means a column.

r <- r + g; in each column of r the elements >= 0 are rebuilt by their mean and
those < 0 by theirs; what the rebuilding misses stays in r. A half without
elements has no mean and needs none. Means in float64, rounded to float32.

A column fixes the last index and runs over all others (a Flax kernel's fan-in);
a 1-D or scalar leaf is one column. The oracle is the all-gather form: CNTK's
quantised reduce-scatter, with a second residual, is a different exchange.
"""

import numpy as np
from tests.oracles import leaves


def columns(shape):
  """Returns, a column each, the flat offsets of its elements.

  >>> columns((2, 3))
  [[0, 3], [1, 4], [2, 5]]
  >>> columns((3,))
  [[0, 1, 2]]
  """
  size = int(np.prod(shape, dtype=np.int64))
  if len(shape) < 2:
    return [list(range(size))]
  return [list(range(c, size, shape[-1])) for c in range(shape[-1])]


def reconstruct(x):
  """Returns x with each half of each column replaced by its mean."""
  x = np.asarray(x, np.float32)
  out = np.zeros_like(x)
  for column in columns(x.shape):
    high = [i for i in column if x.flat[i] >= 0]
    low = [i for i in column if x.flat[i] < 0]
    for half in (high, low):
      total = sum(float(x.flat[i]) for i in half)
      for i in half:
        out.flat[i] = total / len(half)
  return out


class OneBit(leaves.Oracle):
  """`r` is `pending`."""

  @property
  def r(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.r[w][leaf] += tree[leaf]
        self.delivered[w][leaf] += reconstruct(self.r[w][leaf])
        self.r[w][leaf] -= self.delivered[w][leaf]
    return self._mean()
