"""Second moments for the variance criterion: exact, and from micro-batches.

All are v's increment Σ_z (∇f_z/|B|)², elementwise. float64.

`unbiased` and `dense_layer` are not in the paper: they make its v cheap.

References: arXiv 1802.06058, eq. 1, eq. 3 and appendix A.
"""

import numpy as np


def exact(per_example):
  """Σ_z (∇f_z/B)², from per_example[z]."""
  per_example = np.asarray(per_example, np.float64)
  return ((per_example / len(per_example)) ** 2).sum(axis=0)


def plain(micro_means):
  """Σ_j (ḡ_j/M)², from micro_means[j]. Biased: μ² counts 1/M times, not 1/B."""
  return exact(micro_means)


def unbiased(micro_means, batch_size):
  """(r² + s²(B-1)/B)/B with s² = (B/M)/(M-1)·Σ_j (ḡ_j - r)²; M >= 2."""
  micro_means = np.asarray(micro_means, np.float64)
  big_b, m = batch_size, len(micro_means)
  r = micro_means.mean(axis=0)
  s2 = (big_b / m) / (m - 1) * ((micro_means - r) ** 2).sum(axis=0)
  return (r**2 + s2 * (big_b - 1) / big_b) / big_b


def dense_layer(activations, cotangents):
  """Σ_z (a_z d_zᵀ)² = (A⊙A)ᵀ(D⊙D): exact without per-example tensors.

  Divide by B² where d is the gradient of one example's own loss; where d is
  that of the mean loss it already carries the 1/B.
  """
  a = np.asarray(activations, np.float64)
  d = np.asarray(cotangents, np.float64)
  return (a * a).T @ (d * d)


def alpha_of_eq3(alpha1, batch_size):
  """Eq. 3's α from eq. 1's: α₁B/(B - 1 + α₁)."""
  return alpha1 * batch_size / (batch_size - 1 + alpha1)
