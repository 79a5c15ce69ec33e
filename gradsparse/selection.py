"""The k largest magnitudes of a vector, exactly or by a sampled threshold.

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
# A sample must hold about this many of the k largest: a quantile estimated
# from one or two would be off by its own size.
_LEAST_EXPECTED = 16
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


def _block_length(size: int, k: int) -> int | None:
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
  block = _block_length(size, k)
  if block is None:
    return _ranked(x, jnp.arange(size, dtype=jnp.int32), k)
  full = size // block * block
  blocks = x[:full].reshape(-1, block)
  # Only the order of top_k is used: reading single entries of its values
  # makes XLA:CPU fall back to sorting everything.
  _, winners = jax.lax.top_k(jnp.max(jnp.abs(blocks), axis=1), k)
  winners = jnp.sort(winners)
  candidates = blocks[winners].reshape(-1)
  lanes = jnp.arange(block, dtype=jnp.int32)
  indices = (winners[:, None] * block + lanes).reshape(-1)
  if full < size:
    candidates = jnp.concatenate([candidates, x[full:]])
    tail = jnp.arange(full, size, dtype=jnp.int32)
    indices = jnp.concatenate([indices, tail])
  return _ranked(candidates, indices, k)


def _ranked(x, indices, k):
  _, order = jax.lax.top_k(jnp.abs(x), k)
  return x[order], indices[order].astype(jnp.int32)


def sampled_top_k(
  x: jax.Array, k: int, sample_rate: float, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """At most k entries above a threshold estimated from a sample.

  DGC section 5: the threshold is the quantile of a random sample; where more
  than k elements exceed it, the top k among those are taken (hierarchical
  selection). Where fewer do, fewer are sent.

  Args:
    x: float32[n].
    k: most entries to return.
    sample_rate: fraction of elements sampled, in (0, 1]; more are where that
      would hold fewer than 16 of the k largest.
    key: PRNG key.

  Returns:
    (values float32[k], indices int32[k]); index n marks an empty slot.

  References:
    Lin et al., arXiv 1712.01887, section 5.
  """
  size = x.shape[0]
  block = _block_length(size, k)
  drawn = math.ceil(max(sample_rate * size, _LEAST_EXPECTED * size / k))
  if block is None or drawn >= size:
    return top_k(x, k)
  drawn_at = jax.random.randint(key, (drawn,), 0, size)
  expected = max(1, round(k * drawn / size))
  # A barrier: see the trap in `top_k`. Around the values alone: one around
  # the pair crashes the compiler of jax 0.10.2 under shard_map.
  tops, _ = jax.lax.top_k(jnp.abs(x[drawn_at]), expected)
  tops = jax.lax.optimization_barrier(tops)
  threshold = jnp.min(tops)
  full = size // block * block
  blocks = x[:full].reshape(-1, block)
  above = jnp.max(jnp.abs(blocks), axis=1) >= threshold
  # Room for twice as many blocks as elements are wanted; a threshold that is
  # too low by more than that falls back to the exact selection.
  room = min(2 * k, full // block)

  def hierarchical():
    winners = where(above, room)
    candidates = blocks.at[winners].get(mode='fill', fill_value=0)
    lanes = jnp.arange(block, dtype=jnp.int32)
    indices = (winners[:, None] * block + lanes).reshape(-1)
    candidates = candidates.reshape(-1)
    if full < size:
      candidates = jnp.concatenate([candidates, x[full:]])
      tail = jnp.arange(full, size, dtype=jnp.int32)
      indices = jnp.concatenate([indices, tail])
    values, indices = _ranked(candidates, indices, k)
    enough = (jnp.abs(values) >= threshold) & (indices < size)
    return (
      jnp.where(enough, values, 0.0),
      jnp.where(enough, indices, size).astype(jnp.int32),
    )

  return jax.lax.cond(jnp.sum(above) <= room, hierarchical, lambda: top_k(x, k))


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
