"""Random-k with a shared seed: all workers send the same coordinates.

Without a memory: send g·n/k there (unbiased over the draw). With one: r <- r +
g; send r there, unscaled; r <- 0 there. float32.
"""

import numpy as np
from tests.oracles import leaves


class RandomK(leaves.Oracle):
  """The draw is given: indices[leaf], flat offsets, the same on all workers."""

  def __init__(self, *, memory=False, dense=()):
    super().__init__(dense=dense)
    self.memory = memory

  def step(self, gradients, indices):
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        chosen = [int(i) for i in np.ravel(indices[leaf])]
        if len(set(chosen)) != len(chosen):
          raise ValueError('indices must be distinct')
        if self.memory:
          self.pending[w][leaf] += tree[leaf]
        for i in chosen:
          if self.memory:
            self.delivered[w][leaf].flat[i] = self.pending[w][leaf].flat[i]
            self.pending[w][leaf].flat[i] = 0
          else:
            scale = np.float32(tree[leaf].size / len(chosen))
            self.delivered[w][leaf].flat[i] = tree[leaf].flat[i] * scale
    return self._mean()
