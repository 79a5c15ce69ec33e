"""Vectors to select from, and the order in which their entries go."""

import numpy as np


def numbers(size, seed):
  """In half of the cases few large ones, of few magnitudes: ties."""
  rng = np.random.default_rng([size, seed])
  if seed % 2:
    sign = rng.choice([-1, 1], size)
    large = rng.integers(1, 5, size) * (
      rng.random(size) < min(1, 20 / max(size, 1))
    )
    return (sign * large).astype(np.float32)
  return rng.normal(size=size).astype(np.float32)


def ranked(x):
  """Indices from the largest magnitude down; a stable sort keeps ties low."""
  return np.argsort(-np.abs(x), kind='stable')
