"""What tests of sequence models share: sizes, and parameters drawn anew."""

import math

import jax
import numpy as np


def draw(*shape, seed=0):
  """float32[shape], normal."""
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def drawn(init):
  """Variables of the shapes that `init` gives, all different from zero.

  Biases and scales are positive, or what is clipped at zero might all be zero.
  Running averages stay as they are.
  """
  shapes = dict(jax.eval_shape(init))
  leaves, tree = jax.tree.flatten(shapes.pop('params'))
  leaves = [0.5 * draw(*x.shape, seed=i) for i, x in enumerate(leaves)]
  leaves = [np.abs(x) if x.ndim == 1 else x for x in leaves]
  averages = jax.jit(lambda: {name: init()[name] for name in shapes})()
  return {**averages, 'params': jax.tree.unflatten(tree, leaves)}


def sizes(params):
  """(number of parameters, those of them in vectors)."""
  leaves = jax.tree.leaves(params)
  return (
    sum(leaf.size for leaf in leaves),
    sum(leaf.size for leaf in leaves if leaf.ndim == 1),
  )


def dgc_ratio(params):
  """Dense bytes by DGC's: 48 bits for each of 0.1 %, vectors as they are."""
  number, vectors = sizes(params)
  matrices = (leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim > 1)
  sent = sum(6 * math.ceil(0.001 * size) for size in matrices)
  return 4 * number / (sent + 4 * vectors)
