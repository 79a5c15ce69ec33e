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
from typing import Any

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
  blocks = _Blocks(x, block)
  # Only the order of top_k is used: reading single entries of its values
  # makes XLA:CPU fall back to sorting everything.
  _, winners = jax.lax.top_k(blocks.tops(), k)
  return _ranked(*blocks.take(jnp.sort(winners)), k)


class _Blocks:
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


def _ranked(x, indices, k):
  _, order = jax.lax.top_k(jnp.abs(x), k)
  return x[order], indices[order].astype(jnp.int32)


def capacity(k: Any, size: int) -> Any:
  """ceil(1.3 k), at most n: what may be sent where k are expected.

  1.3 is where DGC's authors select again. Exact for ints and for int32.
  """
  most = k + (3 * k + 9) // 10
  return min(size, most) if isinstance(k, int) else jnp.minimum(size, most)


def sampled_top_k(
  x: jax.Array,
  k: int | jax.Array,
  sample_rate: float,
  key: jax.Array,
  *,
  most: int | None = None,
) -> tuple[jax.Array, jax.Array]:
  """About k entries: all that reach a threshold estimated from a sample.

  DGC section 5. Exactly d = ceil(sample_rate n) elements are drawn, with
  replacement (the leaf itself where d = n). The max(1, round(k d / n))-th
  largest magnitude among them is the threshold, and what reaches it is sent,
  about k entries; at k = n everything is. Where more than ceil(1.3 k) reach it,
  exactly the k largest of those are sent. That cut takes from above only: the
  mean is k if the sample holds a hundred of the k largest, 0.96 k if twenty,
  0.91 k if ten. The message has ceil(1.3 k) slots, and those that stay empty
  travel too: in the paper a message is as long as what it holds.

  Args:
    x: float32[n].
    k: how many are expected; may be traced.
    sample_rate: fraction of the elements that is drawn, in (0, 1].
    key: PRNG key.
    most: the largest k that a traced one can be; None is k.

  Returns:
    (values float32[c], indices int32[c]), c = capacity(most, n), the largest
    first; index n marks an empty slot.

  References:
    Lin et al., arXiv 1712.01887, section 5.
  """
  size = x.shape[0]
  if most is None:
    assert isinstance(k, int)
    most = k
  drawn = math.ceil(sample_rate * size)
  sample = x
  if drawn < size:
    sample = x[jax.random.randint(key, (drawn,), 0, size)]
  # A barrier: see the trap in `top_k`. Around the values alone: one around
  # the pair crashes the compiler of jax 0.10.2 under shard_map.
  tops, _ = jax.lax.top_k(jnp.abs(sample), max(1, round(most * drawn / size)))
  tops = jax.lax.optimization_barrier(tops)
  rank = jnp.round(k * (drawn / size)).astype(jnp.int32)
  threshold = tops[jnp.clip(rank, 1, tops.shape[0]) - 1]
  threshold = jnp.where(k < size, threshold, 0.0)
  slots = capacity(most, size)
  blocks = _Blocks(x, _block_length(size, most) or 1)
  reached = blocks.tops() >= threshold
  # Room for the blocks of twice as many elements as are wanted. If there are
  # more, the threshold is far too low, and the k largest are among all.
  room = min(2 * most, reached.shape[0])
  reaching = jnp.sum(reached, dtype=jnp.int32)

  def among_reached():
    candidates, indices = blocks.take(where(reached, room))
    count = jnp.sum(jnp.abs(candidates) >= threshold, dtype=jnp.int32)
    return *_ranked(candidates, indices, slots), count

  values, indices, count = jax.lax.cond(
    reaching <= room, among_reached, lambda: (*top_k(x, slots), reaching)
  )
  held = capacity(k, size)
  # In order of magnitude: those that reach the threshold come first.
  sent = jnp.arange(slots) < jnp.where(count > held, k, count)
  return jnp.where(sent, values, 0.0), jnp.where(sent, indices, size)


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
