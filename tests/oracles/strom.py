"""Strom's threshold quantisation (Interspeech 2015). float32 throughout.

r <- r + g; S = sign(r)·τ where |r| > τ, else 0; r <- r - S. One τ a step,
however large r is.
"""

import numpy as np
from tests.oracles import leaves


class Strom(leaves.Oracle):
  """`r` is `pending`."""

  def __init__(self, threshold, *, dense=()):
    super().__init__(dense=dense)
    self.threshold = threshold

  @property
  def r(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    tau = np.float32(self.threshold)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.r[w][leaf] += tree[leaf]
        r = self.r[w][leaf].flat
        for i in range(len(r)):
          if abs(r[i]) > tau:
            s = tau if r[i] > 0 else -tau
            self.delivered[w][leaf].flat[i] = s
            r[i] = r[i] - s
    return self._mean()
