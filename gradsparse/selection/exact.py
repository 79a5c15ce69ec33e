"""The k largest magnitudes of a vector, exactly.

`jax.lax.top_k` of 25 million numbers is slow on CPUs and a full sort on GPUs.
Exact selection in two stages reads the vector once: an element of the top k
lies in one of the k blocks with the largest maxima, so the maxima are ranked
first, then only the elements of the winning blocks.

Ties keep the lower index. With two stages too: blocks with equal maxima are
taken from the left, each holds at least one of the tied elements, and the
winning blocks are put back in order before the second ranking.
"""

from __future__ import annotations

import math

from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp

# Candidate block lengths. One that divides the leaf is preferred: slicing a
# tail off a big array copies it, which costs more than the selection.
_BLOCKS = (64, 48, 32, 96, 80, 56, 40, 100, 50, 36, 25)
# Two stages pay when the winning blocks hold at most this share of the leaf.
_WORTHWHILE = 0.25


def count(density: float, size: int) -> int:
  """k = min(n, max(1, ceil(density n - 1e-6))); 0 for an empty leaf."""
  return min(size, max(1, math.ceil(density * size - 1e-6)))


def traced_count(density: jax.Array, size: int) -> jax.Array:
  """`count` for a density that is known at run time only, int32.

  float32 arithmetic: may differ from `count` by one.
  """
  k = jnp.ceil(density * size - 1e-6).astype(jnp.int32)
  return jnp.minimum(size, jnp.maximum(1, k))


def block_length(size: int, k: int) -> int | None:
  """A block length for two-stage selection, or None if it does not pay."""
  fits = [b for b in _BLOCKS if k * b <= _WORTHWHILE * size]
  if not fits or size < 4096:
    return None
  return next((b for b in fits if size % b == 0), fits[0])


def top_k(
  x: jax.Array, k: int, *, ranked: bool = True
) -> tuple[jax.Array, jax.Array]:
  """The k entries of largest magnitude.

  Args:
    x: float32[n].
    k: how many, 0 <= k <= n.
    ranked: largest first; otherwise the order is free, and k = n is free.

  Returns:
    (values float32[k], indices int32[k]).
  """
  size = x.shape[0]
  if k >= size and not ranked:
    return x, jnp.arange(size, dtype=jnp.int32)
  if k == 1:
    index = jnp.argmax(jnp.abs(x)).astype(jnp.int32)[None]
    return x[index], index
  block = block_length(size, k)
  if block is None:
    return ranked_top_k(x, jnp.arange(size, dtype=jnp.int32), k)
  blocks = Blocks(x, block)
  # Only the order of top_k is used: reading single entries of its values
  # makes XLA:CPU fall back to sorting everything.
  _, winners = jax.lax.top_k(blocks.tops(), k)
  return ranked_top_k(*blocks.take(jnp.sort(winners)), k)


class Blocks:
  """A vector in blocks of one length, and a tail that is no block."""

  def __init__(self, x: jax.Array, length: int):
    self._x = x
    self._full = x.shape[0] // length * length
    self._rows = x[: self._full].reshape(-1, length)

  def tops(self) -> jax.Array:
    """The largest magnitude of each block."""
    return jnp.max(jnp.abs(self._rows), axis=1)

  def take(self, numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The elements of some blocks and of the tail, and their indices.

    A block that does not exist holds zeros, whose indices mean nothing.
    """
    size, length = self._x.shape[0], self._rows.shape[1]
    values = self._rows.at[numbers].get(mode='fill', fill_value=0).reshape(-1)
    lanes = jnp.arange(length, dtype=jnp.int32)
    indices = (numbers[:, None] * length + lanes).reshape(-1)
    if self._full < size:
      values = jnp.concatenate([values, self._x[self._full :]])
      tail = jnp.arange(self._full, size, dtype=jnp.int32)
      indices = jnp.concatenate([indices, tail])
    return values, indices


def ranked_top_k(
  x: jax.Array, indices: jax.Array, k: int
) -> tuple[jax.Array, jax.Array]:
  """The k largest of some elements and their indices, largest first."""
  _, order = jax.lax.top_k(jnp.abs(x), k)
  return x[order], indices[order].astype(jnp.int32)


def rows(x: jax.Array, length: int) -> jax.Array:
  """A leaf as rows of consecutive elements, zero-padded: (rows, length)."""
  flat = x.reshape(-1)
  missing = -flat.shape[0] % length
  if missing:
    flat = jnp.pad(flat, (0, missing))
  return flat.reshape(-1, length)


def where(mask: jax.Array, slots: int, first: jax.Array | int = 0) -> jax.Array:
  """Indices where mask is True, at most `slots` of them.

  Args:
    mask: bool[n].
    slots: how many indices to return.
    first: where more are True than fit, the number of the True entry to
      begin with, counted in a circle.

  Returns:
    int32[slots]; index n marks an empty slot. Not sorted if it wrapped.
  """
  indices = bitmap.positions(bitmap.pack(mask), slots, first)
  return jnp.minimum(indices, mask.shape[0])
