"""1-bit Adam: dense Adam, then momentum of one bit an element, v frozen.

Steps are counted from 1. In the first `freeze_step` steps g is the dense mean:

  m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2

After that v stays, and each worker w has its own m only until it is exchanged:

  m_w <- b1 m + (1 - b1) g_w
  x_w = m_w + e_w;  c_w = C(x_w);  e_w <- x_w - c_w      worker error
  y = mean_w c_w + d;  m <- C(y);  d <- y - m            server error

C(x) = |x|_2 / sqrt(n) sign(x), sign(0) = +1. Worker w is the server of chunk w
of a leaf: it averages and rounds that chunk, with a scale of its own, and keeps
its d. A worker's C is of the whole leaf. The update is the same on all workers:

  - lr (m' / (sqrt(v') + eps) + weight_decay p)

What differs between the two versions:

                      OneBitAdam (paper)            DeepSpeed (the code)
  m', v'              m / (1 - b1^t),               m, v: a flag for the bias
                      v / (1 - b2^min(t, freeze))   correction is read, not used
  leaf's length       its own; chunks of            padded with zeros to a
                      ceil(n / P), the last ones    multiple of P lcm(P, 8); the
                      shorter or empty              padding has errors, and
                                                    counts in the scales
  one worker          rounds like any other         m is not rounded
  errors on restart   kept                          lost: `reload`

The paper's listing speaks of "the original Adam" before the freeze and of m /
sqrt(v) after it; that the correction goes on, m's with t, v's with the step of
the freeze, makes the first step after the freeze continuous with the last one
before it. bias_correction=False leaves it out. The code counts its first call,
which only makes its buffers and moves nothing, as a step; here it is not there.

float32; norms are added in float64 and rounded.

References: Tang et al., arXiv 2102.02888, algorithm 1; DeepSpeed at edaa722,
runtime/fp16/onebit/adam.py, and compressed_allreduce of its communication.
"""

import math

import numpy as np
from tests.oracles import leaves


def one_bit(x):
  """Returns (scale, decoded): signs that have the norm of x.

  >>> one_bit(np.float32([3, 0, -4, -0.0]))[1].tolist()
  [2.5, 2.5, -2.5, 2.5]
  """
  x = np.asarray(x, np.float32)
  if x.size == 0:
    return np.float32(0), x
  norm = np.linalg.norm(x.astype(np.float64))
  scale = np.float32(norm / math.sqrt(x.size))
  return scale, np.where(x >= 0, scale, -scale).astype(np.float32)


