"""Dryden 2016: the top of the positives and of the negatives, each by its mean.

r <- r + g; per leaf of n elements, k = min(n, max(1, ceil(density·n - 1e-6)))
for *each* sign, limited by how many elements have that sign; the largest k
positives are all sent as their mean, the k most negative likewise; ties to the
lower index; r loses what was sent. Zero has no sign. (The paper's π is a
proportion of each sign's elements; counting on n makes the message's size
static.)

Selection float32; means float64, rounded to float32.
"""

from tests.oracles import leaves
from tests.oracles import sparse


def half(r, sign, k):
  """Returns the offsets of the k largest of one sign, and their mean."""
  having = [i for i in range(len(r)) if sign * r[i] > 0]
  chosen = sorted(having, key=lambda i: (-abs(r[i]), i))[:k]
  mean = sum(float(r[i]) for i in chosen) / len(chosen) if chosen else 0.0
  return chosen, mean


class Dryden(leaves.Oracle):
  """`r` is `pending`."""

  def __init__(self, density, *, dense=()):
    super().__init__(dense=dense)
    self.density = density

  @property
  def r(self):
    return self.pending

  def step(self, gradients):
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.r[w][leaf] += tree[leaf]
        r = self.r[w][leaf].flat
        k = sparse.count(self.density, tree[leaf].size)
        for sign in (1, -1):
          chosen, mean = half(r, sign, k)
          for i in chosen:
            self.delivered[w][leaf].flat[i] = mean
        self.r[w][leaf] -= self.delivered[w][leaf]
    return self._mean()
