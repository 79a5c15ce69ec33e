"""EF21: each worker sends what improves an estimate of its gradient.

Nothing is owed from step to step: what is left out of a message is not added
to the next gradient, but is in the next difference. float32 throughout.

References: Richtárik, Sokolov & Fatkhullin, arXiv 2106.05203, algorithm 2
(with the gradient of this step where the paper has that of the next point),
and its lemma on Top-k, a contraction with alpha = k / n.
"""

import numpy as np
from tests.oracles import leaves
from tests.oracles import selection


class EF21(leaves.Oracle):
  """r = C(gradient - g); g <- g + r; G <- G + mean_w r; G is returned.

  All estimates start at zero, so G is the mean of the estimates at all times.
  Leaves that stay dense are those whose C changes nothing: their estimate is
  the gradient, and G their mean.

  Attributes:
    estimate: estimate[w][leaf], g after the step.
    mean: mean[leaf], G, added up from the messages' means and never computed
      from the estimates.
    message: message[w][leaf], r of the last step; zeros on dense leaves.
    pending: the gradient less the estimate, after the step.
    delivered: what of a worker is in G: its estimate.
  """

  def __init__(self, density, *, scope='leaf', chunk_size=4096, dense=()):
    super().__init__(dense=dense)
    self.density = density
    self.scope = scope
    self.chunk_size = chunk_size
    self.estimate = None
    self.mean = None
    self.message = None

  def step(self, gradients):
    gradients = self._begin(gradients)
    if self.estimate is None:
      self.estimate = leaves.zeros(gradients)
      self.mean = leaves.zeros(gradients)[0]
    self.message = leaves.zeros(gradients)
    for w, tree in enumerate(gradients):
      self._improve(w, tree)
    means = leaves.worker_mean(self.message)
    for leaf in self._compressed_leaves(means):
      self.mean[leaf] += means[leaf]
    means = leaves.worker_mean(gradients)
    for leaf in self._dense_leaves(means):
      self.mean[leaf] = means[leaf]
    return leaves.copy([self.mean])[0]

  def _improve(self, w, tree):
    """One worker's message, and its estimate after that."""
    differences = [
      np.asarray(g - estimate)
      for g, estimate in zip(tree, self.estimate[w], strict=True)
    ]
    for leaf, offset in selection.largest(
      differences,
      self.density,
      scope=self.scope,
      chunk_size=self.chunk_size,
      dense=self.dense,
    ):
      self.message[w][leaf].flat[offset] = differences[leaf].flat[offset]
    for leaf in self._compressed_leaves(tree):
      self.estimate[w][leaf] += self.message[w][leaf]
    for leaf in self._dense_leaves(tree):
      self.estimate[w][leaf][...] = tree[leaf]
    for leaf, g in enumerate(tree):
      self.pending[w][leaf][...] = g - self.estimate[w][leaf]
      self.delivered[w][leaf][...] = self.estimate[w][leaf]
