"""Long masks, reduced in a way that XLA does fast on CPUs.

There XLA reduces a mask, or floating-point numbers, with few vector
instructions. Integers in rows of `LANES` it sums at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import jax
import jax.numpy as jnp

LANES = 32
# Leaves of fewer elements are joined.
_SMALL = 1 << 14


def in_rows(x: jax.Array) -> jax.Array:
  """A vector as rows of `LANES`, filled up with zeros."""
  missing = -x.shape[0] % LANES
  if missing:
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, LANES)


def all_true(
  test: Callable[..., jax.Array], leaves: Iterable[tuple[jax.Array, ...]]
) -> jax.Array:
  """Whether an elementwise test holds everywhere, bool scalar.

  Small leaves are joined before they are tested, and what is counted of large
  ones is judged together: otherwise XLA would compile several loops for each.

  Args:
    test: arrays of one shape -> bool, of that shape.
    leaves: of each leaf the arrays that are its arguments, equally many.
  """
  flat = [[x.reshape(-1) for x in arrays] for arrays in leaves]
  counts = []
  small = [arrays for arrays in flat if arrays[0].shape[0] < _SMALL]
  if small:
    counts.append(
      _failures(test, [_joined(x) for x in zip(*small, strict=True)])
    )
  for arrays in flat:
    if arrays[0].shape[0] >= _SMALL:
      counts.append(_failures(test, arrays))
  if not counts:
    return jnp.bool_(True)
  return jnp.max(jnp.max(in_rows(_joined(counts)), axis=1), initial=0) == 0


def _failures(test, arrays) -> jax.Array:
  """int32[rows], how often the test fails in each row of some vectors."""
  return jnp.sum(in_rows(~test(*arrays)), axis=1, dtype=jnp.int32)


def _joined(vectors: Sequence[jax.Array]) -> jax.Array:
  return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors)
