"""Combining global sparse with local gradients, over any inner oracle.

The paper's G is a sum over workers and its C goes to the optimizer; in the mean
convention C is divided by P. With G = P·mean, S what this worker delivered, L
its gradient, E its residual after the step:

  sum:     C = (G + L)/2     ->  (mean + L/P)/2
  partial: C = G - S + L     ->  mean + (L - S)/P
  error:   C = G + E; E <- 0 ->  mean + E/P

Applied to every leaf, also to those that stay dense (there S = L, E = 0).
float32.

References: Aji, Heafield & Bogoychev, "Combining global sparse gradients with
local gradients" (ICLR 2019 submission), Algorithm 2.
"""

import numpy as np
from tests.oracles import leaves


class LocalGradient:
  """step(gradients) returns combined[w][leaf]: each worker has its own.

  Attributes:
    mean: the inner oracle's mean, before combining.
    pending, delivered: those of the inner oracle; error mode empties pending.
  """

  def __init__(self, inner, mode):
    if mode not in ('sum', 'partial', 'error'):
      raise ValueError(f'unknown mode {mode!r}')
    self.inner = inner
    self.mode = mode
    self.mean = None

  @property
  def pending(self):
    return self.inner.pending

  @property
  def delivered(self):
    return self.inner.delivered

  def step(self, gradients):
    gradients = leaves.copy(gradients)
    workers = np.float32(len(gradients))
    self.mean = self.inner.step(gradients)
    combined = []
    for w, tree in enumerate(gradients):
      out = []
      for leaf, g in enumerate(tree):
        mean = self.mean[leaf]
        if self.mode == 'sum':
          c = (mean + g / workers) / 2
        elif self.mode == 'partial':
          c = mean + (g - self.delivered[w][leaf]) / workers
        else:
          c = mean + self.pending[w][leaf] / workers
          self.pending[w][leaf][...] = 0
        out.append(np.array(c, np.float32))
      combined.append(out)
    return combined
