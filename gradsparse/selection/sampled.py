"""About the k largest magnitudes of a vector, by a sampled threshold."""

from __future__ import annotations

import math
from typing import Any

from gradsparse import folding
from gradsparse.selection import thresholds
from gradsparse.selection.exact import where
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp


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
    (values float32[c], indices int32[c]), c = capacity(most, n), by index;
    index n marks an empty slot.

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
  # A barrier: where single values of a top_k are read, XLA on CPUs sorts all.
  # Around the values alone: one around the pair crashes the compiler of jax
  # 0.10.2 under shard_map.
  tops, _ = jax.lax.top_k(jnp.abs(sample), max(1, round(most * drawn / size)))
  tops = jax.lax.optimization_barrier(tops)
  rank = jnp.round(k * (drawn / size)).astype(jnp.int32)
  threshold = tops[jnp.clip(rank, 1, tops.shape[0]) - 1]
  threshold = jnp.where(k < size, threshold, 0.0)
  slots, held = capacity(most, size), capacity(k, size)
  rows = folding.in_rows(thresholds.magnitudes(x))
  bar = thresholds.magnitudes(threshold)
  reached = thresholds.row_tops(rows) >= bar
  # Room for the rows of twice as many elements as are wanted. If there are
  # more, the threshold is far too low, and the k largest are among all.
  room = min(2 * most, reached.shape[0])

  def among_reached():
    numbers = where(reached, room)
    found = rows.at[numbers].get(mode='fill', fill_value=0)
    return largest(found, numbers)

  def among_all():
    return largest(rows, jnp.arange(rows.shape[0], dtype=jnp.int32))

  def largest(rows, numbers):
    """Where in x the entries are that are sent."""
    reach = bitmap.count(bitmap.pack((rows >= bar).reshape(-1)))
    wanted = jnp.where(reach > held, k, reach).astype(jnp.int32)
    marks = thresholds.largest(rows, [rows.shape[0]], wanted[None])
    lanes = jnp.arange(folding.LANES, dtype=jnp.int32)
    places = numbers[:, None] * folding.LANES + lanes
    found = bitmap.positions(bitmap.pack(marks.reshape(-1)), slots)
    return places.reshape(-1).at[found].get(mode='fill', fill_value=size)

  enough = jnp.sum(reached, dtype=jnp.int32) <= room
  indices = jax.lax.cond(enough, among_reached, among_all)
  indices = jnp.minimum(indices, size)  # zeros after the end are no elements
  return x.at[indices].get(mode='fill', fill_value=0), indices
