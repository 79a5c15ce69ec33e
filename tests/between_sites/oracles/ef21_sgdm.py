"""EF21-SGDM: EF21 of a moving average of the gradients.

  v <- (1 - eta) v + eta g
  c = C(v - h);  h <- h + c;  H <- H + mean_w c;  H is returned

eta is the weight of the NEW gradient, in (0, 1]; eta = 1 is EF21. h is what
the paper calls g_i, and starts at zero. v starts as the first gradient, which
is the paper's v^-1 if it is drawn from the same batch; first='zero' starts it
at zero, so that the first v is eta g.

C is Top-k. Leaves that stay dense are those whose C changes nothing: their h is
v, so they too are averaged over time. The step after it is plain (no residual
besides h, and no momentum).

float32 throughout.

References: Fatkhullin, Tyurin & Richtárik, arXiv 2305.15155; the same recursion
as algorithm 2 of ||EF21-SGDM|| without the division by the norm.
"""

import numpy as np
from tests.oracles import ef21
from tests.oracles import leaves


class EF21SGDM(ef21.EF21):
  """v[w][leaf], and of `EF21`: estimate h, mean H, message c, pending v - h."""

  def __init__(self, density, *, momentum=1.0, first='gradient', **options):
    """Momentum is eta, the weight of the new gradient; options are EF21's."""
    super().__init__(density, **options)
    if not 0 < momentum <= 1:
      raise ValueError(f'momentum must be in (0, 1], got {momentum}')
    if first not in ('gradient', 'zero'):
      raise ValueError(f"first must be 'gradient' or 'zero', got {first!r}")
    self.momentum = momentum
    self.first = first
    self.v = None

  def step(self, gradients):
    gradients = leaves.copy(gradients)
    if self.v is None and self.first == 'gradient':
      self.v = leaves.copy(gradients)
    elif self.v is None:
      self.v = leaves.zeros(gradients)
    self.v = [
      [self._average(v, g) for v, g in zip(old, new, strict=True)]
      for old, new in zip(self.v, gradients, strict=True)
    ]
    return super().step(self.v)

  def _average(self, v, g):
    eta = self.momentum
    return np.asarray((1 - eta) * v + eta * g, np.float32)
