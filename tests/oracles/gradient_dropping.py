"""Gradient dropping: residual accumulation and the top k of |v|.

Aji & Heafield 2017 take one threshold over the whole gradient ('global'); DGC's
Algorithm 1 takes one a tensor ('leaf'). float32 throughout.

References: Aji & Heafield, EMNLP 2017; arXiv 1712.01887, Algorithm 1.
"""

from tests.oracles import leaves
from tests.oracles import sparse


class GradientDropping(leaves.Oracle):
  """v <- v + g; send v ⊙ mask; v <- v ⊙ ¬mask.

  Attributes:
    sent: sent[w], the (leaf, offset) places of the last selection, zeros
      included where fewer than k elements differ from zero.
  """

  def __init__(self, density, *, scope='global', dense=()):
    super().__init__(dense=dense)
    self.density = density
    self.scope = scope
    self.sent = None

  @property
  def v(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    self.sent = [[] for _ in gradients]
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.pending[w][leaf] += tree[leaf]
      for group in sparse.groups(len(tree), self.scope, self.dense):
        place = sparse.places(tree, group)
        k = sparse.count(self.density, len(place))
        for i in sparse.top_k(sparse.join(self.pending[w], group), k):
          leaf, offset = place[i]
          self.delivered[w][leaf].flat[offset] = self.pending[w][leaf].flat[
            offset
          ]
          self.pending[w][leaf].flat[offset] = 0
          self.sent[w].append((leaf, offset))
    return self._mean()
