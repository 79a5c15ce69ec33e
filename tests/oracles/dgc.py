"""Deep Gradient Compression: momentum correction, factor masking, clipping.

float32 throughout. The optimizer after the exchange is plain SGD.

References: arXiv 1712.01887, eq. 7 (heavy ball), eq. 10 (Nesterov), §3.3
(factor masking), appendix C (clipping).
"""

import math

import numpy as np
from tests.oracles import leaves
from tests.oracles import selection


class DeepGradientCompression(leaves.Oracle):
  """u <- m·u + g; v <- v + u; send v ⊙ mask; v and u <- ⊙ ¬mask.

  Nesterov, eq. 10: u <- m·(u + g); v <- v + u + g.

  At density 1 masking wipes u each step, which leaves plain SGD; with Nesterov
  SGD on (1 + m)·g, because eq. 10 adds m·g to v before u is wiped.

  Leaves that stay dense take no part in selection and masking, but keep their
  momentum, on the mean gradient: u <- m·u + mean_w(g), and u is delivered
  (Nesterov: u <- m·(u + mean_w(g)), and u + mean_w(g) is). Their `u` is one
  value, repeated for every worker, and each worker is credited with it: the sum
  over workers is P times the mean, as everywhere.

  Attributes:
    u: u[w][leaf], velocity, after masking.
    v: v[w][leaf], the accumulated velocity; the same as `pending`.
    inflow: inflow[w][leaf], what the step added to v: u before masking, or
      u + g. Law 1: v_old + inflow = delivered + v_new, on dense leaves too.
  """

  def __init__(
    self,
    density,
    *,
    momentum=0.9,
    nesterov=False,
    factor_masking=True,
    scope='leaf',
    chunk_size=4096,
    dense=(),
  ):
    super().__init__(dense=dense)
    self.density = density
    self.momentum = momentum
    self.nesterov = nesterov
    self.factor_masking = factor_masking
    self.scope = scope
    self.chunk_size = chunk_size
    self.u = None
    self.inflow = None

  @property
  def v(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    if self.u is None:
      self.u = leaves.zeros(gradients)
    self.inflow = leaves.zeros(gradients)
    means = leaves.worker_mean(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._dense_leaves(tree):
        self._accumulate(w, leaf, means[leaf])
        self.delivered[w][leaf][...] = self.inflow[w][leaf]
      for leaf in self._compressed_leaves(tree):
        self._accumulate(w, leaf, tree[leaf])
        self.v[w][leaf] += self.inflow[w][leaf]
      for leaf, offset in selection.largest(
        self.v[w],
        self.density,
        scope=self.scope,
        chunk_size=self.chunk_size,
        dense=self.dense,
      ):
        self.delivered[w][leaf].flat[offset] = self.v[w][leaf].flat[offset]
        self.v[w][leaf].flat[offset] = 0
        if self.factor_masking:
          self.u[w][leaf].flat[offset] = 0
    return self._mean()

  def _accumulate(self, w, leaf, g):
    """The velocity's own step; what it gives goes into `inflow`."""
    m = np.float32(self.momentum)
    u = self.u[w][leaf]
    if self.nesterov:
      u[...] = m * (u + g)
      self.inflow[w][leaf][...] = u + g
    else:
      u[...] = m * u + g
      self.inflow[w][leaf][...] = u


def clip_local_norm(gradients, threshold):
  """Local clipping in the mean convention, appendix C.

  The paper clips its g/P at threshold · P^(-1/2), which is ours at
  threshold · P^(+1/2); the norm is one over all leaves of a worker. float64
  norms.
  """
  limit = threshold * math.sqrt(len(gradients))
  clipped = []
  for tree in leaves.copy(gradients):
    norm = math.sqrt(sum(float(x) ** 2 for leaf in tree for x in leaf.flat))
    factor = limit / norm if norm > limit else 1.0
    clipped.append([leaf * np.float32(factor) for leaf in tree])
  return clipped
