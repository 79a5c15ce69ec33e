"""Long masks, reduced in a way that XLA does fast on CPUs.

There XLA reduces a mask, or floating-point numbers, with few vector
instructions. Integers in rows of `LANES` it sums at the speed of memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

LANES = 32


def in_rows(x: jax.Array) -> jax.Array:
  """A vector as rows of `LANES`, filled up with zeros."""
  missing = -x.shape[0] % LANES
  if missing:
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, LANES)


def all_true(mask: jax.Array) -> jax.Array:
  """`jnp.all` of a mask of any shape, bool scalar."""
  wrong = ~mask.reshape(-1)
  if wrong.shape[0] < LANES**2:
    return ~jnp.any(wrong)
  counts = jnp.sum(in_rows(wrong), axis=1, dtype=jnp.int32)
  return jnp.max(jnp.max(in_rows(counts), axis=1)) == 0
