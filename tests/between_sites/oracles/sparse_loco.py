"""SparseLoCo: pseudo-gradients, sparse in tiles, with an error that decays.

At each exchange, each worker and each leaf, Delta = theta - theta_w:

  e <- beta e + Delta            what is forgotten by it: (1 - beta) e
  in each tile the k largest |e| are sent, as `decoded`
  e <- e - decoded

  U = sum over workers of decoded / the number of workers       'workers'
                                  / how many sent the element   'senders'
  theta <- theta - eta U;  every theta_w <- theta

The paper writes the mean over workers; the code divides by the number of
senders. Where nobody sent, U is zero. An element that was selected counts as
sent, even if its value is zero, as in the code (its scatter takes the mean over
all indices that came).

Tiles: a leaf of two dimensions is cut into tiles of h x v, the largest divisors
of its sides that are at most `tile`; a leaf of one dimension into chunks of the
largest divisor. k is the same in all, and never more than the tile has. Neither
repository has leaves of other ranks: here a scalar is a chunk of one element,
and the first dimensions of a leaf of three or more are joined to be the rows.

The learning rate goes in once, outside of the memory (CCLoco's memory has it
too, which scales the residual by the schedule), and neither the even k of the
production code nor its scaling to the median norm is here.

float32; sums of which only a mean is taken are added in float64 and rounded.

References: SparseLoCo as in CCLoco 5bfce52 and templar 142666f.
"""

import numpy as np
from tests.between_sites.oracles import outer
from tests.oracles import leaves
from tests.oracles import sparse


def largest_divisor(n, at_most):
  """Returns the largest divisor of n that is not above at_most.

  >>> [largest_divisor(n, 64) for n in (768, 50304, 100, 50257, 30522, 67, 5)]
  [64, 64, 50, 29, 6, 1, 5]
  """
  return max(d for d in range(1, min(n, at_most) + 1) if n % d == 0)


def tiles(shape, tile):
  """Returns the flat offsets of each tile, ascending in each.

  >>> tiles((2, 6), 3)
  [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
  >>> tiles((6,), 4)
  [[0, 1, 2], [3, 4, 5]]
  >>> tiles((), 4)
  [[0]]
  """
  n = int(np.prod(shape, dtype=np.int64))
  if n == 0:
    return []
  if len(shape) < 2:
    size = largest_divisor(n, tile)
    return [list(range(i, i + size)) for i in range(0, n, size)]
  columns = shape[-1]
  rows = n // columns
  h, v = largest_divisor(rows, tile), largest_divisor(columns, tile)
  return [
    [row * columns + c for row in range(y, y + h) for c in range(x, x + v)]
    for y in range(0, rows, h)
    for x in range(0, columns, v)
  ]


def select(x, k, tile):
  """Returns the offsets in flat x of the k largest of each tile, ascending.

  Ties keep the lower index.

  >>> select(np.float32([[1, -3, 9, 9], [3, 0, 9, 8]]), 2, 2)
  [1, 2, 3, 4]
  """
  flat = np.ravel(x)
  selected = []
  for offsets in tiles(np.shape(x), tile):
    kept = min(max(k, 1), len(offsets))
    selected += [offsets[i] for i in sparse.top_k(flat[offsets], kept)]
  return sorted(selected)


def k_of(density, tile):
  """Returns k of a full tile, for a density that 64 of 4096 is 1 / 64 of."""
  return sparse.count(density, tile * tile)


