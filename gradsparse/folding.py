"""Long vectors, reduced by folding them on themselves.

On CPUs XLA reduces an array to a scalar, or rows to numbers, in one thread and
without vector instructions. Slices it combines in all threads and with vector
instructions, several times as fast. So a long vector is cut into a few slices,
which are combined element by element, until what is left is short.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import operator

import jax
import jax.numpy as jnp

Combine = Callable[[jax.Array, jax.Array], jax.Array]

# A shorter vector is reduced as it is.
_LONG = 1 << 15
_WAYS = 8


def fold(
  combine: Combine, x: jax.Array, ways: int
) -> tuple[jax.Array, jax.Array]:
  """Combines the slices of a vector.

  Args:
    combine: of two arrays of one shape, element by element.
    x: [n].
    ways: how many slices, at least 1.

  Returns:
    ([m], element b of which comes of the elements b, b + m, b + 2 m, ... of x,
    m = n // ways; [n - ways m], what is left over at the end).
  """
  length = x.shape[0] // ways
  slices = [x[i * length : (i + 1) * length] for i in range(ways)]
  return functools.reduce(combine, slices), x[ways * length :]


def all_true(mask: jax.Array) -> jax.Array:
  """`jnp.all` of a mask of any shape, bool scalar."""
  answer, mask = jnp.bool_(True), mask.reshape(-1)
  while mask.shape[0] >= _LONG:
    mask, rest = fold(operator.and_, mask, _WAYS)
    if rest.shape[0]:
      answer &= jnp.all(rest)
  return answer & jnp.all(mask)
