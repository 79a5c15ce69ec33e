"""TernGrad (Wen 2017): clip, share the scaler, draw three levels.

σ is the standard deviation *about the mean* of the tensor, sqrt(mean((g -
mean)²)), population form, and elements are clipped to [-c·σ, c·σ] about *zero*.
The paper says only that σ is the standard deviation of the gradients of a
layer; this is its published code (clip_gradients_by_stddev). A tensor of one
element, or a constant one, has σ = 0, so this rule sends nothing of it, for
ever; the code leaves tensors below `size_to_binarize` elements alone (pass
them in `dense`).

σ and the mean in float64, rounded to float32; the rest float32. No memory: what
clipping cuts is gone, and the mean is unbiased about the clipped gradient.
"""

import math

import numpy as np
from tests.oracles import leaves


def clip(g, factor):
  """Clips to ±factor·σ of the tensor; factor None or 0 does not clip."""
  g = np.asarray(g, np.float32)
  if not factor:
    return g.copy()
  mean = sum(float(x) for x in g.flat) / g.size
  sigma = math.sqrt(sum((float(x) - mean) ** 2 for x in g.flat) / g.size)
  limit = np.float32(np.float32(factor) * np.float32(sigma))
  return np.array(np.clip(g, -limit, limit), np.float32)


def ternary(g, scale, uniforms):
  """scale·sign(g) where the uniform draw is below |g|/scale, else 0."""
  out = np.zeros_like(g)
  uniforms = np.asarray(uniforms, np.float32)
  if scale == 0:
    return out
  for i in range(g.size):
    if uniforms.flat[i] < abs(g.flat[i]) / scale:
      out.flat[i] = scale if g.flat[i] > 0 else -scale
  return out


class TernGrad(leaves.Oracle):
  """Ternary values at one scaler a leaf, shared by all workers.

  Attributes:
    clipped: clipped[w][leaf], what the draws are unbiased about.
    scales: scales[leaf] = max over workers of max|clipped|; 0 on dense leaves.
  """

  def __init__(self, *, clip=2.5, dense=()):
    super().__init__(dense=dense)
    self.clip = clip
    self.clipped = None
    self.scales = None

  def step(self, gradients, uniforms):
    """Uniforms[w][leaf]: draws from [0, 1), shaped like the gradients."""
    gradients = self._begin(gradients)
    self.clipped = leaves.copy(gradients)
    self.scales = [np.float32(0)] * len(gradients[0])
    for leaf in self._compressed_leaves(gradients[0]):
      for w, tree in enumerate(gradients):
        self.clipped[w][leaf] = clip(tree[leaf], self.clip)
      self.scales[leaf] = np.float32(
        max(abs(x) for tree in self.clipped for x in tree[leaf].flat)
      )
      for w in range(len(gradients)):
        self.delivered[w][leaf] += ternary(
          self.clipped[w][leaf], self.scales[leaf], uniforms[w][leaf]
        )
    return self._mean()
