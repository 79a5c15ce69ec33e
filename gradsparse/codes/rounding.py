"""QSGD's rounding: to a few levels of the norm of each bucket."""

from __future__ import annotations

from typing import Any

from gradsparse import arguments
from gradsparse import draws
import jax
import jax.numpy as jnp

NORMS = ('max', 'l2')
# Up to this many, every code of a level and its sign fits in 32 bits, and
# float32 holds |v| / norm * s to 1/256 of a level (2^-24 of the norm, as in any
# float32), so the chance of rounding up is as exact. s = sqrt(n) stays below
# for every n that an int32 can count.
MAX_LEVELS = 2**16 - 2


def checked(levels: Any, bucket_size: Any, norm: Any) -> tuple[int, int, str]:
  """The arguments of the quantiser.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range.
  """
  return (
    arguments.whole_number('levels', levels, 1, MAX_LEVELS),
    arguments.whole_number('bucket_size', bucket_size, 1),
    arguments.one_of('norm', norm, NORMS),
  )


def scales(rows: jax.Array, norm: str) -> jax.Array:
  """float32[rows]: the largest magnitude or the 2-norm of each bucket."""
  tops = jnp.max(jnp.abs(rows), axis=1)
  if norm == 'max':
    return tops
  # Divided by the largest number first: then no square overflows.
  shares = rows / jnp.where(tops > 0, tops, 1.0)[:, None]
  return tops * jnp.sqrt(jnp.sum(shares * shares, axis=1))


def quantise(
  rows: jax.Array, norms: jax.Array, levels: int, key: jax.Array
) -> jax.Array:
  """Signed levels, int32 in [-s, s], of the rows' shape.

  With a = |v_i| / norm and l = floor(a s): l with probability 1 - (a s - l),
  else l + 1. Unbiased: the expectation of norm * level / s is v.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.1.
  """
  safe = jnp.where(norms > 0, norms, 1.0)[:, None]
  scaled = jnp.minimum(jnp.abs(rows) / safe * levels, levels)
  low = jnp.floor(scaled)
  up = draws.uniform(key, rows.shape) < scaled - low
  level = low.astype(jnp.int32) + up
  return jnp.where(rows < 0, -level, level)
