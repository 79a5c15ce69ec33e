"""AdaComp (Chen 2018): each bin sends what rivals its own largest element.

Residue R: G = R + dW; H = G + dW. A leaf, flat in C order, is cut into bins of
consecutive elements, the last may be short. An element is sent where |H| >=
max|G| of its bin and G is not zero; its value is sign(G) times the mean of the
bin maxima of the leaf; R <- G - sent. A bin of zeros counts in that mean.
float32; the mean in float64, rounded to float32.
"""

import numpy as np
from tests.oracles import leaves


def default_bin_size(shape):
  """50 for leaves of three or more dimensions (convolutions), else 500."""
  return 50 if len(shape) >= 3 else 500


class AdaComp(leaves.Oracle):
  """`r` (the paper's residue R) is `pending`."""

  def __init__(self, *, bin_size=None, dense=()):
    super().__init__(dense=dense)
    self.bin_size = bin_size

  @property
  def r(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        shape = tree[leaf].shape
        d_w = np.ravel(tree[leaf])
        big_g = np.ravel(self.r[w][leaf]) + d_w
        big_h = big_g + d_w
        length = self.bin_size or default_bin_size(shape)
        bins = [
          range(a, min(a + length, d_w.size))
          for a in range(0, d_w.size, length)
        ]
        maxima = [max(abs(big_g[i]) for i in b) for b in bins]
        value = np.float32(sum(float(m) for m in maxima) / len(maxima))
        sent = np.zeros(d_w.size, np.float32)
        for b, maximum in zip(bins, maxima, strict=True):
          for i in b:
            if abs(big_h[i]) >= maximum and big_g[i] != 0:
              sent[i] = value if big_g[i] > 0 else -value
        self.delivered[w][leaf] += sent.reshape(shape)
        self.r[w][leaf][...] = (big_g - sent).reshape(shape)
    return self._mean()
