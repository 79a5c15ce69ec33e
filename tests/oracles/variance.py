"""Variance-based compression, its 4-bit code, and the hybrid with Strom.

float32 throughout; exponents by frexp, so they are exact.

References: arXiv 1802.06058, eq. 3, §4.2, §4.5, figures 1 and 2, appendix B.
"""

import math

import numpy as np
from tests.oracles import leaves


def floor_log2(x):
  """floor(log2 x), exactly, for x > 0.

  >>> [floor_log2(x) for x in (0.25, 0.3, 1, 7.99, 8)]
  [-2, -2, 0, 2, 3]
  """
  return math.frexp(float(x))[1] - 1


def exponent4(values):
  """Four bits a value: a sign, and d, powers of two below the largest.

  With e_M = floor(log2 max|x|): |x| is clipped to 2^e_M, else rounded to the
  nearer power of two, 1.5·2^e going up; d = e_M - log2(rounded). d > 7 has no
  code. A zero has none either.

  Args:
    values: a flat list: what one tensor wants to send.

  Returns:
    e_M (None where all values are zero); magnitudes after rounding (0 for 0);
    d a value (None for 0); the decoded values, 0 where there is no code.
  """
  values = [float(np.float32(x)) for x in np.ravel(values)]
  largest = max((abs(x) for x in values), default=0.0)
  if largest == 0:
    zeros = [0.0] * len(values)
    return None, zeros, [None] * len(values), zeros
  top = floor_log2(largest)
  magnitudes, distances, decoded = [], [], []
  for x in values:
    if x == 0:
      magnitudes.append(0.0)
      distances.append(None)
      decoded.append(0.0)
      continue
    exponent = floor_log2(abs(x))
    if abs(x) >= 1.5 * 2.0**exponent:
      exponent += 1
    exponent = min(exponent, top)
    magnitudes.append(2.0**exponent)
    distances.append(top - exponent)
    sent = math.copysign(2.0**exponent, x)
    decoded.append(sent if top - exponent <= 7 else 0.0)
  return top, magnitudes, distances, decoded


class _Moments(leaves.Oracle):
  """r <- r + g; v <- v + second moment; both zero for ever on dense leaves.

  Attributes:
    r: r[w][leaf], accumulated gradients; the same as `pending`.
    v: v[w][leaf], accumulated squares.
    sent: sent[w], the (leaf, offset) places that met the criterion and have a
      value on the wire.
  """

  def __init__(self, *, dense=()):
    super().__init__(dense=dense)
    self.v = None
    self.sent = None

  @property
  def r(self):
    return self.pending

  def _accumulate(self, gradients, second_moment):
    gradients = self._begin(gradients)
    squares = leaves.copy(second_moment)
    if self.v is None:
      self.v = leaves.zeros(gradients)
    self.sent = [[] for _ in gradients]
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.r[w][leaf] += tree[leaf]
        self.v[w][leaf] += squares[w][leaf]
    return gradients

  def _deliver(self, w, leaf, i, value):
    """Takes a value out of r and corrects v: a² -> (a - b)², §4.5."""
    r, v = self.r[w][leaf].flat, self.v[w][leaf].flat
    s = np.float32(value)
    self.delivered[w][leaf].flat[i] = s
    v[i] = max(v[i] - np.float32(2) * s * r[i] + s * s, np.float32(0))
    r[i] = r[i] - s
    self.sent[w].append((leaf, i))

  def _decay(self, w, leaf, i):
    self.v[w][leaf].flat[i] *= np.float32(self.decay)


class VarianceBased(_Moments):
  """Sends r where r² > α·v.

  rounding='paper': r and v are zeroed wherever the criterion held, the rounding
  error and the elements with d > 7 included; elsewhere v <- ζ·v.
  rounding='keep': only what was delivered leaves r, v <- max(v - 2Sr + S², 0),
  then v <- ζ·v everywhere. Where S = r exactly (float32 values) this leaves
  max(v - r², 0), which is the paper's 0 for every α >= 1.
  """

  def __init__(
    self, alpha, *, decay=0.999, values='exponent4', rounding='keep', dense=()
  ):
    super().__init__(dense=dense)
    if values not in ('exponent4', 'float32'):
      raise ValueError(f'unknown values {values!r}')
    if rounding not in ('keep', 'paper'):
      raise ValueError(f'unknown rounding {rounding!r}')
    self.alpha = alpha
    self.decay = decay
    self.values = values
    self.rounding = rounding

  def step(self, gradients, second_moment):
    """second_moment[w][leaf] is Σ_z (∇f_z/|B|)² over the worker's batch."""
    gradients = self._accumulate(gradients, second_moment)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self._leaf(w, leaf)
    return self._mean()

  def _leaf(self, w, leaf):
    r, v = self.r[w][leaf].flat, self.v[w][leaf].flat
    alpha = np.float32(self.alpha)
    passed = [i for i in range(len(r)) if r[i] * r[i] > alpha * v[i]]
    values = [r[i] for i in passed]
    if self.values == 'exponent4':
      values = exponent4(values)[3]
    for i, value in zip(passed, values, strict=True):
      # A zero is an empty slot, from d > 7: r² > α·v excludes r = 0.
      if value != 0:
        self._deliver(w, leaf, i, value)
    zeroed = set(passed) if self.rounding == 'paper' else set()
    for i in range(len(r)):
      if i in zeroed:
        r[i] = 0
        v[i] = 0
      else:
        self._decay(w, leaf, i)


class VarianceStrom(_Moments):
  """The hybrid, figure 2: sends sign(r)·τ where |r| > τ and r² > α·v.

  Then v <- max(v - 2Sr + S², 0), r <- r - S, and v <- ζ·v everywhere.
  """

  def __init__(self, alpha, *, threshold, decay=0.999, dense=()):
    super().__init__(dense=dense)
    self.alpha = alpha
    self.threshold = threshold
    self.decay = decay

  def step(self, gradients, second_moment):
    gradients = self._accumulate(gradients, second_moment)
    alpha, tau = np.float32(self.alpha), np.float32(self.threshold)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        r, v = self.r[w][leaf].flat, self.v[w][leaf].flat
        for i in range(len(r)):
          if abs(r[i]) > tau and r[i] * r[i] > alpha * v[i]:
            self._deliver(w, leaf, i, tau if r[i] > 0 else -tau)
          self._decay(w, leaf, i)
    return self._mean()
