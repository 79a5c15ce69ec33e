"""Second moments by the gradient of each example, to compare with."""

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np


def draw(*shape, seed=0):
  """float32[shape], normal."""
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reference(loss, params, batch):
  """By the gradient of each example, all held."""
  size = len(jax.tree.leaves(batch)[0])

  @jax.jit
  def compute(params, batch):
    value, each = jax.vmap(jax.value_and_grad(loss), (None, 0))(params, batch)
    each = jax.tree.map(lambda g: g.astype(jnp.float32) / size, each)
    return (
      value.mean(),
      jax.tree.map(lambda g: g.sum(0), each),
      jax.tree.map(lambda g: (g * g).sum(0), each),
    )

  return compute(params, batch)


def close(actual, expected, tolerance=1e-5):
  """Within a part of each leaf's largest element."""
  assert jax.tree.structure(actual) == jax.tree.structure(expected)
  for a, b in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=tolerance * np.max(np.abs(b)))


def check(loss, params, batch, tolerance=1e-5, **kwargs):
  """Loss, gradients and moments are those of the examples one by one."""

  def both(params, batch):
    fn = gs.value_and_grad_moments(loss, **kwargs)
    return fn(params, batch), reference(loss, params, batch)

  got, expected = jax.jit(both)(params, batch)
  close(got, expected, tolerance)
  assert all(np.any(m) for m in jax.tree.leaves(got[2]))
