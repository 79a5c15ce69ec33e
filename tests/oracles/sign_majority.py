"""signSGD with majority vote (Bernstein 2018).

Each worker votes sign(g), sign(0) = +1; the result is scale·(+1 or -1) by the
majority, a tie giving +1. It is no mean. Every worker is credited with the
whole vote, so that sum_w delivered = P·result. float32.
"""

import numpy as np
from tests.oracles import leaves


class SignMajority(leaves.Oracle):
  """memory=True votes on the sign of r = r + g and keeps r - vote (EF form)."""

  def __init__(self, *, scale=1.0, memory=False, dense=()):
    super().__init__(dense=dense)
    self.scale = scale
    self.memory = memory

  def step(self, gradients):
    gradients = self._begin(gradients)
    for leaf in self._compressed_leaves(gradients[0]):
      values = [
        tree[leaf] + self.pending[w][leaf] for w, tree in enumerate(gradients)
      ]
      for i in range(gradients[0][leaf].size):
        votes = sum(1 if np.ravel(x)[i] >= 0 else -1 for x in values)
        result = np.float32(self.scale if votes >= 0 else -self.scale)
        for w in range(len(gradients)):
          self.delivered[w][leaf].flat[i] = result
          if self.memory:
            self.pending[w][leaf].flat[i] = np.ravel(values[w])[i] - result
    return self._mean()
