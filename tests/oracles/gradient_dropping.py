"""Gradient dropping: residual accumulation and the top k of |v|.

Aji & Heafield 2017 take one threshold over the whole gradient ('global'); DGC's
Algorithm 1 takes one a tensor ('leaf'); 'chunk' takes one each chunk_size
elements of a tensor. float32 throughout.

References: Aji & Heafield, EMNLP 2017; arXiv 1712.01887, Algorithm 1.
"""

from tests.oracles import leaves
from tests.oracles import selection


class GradientDropping(leaves.Oracle):
  """v <- v + g; send v ⊙ mask; v <- v ⊙ ¬mask.

  Attributes:
    sent: sent[w], the (leaf, offset) places of the last selection, zeros
      included where fewer than k elements differ from zero.
  """

  def __init__(self, density, *, scope='global', chunk_size=4096, dense=()):
    super().__init__(dense=dense)
    self.density = density
    self.scope = scope
    self.chunk_size = chunk_size
    self.sent = None

  @property
  def v(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    self.sent = [None for _ in gradients]
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.pending[w][leaf] += tree[leaf]
      self.sent[w] = selection.largest(
        self.pending[w],
        self.density,
        scope=self.scope,
        chunk_size=self.chunk_size,
        dense=self.dense,
      )
      for leaf, offset in self.sent[w]:
        self.delivered[w][leaf].flat[offset] = self.pending[w][leaf].flat[
          offset
        ]
        self.pending[w][leaf].flat[offset] = 0
    return self._mean()
