"""PowerSGD (Vogels 2019): rank r, one power iteration a step, warm start.

M_w = E_w + g_w as a matrix of (prod(shape[:-1]), shape[-1]), a Flax kernel's
(fan-in, features); P = mean_w M_w·Q; P̂ = orthonormal P; Q_w = M_wᵀ·P̂;
Q = mean_w Q_w, kept for the next step; the mean is P̂·Qᵀ; E_w <- M_w - P̂·Q_wᵀ.
Worker w is credited with its own P̂·Q_wᵀ. float64 throughout.

Mean, delivered and pending depend on P̂ only through P̂·P̂ᵀ, and on the old Q
only through its span, so that any orthonormal basis (QR, Gram-Schmidt, other
signs) gives the same: compare those, or `approximation`, not `p_hat` and `q`.

References: arXiv 1905.13727, Algorithms 1 and 2.
"""

import numpy as np
from tests.oracles import leaves


def matrix(x):
  """Returns the (prod(shape[:-1]), shape[-1]) view."""
  return x.reshape(-1, x.shape[-1])


def orthogonalise(p):
  """Modified Gram-Schmidt; a column without a remainder becomes zero."""
  p = np.array(p, np.float64)
  for c in range(p.shape[1]):
    before = np.linalg.norm(p[:, c])
    for b in range(c):
      p[:, c] -= (p[:, b] @ p[:, c]) * p[:, b]
    after = np.linalg.norm(p[:, c])
    p[:, c] = p[:, c] / after if after > 1e-10 * before else 0
  return p


class PowerSGD(leaves.Oracle):
  """Leaves of fewer than two dimensions stay dense, beside those in `dense`.

  Attributes:
    p_hat: p_hat[leaf], orthonormal columns, (rows, r); None on dense leaves.
    q: q[leaf], the warm start of the next step, (columns, r).
    approximation: approximation[leaf] = P̂·Qᵀ in the leaf's shape: the mean.
  """

  dtype = np.float64

  def __init__(self, rank, initial, *, dense=()):
    """Initial[leaf]: the first Q, (columns, >= r); anything on dense leaves.

    Columns beyond r = min(rank, rows, columns) are cut.
    """
    super().__init__(dense=dense)
    self.rank = rank
    self.q = list(initial)
    self.p_hat = None
    self.approximation = None

  def step(self, gradients):
    small = [i for i, x in enumerate(gradients[0]) if np.ndim(x) < 2]
    self.dense = self.dense | frozenset(small)
    gradients = self._begin(gradients)
    self.p_hat = [None] * len(gradients[0])
    self.approximation = [None] * len(gradients[0])
    for leaf in self._compressed_leaves(gradients[0]):
      shape = gradients[0][leaf].shape
      ms = [
        matrix(self.pending[w][leaf] + tree[leaf])
        for w, tree in enumerate(gradients)
      ]
      r = min(self.rank, *ms[0].shape)
      q = np.asarray(self.q[leaf], np.float64)[:, :r]
      p_hat = orthogonalise(sum(m @ q for m in ms) / len(ms))
      qs = [m.T @ p_hat for m in ms]
      self.p_hat[leaf] = p_hat
      self.q[leaf] = sum(qs) / len(qs)
      self.approximation[leaf] = (p_hat @ self.q[leaf].T).reshape(shape)
      for w, m in enumerate(ms):
        self.delivered[w][leaf] += (p_hat @ qs[w].T).reshape(shape)
        self.pending[w][leaf] = m.reshape(shape) - self.delivered[w][leaf]
    return self._mean()
