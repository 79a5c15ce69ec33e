"""What the oracles' own tests share: drawn gradients and a tolerance."""

import numpy as np

# A scalar, a vector, a matrix and a kernel, in no tidy order.
SHAPES = ((3, 4, 2), (5,), (), (6, 3))


def draw(rng, num_workers, function=None):
  """Returns gradients[w][leaf], normal unless function(shape) says else."""
  function = function or (lambda shape: rng.normal(size=shape))
  return [
    [np.asarray(function(shape), np.float32) for shape in SHAPES]
    for _ in range(num_workers)
  ]


def close(actual, expected):
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
