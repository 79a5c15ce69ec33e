"""gTop-k: the operator ⊤, its topologies, and what is put back.

float32 throughout: partial sums are rounded as each topology orders them.
Messages are dicts from index (in the joined vector) to value.

Conventions. A message holds the indices that were selected, also where the
value is zero; the candidates of a merge are the indices that either side holds,
also where the sum cancels to zero; the k of largest |sum| stay, ties to the
lower index. (Where fewer than k candidates exist all stay.)

References: arXiv 1901.04359, Definition 1 and Algorithms 2, 3 and 4.
"""

import numpy as np
from tests.oracles import leaves
from tests.oracles import sparse


def sparse_sum(a, b):
  """Adds two messages, index by index."""
  zero = np.float32(0)
  return {
    i: np.float32(a.get(i, zero) + b.get(i, zero))
    for i in sorted(set(a) | set(b))
  }


def largest(message, k):
  """Keeps the k largest magnitudes of a message; ties to the lower index."""
  order = sorted(message, key=lambda i: (-abs(message[i]), i))
  return {i: message[i] for i in sorted(order[:k])}


def merge(a, b, k):
  """a ⊤ b, Definition 1.

  >>> merge({0: 1., 3: -2.}, {1: 2., 3: 1.}, 2)
  {0: np.float32(1.0), 1: np.float32(2.0)}
  """
  return largest(sparse_sum(a, b), k)


def allgather(messages, k):
  """Algorithm 2: the exact top k of the sum of all messages, in rank order.

  Returns:
    The result, and survived[w]: the indices of worker w's message in it.
  """
  total = {}
  for message in messages:
    total = sparse_sum(total, message)
  result = largest(total, k)
  return result, [set(m) & set(result) for m in messages]


def fold_size(num_workers):
  """m = 2^floor(log2 P).

  >>> [fold_size(p) for p in range(1, 9)]
  [1, 2, 2, 4, 4, 4, 4, 8]
  """
  m = 1
  while 2 * m <= num_workers:
    m *= 2
  return m


def tree(messages, k, odd='wait'):
  """Algorithm 3: merges along a binary tree to rank 0, then a broadcast.

  In round j rank r, a multiple of 2^(j+1), receives from r + 2^j. The paper has
  P a power of two. For other P, odd='wait' lets a rank without a partner pass
  the round; odd='fold' merges rank r >= m into r - m first, as the butterfly.

  Returns:
    The result, and survived[w]: the indices of worker w's message that every
    merge on its path to the root kept.
  """
  if odd not in ('wait', 'fold'):
    raise ValueError(f"odd must be 'wait' or 'fold', got {odd!r}")
  held = [dict(m) for m in messages]
  members = [[w] for w in range(len(messages))]
  survived = [set(m) for m in messages]

  def receive(rank, source):
    held[rank] = merge(held[rank], held[source], k)
    members[rank] = members[rank] + members[source]
    for w in members[rank]:
      survived[w] &= set(held[rank])

  size = len(messages)
  if odd == 'fold':
    m = fold_size(size)
    for extra in range(m, size):
      receive(extra - m, extra)
    size = m
  stride = 1
  while stride < size:
    for rank in range(0, size, 2 * stride):
      if rank + stride < size:
        receive(rank, rank + stride)
    stride *= 2
  return held[0], survived


def butterfly(messages, k):
  """Recursive doubling: in round j each rank merges with rank XOR 2^j.

  With m = 2^floor(log2 P), rank r >= m folds into r - m first, and receives the
  result last. Every rank holds the same result, to the bit: ⊤ is commutative.

  Returns:
    The results, one a rank, and survived[w] as in `tree`, here from what each
    worker sees itself.
  """
  size = len(messages)
  m = fold_size(size)
  held = [dict(message) for message in messages]
  survived = [set(message) for message in messages]
  for extra in range(m, size):
    held[extra - m] = merge(held[extra - m], held[extra], k)
    survived[extra - m] &= set(held[extra - m])
    survived[extra] &= set(held[extra - m])
  stride = 1
  while stride < m:
    held[:m] = [merge(held[r], held[r ^ stride], k) for r in range(m)]
    for r in range(size):
      # An extra rank hears from its host what of its own survived.
      survived[r] &= set(held[r if r < m else r - m])
    stride *= 2
  for extra in range(m, size):
    held[extra] = dict(held[extra - m])
  return held, survived


class GTopK(leaves.Oracle):
  """Algorithm 4, over a topology, with the put-back of the paper or the exact.

  Each worker: v <- v + g; its message is the top k of |v|, and v loses it.
  put_back='exact': what some merge on the worker's path dropped returns to v.
  put_back='paper': what the final mask lacks does (Algorithm 4, line 10); what
  an inner merge dropped and another subtree brought into the final mask is in
  neither, and is shown in `lost`.

  Attributes:
    mask: mask[group], sorted indices (of the joined vector) of the result.
    lost: lost[w][leaf], what the step lost of this worker; zeros when exact.
  """

  def __init__(
    self,
    density,
    *,
    put_back='exact',
    topology='butterfly',
    scope='global',
    odd='wait',
    dense=(),
  ):
    super().__init__(dense=dense)
    if put_back not in ('exact', 'paper'):
      raise ValueError(f"put_back must be 'exact' or 'paper', got {put_back!r}")
    if topology not in ('butterfly', 'tree', 'allgather'):
      raise ValueError(f'unknown topology {topology!r}')
    self.density = density
    self.put_back = put_back
    self.topology = topology
    self.scope = scope
    self.odd = odd
    self.mask = None
    self.lost = None

  def step(self, gradients):
    gradients = self._begin(gradients)
    self.lost = leaves.zeros(gradients)
    self.mask = []
    total = leaves.zeros(gradients[:1])[0]
    for w, worker in enumerate(gradients):
      for leaf in self._compressed_leaves(worker):
        self.pending[w][leaf] += worker[leaf]
    for group in sparse.groups(len(total), self.scope, self.dense):
      result = self._exchange(gradients, group)
      place = sparse.places(total, group)
      for i, value in result.items():
        leaf, offset = place[i]
        total[leaf].flat[offset] = value
      self.mask.append(sorted(result))
    # The sum as the topology rounded it, not as delivered would add up.
    means = self._mean()
    for leaf in self._compressed_leaves(total):
      means[leaf] = total[leaf] / np.float32(len(gradients))
    return means

  def _exchange(self, gradients, group):
    place = sparse.places(gradients[0], group)
    k = sparse.count(self.density, len(place))
    messages = []
    for w in range(len(gradients)):
      joined = sparse.join(self.pending[w], group)
      messages.append({i: joined[i] for i in sparse.top_k(joined, k)})
    if self.topology == 'allgather':
      result, survived = allgather(messages, k)
    elif self.topology == 'tree':
      result, survived = tree(messages, k, self.odd)
    else:
      results, survived = butterfly(messages, k)
      result = results[0]
    for w, message in enumerate(messages):
      for i, value in message.items():
        leaf, offset = place[i]
        if i in survived[w]:
          self.delivered[w][leaf].flat[offset] = value
          self.pending[w][leaf].flat[offset] = 0
        elif self.put_back == 'paper' and i in result:
          self.lost[w][leaf].flat[offset] = value
          self.pending[w][leaf].flat[offset] = 0
    return result