class OneBitAdam:
  """As the paper describes it.

  Attributes:
    t: steps so far.
    m: m[leaf], equal on all workers after a step.
    v: v[leaf], equal on all workers at all times.
    worker_error: worker_error[w][leaf], flat and padded; zeros at first.
    server_error: server_error[leaf], flat and padded: all servers' chunks.
    local: local[w][leaf], m_w of the last step, before its error is added.
    sent: sent[w][leaf], c_w of the last step.
    received: received[leaf], what all got in the last step: m, before its mask.
      All three flat and padded; None in a dense step and on dense leaves.
  """

  compresses_alone = True

  def __init__(
    self,
    learning_rate,
    *,
    freeze_step,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    weight_decay=0.0,
    bias_correction=True,
    num_servers=None,
    masks=None,
    dense=(),
  ):
    """Starts with everything at zero.

    Args:
      learning_rate: may be set between two steps.
      freeze_step: how many steps are dense.
      b1: of m.
      b2: of v.
      eps: added to the root.
      weight_decay: times the parameters; not divided by the root.
      bias_correction: as in Adam.
      num_servers: chunks of a leaf in the second half; None: as many as
        workers; 1: one scale a leaf; 0: m is the mean of the c_w, unrounded.
      masks: masks[leaf], times m after each exchange: one bit cannot say zero,
        so rows that never get a gradient need it. None for none.
      dense: positions of leaves that stay dense Adam for ever, v not frozen.
    """
    self.learning_rate = learning_rate
    self.freeze_step = freeze_step
    self.b1, self.b2, self.eps = b1, b2, eps
    self.weight_decay = weight_decay
    self.bias_correction = bias_correction
    self.num_servers = num_servers
    self.masks = masks
    self.dense = frozenset(dense)
    self.t = 0
    self.m = self.v = None
    self.worker_error = self.server_error = None

  def step(self, gradients, params=None):
    """Returns what is added to the parameters, leaf by leaf.

    Args:
      gradients: gradients[w][leaf].
      params: params[leaf]; only weight decay needs them.
    """
    gradients = leaves.copy(gradients)
    if self.m is None:
      self.m, self.v = leaves.zeros(gradients)[0], leaves.zeros(gradients)[0]
      self.forget(gradients)
    self.t += 1
    self.local = [[None] * len(tree) for tree in gradients]
    self.sent = [[None] * len(tree) for tree in gradients]
    self.received = [None] * len(self.m)
    means = leaves.worker_mean(gradients)
    updates = []
    for leaf, g in enumerate(means):
      frozen = self.t > self.freeze_step and leaf not in self.dense
      if frozen:
        self._exchange(leaf, [tree[leaf] for tree in gradients])
      else:
        self.m[leaf] = np.asarray(self.b1 * self.m[leaf] + (1 - self.b1) * g)
        self.v[leaf] = np.asarray(
          self.b2 * self.v[leaf] + (1 - self.b2) * g * g
        )
      update = self._direction(leaf, frozen)
      if self.weight_decay:
        update = update + self.weight_decay * np.asarray(params[leaf])
      updates.append(np.asarray(-self.learning_rate * update, np.float32))
    return updates

  def forget(self, gradients):
    """Sets all errors to zero."""
    num_workers = len(gradients)
    sizes = [self.padded(np.size(x), num_workers) for x in gradients[0]]
    zeros = lambda: [np.zeros(n, np.float32) for n in sizes]
    self.worker_error = [zeros() for _ in range(num_workers)]
    self.server_error = zeros()

  def padded(self, n, num_workers):
    """Returns the length to which a leaf of n elements is padded."""
    del num_workers
    return n

  def _direction(self, leaf, frozen):
    m, v = self.m[leaf], self.v[leaf]
    if self.bias_correction:
      steps = self.freeze_step if frozen else self.t
      m = m / (1 - self.b1**self.t)
      # Frozen at once, v is zero, and its correction too.
      v = v / (1 - self.b2**steps) if steps else v
    return m / (np.sqrt(v) + self.eps)

  def _exchange(self, leaf, gradients):
    num_workers = len(gradients)
    n, shape = self.m[leaf].size, self.m[leaf].shape
    padded = self.padded(n, num_workers)
    for w, g in enumerate(gradients):
      local = np.zeros(padded, np.float32)
      local[:n] = np.ravel(self.b1 * self.m[leaf] + (1 - self.b1) * g)
      self.local[w][leaf] = local
      x = local + self.worker_error[w][leaf]
      if num_workers == 1 and not self.compresses_alone:
        self.sent[w][leaf] = self.received[leaf] = local
        continue
      _, self.sent[w][leaf] = one_bit(x)
      self.worker_error[w][leaf] = x - self.sent[w][leaf]
    if num_workers > 1 or self.compresses_alone:
      self._serve(leaf, num_workers)
    m = self.received[leaf][:n].reshape(shape)
    if self.masks is not None:
      m = m * np.asarray(self.masks[leaf], np.float32)
    self.m[leaf] = np.asarray(m)

  def _serve(self, leaf, num_workers):
    """The second half: the mean, rounded again in chunks."""
    (mean,) = leaves.worker_mean([[tree[leaf]] for tree in self.sent])
    chunks = num_workers if self.num_servers is None else self.num_servers
    if chunks == 0:
      self.received[leaf] = mean
      return
    y = mean + self.server_error[leaf]
    size = max(1, -(-y.size // chunks))
    self.received[leaf] = np.concatenate(
      [one_bit(y[i : i + size])[1] for i in range(0, max(1, y.size), size)]
    )
    self.server_error[leaf] = y - self.received[leaf]


class DeepSpeed(OneBitAdam):
  """As in the code."""

  compresses_alone = False

  def __init__(self, learning_rate, *, freeze_step, **options):
    super().__init__(
      learning_rate,
      freeze_step=freeze_step,
      bias_correction=False,
      **options,
    )

  def padded(self, n, num_workers):
    """Padded, so that the chunks of all servers are whole bytes.

    >>> make = DeepSpeed(0.1, freeze_step=1)
    >>> [make.padded(10, workers) for workers in (1, 2, 3, 4, 8)]
    [16, 16, 72, 32, 64]
    """
    multiple = num_workers * math.lcm(num_workers, 8)
    return -(-n // multiple) * multiple

  def reload(self):
    """What loading a checkpoint does: both errors are gone."""
    for error in (*sum(self.worker_error, []), *self.server_error):
      error[...] = 0
