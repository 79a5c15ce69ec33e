"""Quantised reduce-scatter with a residual at each end (DoubleSqueeze).

The compressed leaves, joined, are cut into P equal parts of whole buckets (the
last ones may be short, or empty). Each worker rounds what it has, bucket by
bucket; the owner of a part adds up what all have rounded, adds what its own
last rounding lost, and rounds the P-th of that for everybody:

  C = round((S + e) / P),  e <- S + e - P C

A worker is credited with what it rounded to, and the owner of a part with
P C - S on it beside. It owes r, what its memory has, and e. float32.

References: Tang et al., arXiv 1905.05957 (there e is a P-th of ours); Seide et
al., Interspeech 2014.
"""

import abc

import numpy as np
from tests.oracles import leaves
from tests.oracles import one_bit
from tests.oracles import qsgd


def part_length(size, workers, bucket_size):
  """The least number of whole buckets of which P parts hold all elements.

  >>> part_length(100, 3, 8)
  40
  """
  part = 0
  while part * workers < size:
    part += bucket_size
  return part


class _Scatter(leaves.Oracle, abc.ABC):
  """Joins the leaves; a subclass says how buckets are rounded.

  Attributes:
    r: r[w], what the memory of worker w holds, joined; zeros without memory.
    e: e[w], what the roundings of worker w's part lost, joined.
  """

  memory = feedback = True

  def __init__(self, *, bucket_size, dense=()):
    super().__init__(dense=dense)
    self.bucket_size = bucket_size
    self.r = self.e = None

  @abc.abstractmethod
  def _round(self, x, uniforms):
    """One bucket, rounded."""

  def _parts(self, size, workers):
    part = part_length(size, workers, self.bucket_size)
    return [slice(w * part, min((w + 1) * part, size)) for w in range(workers)]

  def step(self, gradients, first=None, second=None):
    """The mean.

    Args:
      gradients: gradients[w][leaf].
      first: first[w], uniform draws for the joined vector of worker w.
      second: second[w], for the part of worker w.
    """
    gradients = self._begin(gradients)
    workers, numbers = len(gradients), self._compressed_leaves(gradients[0])
    joined = [
      np.concatenate([tree[i].ravel() for i in numbers]) for tree in gradients
    ]
    size = joined[0].size
    if self.r is None:
      self.r = [np.zeros(size, np.float32) for _ in joined]
      self.e = [np.zeros(size, np.float32) for _ in joined]
    have = [r + g for r, g in zip(self.r, joined, strict=True)]
    rounded = [
      self._round(x, None if first is None else first[w])
      for w, x in enumerate(have)
    ]
    if self.memory:
      self.r = [x - q for x, q in zip(have, rounded, strict=True)]
    credit = [q.copy() for q in rounded]
    for w, part in enumerate(self._parts(size, workers)):
      total = np.sum([q[part] for q in rounded], axis=0, dtype=np.float32)
      wanted = total + self.e[w][part]
      drawn = None if second is None else second[w][: total.size]
      sent_back = self._round(wanted / np.float32(workers), drawn) * workers
      if self.feedback:
        self.e[w][part] = wanted - sent_back
      credit[w][part] += sent_back - total
    for w in range(workers):
      start = 0
      for i in numbers:
        stop = start + gradients[w][i].size
        shape = gradients[w][i].shape
        self.delivered[w][i] += credit[w][start:stop].reshape(shape)
        owed = self.r[w][start:stop] + self.e[w][start:stop]
        self.pending[w][i] = owed.reshape(shape)
        start = stop
    return self._mean()


class OneBit(_Scatter):
  """A bucket, a run of the joined vector, is rebuilt as a column of one_bit."""

  def _round(self, x, uniforms):
    del uniforms
    ranges = qsgd.bucket_ranges(x.size, self.bucket_size)
    pieces = [one_bit.reconstruct(x[a:b]) for a, b in ranges]
    return np.concatenate([np.zeros(0, np.float32), *pieces])


class QSGD(_Scatter):
  """No memory; e is kept where it is smaller than what was rounded."""

  memory = False

  def __init__(self, levels, *, bucket_size, norm='max', dense=()):
    super().__init__(bucket_size=bucket_size, dense=dense)
    self.levels, self.norm = levels, norm
    if norm == 'max':
      self.feedback = levels > 1
    else:
      self.feedback = levels**2 > bucket_size

  def _round(self, x, uniforms):
    return qsgd.quantise(x, self.levels, self.bucket_size, self.norm, uniforms)