def table(values, bins=4, deviations=6):
  """Statistical codes of the values of one leaf: (codes, reconstructions).

    s = mean of the values;  c = value - s;  sd = |c| / sqrt(n - 1)
    width = deviations sd / bins   (1 if that is 0 or not finite, or n = 1)
    code = clip(round(c / width + bins // 2), 0, bins - 1)    half to even
    reconstruction of a code = mean of the c that have it, plus s

  With four bins and six deviations the edges are at s - 2.25 sd, s - 0.75 sd
  and s + 0.75 sd: the bins are not symmetric about s. A code that no value has
  is rebuilt as s. Values of one bin are rebuilt by their mean, so the rounding
  changes neither their sum nor that of the leaf.

  >>> codes, rebuilt = table(np.float32([-5, -3, 3, 5]))
  >>> codes.tolist(), rebuilt.tolist()
  ([1, 2, 2, 3], [0.0, -5.0, 0.0, 5.0])
  """
  values = np.asarray(values, np.float32)
  n = values.size
  if n == 0:
    return np.zeros(0, np.int64), np.zeros(bins, np.float32)
  s = np.float32(np.mean(values, dtype=np.float64))
  c = values - s
  width = np.float32(1)
  if n > 1:
    sd = np.linalg.norm(c.astype(np.float64)) / np.sqrt(n - 1)
    with np.errstate(over='ignore'):
      width = np.float32(deviations * sd / bins)
    if width == 0 or not np.isfinite(width):
      width = np.float32(1)
  codes = np.clip(np.round(c / width + bins // 2), 0, bins - 1)
  codes = codes.astype(np.int64)
  rebuilt = np.zeros(bins, np.float32)
  for b in range(bins):
    if np.any(codes == b):
      rebuilt[b] = np.mean(c[codes == b], dtype=np.float64)
  return codes, rebuilt + s


class Compressor(leaves.Oracle):
  """The exchange: step(deltas) returns U.

  Law of the memory: e + Delta = delivered + pending + forgotten, before and
  after the step. Law of the means: the sum over workers of delivered is U times
  the workers that took part ('workers'), or times `senders` ('senders').

  Attributes:
    pending: pending[w][leaf], e.
    delivered: delivered[w][leaf], what worker w sent, decoded.
    forgotten: forgotten[w][leaf], what the decay took from e in this step.
    senders: senders[leaf], how many sent each element; all who took part on
      dense leaves.
    offsets: offsets[w][leaf], flat offsets of what was sent; None where dense.
    codes: codes[w][leaf], of those, with values='table4'.
    tables: tables[w][leaf], four reconstruction values, with values='table4'.
  """

  def __init__(
    self,
    *,
    k=64,
    tile=64,
    mean='senders',
    error_decay=0.95,
    values='float32',
    dense=(),
  ):
    super().__init__(dense=dense)
    if mean not in ('workers', 'senders'):
      raise ValueError(f"mean must be 'workers' or 'senders', got {mean!r}")
    if values not in ('float32', 'table4'):
      raise ValueError(f"values must be 'float32' or 'table4', got {values!r}")
    self.k = k
    self.tile = tile
    self.mean = mean
    self.error_decay = error_decay
    self.values = values
    self.forgotten = None
    self.senders = None
    self.offsets = self.codes = self.tables = None

  def step(self, deltas, present=None):
    """Returns U.

    Args:
      deltas: deltas[w][leaf], theta - theta_w.
      present: present[w], whose message arrives; None for all. A worker whose
        message does not keeps all of it: e <- beta e + Delta. What it owes of
        dense leaves, which have no memory, is lost.
    """
    deltas = self._begin(deltas)
    if present is None:
      present = [True] * len(deltas)
    self.forgotten = leaves.zeros(deltas)
    self.senders = [np.zeros(np.shape(x), np.int64) for x in deltas[0]]
    blank = lambda: [[None] * len(tree) for tree in deltas]
    self.offsets, self.codes, self.tables = blank(), blank(), blank()
    for w, tree in enumerate(deltas):
      for leaf in self._dense_leaves(tree):
        if present[w]:
          self.senders[leaf] += 1
        else:
          self.delivered[w][leaf][...] = 0
      for leaf in self._compressed_leaves(tree):
        self._accumulate(w, leaf, tree[leaf])
        if present[w]:
          self._send(w, leaf)
    update = []
    for leaf, counts in enumerate(self.senders):
      total = np.zeros(np.shape(counts), np.float32)
      for tree in self.delivered:
        total += tree[leaf]
      divisor = sum(present)
      if self.mean == 'senders':
        divisor = np.maximum(counts, 1).astype(np.float32)
      update.append(np.asarray(total / divisor, np.float32))
    return update

  def _accumulate(self, w, leaf, delta):
    e = self.pending[w][leaf]
    decayed = np.asarray(np.float32(self.error_decay) * e)
    self.forgotten[w][leaf][...] = e - decayed
    self.pending[w][leaf] = np.asarray(decayed + delta)

  def _send(self, w, leaf):
    e = self.pending[w][leaf]
    offsets = select(e, self.k, self.tile)
    decoded = np.ravel(e)[offsets]
    if self.values == 'table4':
      codes, rebuilt = table(decoded)
      self.codes[w][leaf], self.tables[w][leaf] = codes, rebuilt
      decoded = rebuilt[codes]
    self.offsets[w][leaf] = offsets
    for offset, value in zip(offsets, decoded, strict=True):
      self.delivered[w][leaf].flat[offset] = value
      self.senders[leaf].flat[offset] += 1
    self.pending[w][leaf] = np.asarray(e - self.delivered[w][leaf])


def sparse_loco(
  params, *, sync_every=30, learning_rate=1.0, momentum=0.0, **options
):
  """Returns (outer step, compressor): the method as a whole.

  Args:
    params: params[leaf], where all workers start.
    sync_every: H.
    learning_rate: eta, used once.
    momentum: of the outer step; SparseLoCo has none.
    **options: of the Compressor.
  """
  compressor = Compressor(**options)
  method = outer.DiLoCo(
    params,
    sync_every=sync_every,
    learning_rate=learning_rate,
    momentum=momentum,
    exchanges=[compressor.step],
  )
  return method, compressor
