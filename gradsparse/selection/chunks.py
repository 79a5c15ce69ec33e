"""The largest magnitudes of each chunk of a vector.

Chunks are runs of consecutive elements of a leaf, the last one shorter. Each
is selected by itself: shapes are static, rows are independent, and a leaf that
is cut between devices at the end of a chunk gives what the whole leaf gives.
"""

from __future__ import annotations

from gradsparse.selection.exact import count
from gradsparse.selection.exact import traced_count
import jax
import jax.numpy as jnp

# Blocks in which a chunk is looked through first, where the winning blocks
# hold at most a quarter of it.
_BLOCK = 32


def _rows_top_k(rows: jax.Array, k: int) -> jax.Array:
  """int32[rows, k]: where the k largest of each row are, largest first."""
  count, length = rows.shape
  if length % _BLOCK or 4 * k * _BLOCK > length:
    return jax.lax.top_k(jnp.abs(rows), k)[1]
  blocks = jnp.abs(rows).reshape(count, -1, _BLOCK)
  # In order, so that ties keep the lower index here and below.
  winners = jnp.sort(jax.lax.top_k(jnp.max(blocks, axis=2), k)[1], axis=1)
  candidates = jnp.take_along_axis(blocks, winners[:, :, None], axis=1)
  places = winners[:, :, None] * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
  _, order = jax.lax.top_k(candidates.reshape(count, -1), k)
  return jnp.take_along_axis(places.reshape(count, -1), order, axis=1)


def chunked_top_k(
  x: jax.Array,
  density: float,
  chunk_size: int,
  *,
  now: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The k largest of each chunk; ties keep the lower index.

  Args:
    x: float32[n].
    density: fraction of a chunk, in (0, 1]; k is that of `count`.
    chunk_size: elements of a chunk.
    now: a traced density, at most the other: as many slots as that says are
      filled. None fills all.

  Returns:
    (values float32[m], indices int32[m] into x), chunk by chunk; index n marks
    an empty slot.
  """
  size = x.shape[0]
  values, indices = [], []

  def take(first: int, rows: jax.Array) -> None:
    length = rows.shape[1]
    k = count(density, length)
    places = _rows_top_k(rows, k)
    found = jnp.take_along_axis(rows, places, axis=1)
    starts = first + length * jnp.arange(rows.shape[0], dtype=jnp.int32)
    places = places.astype(jnp.int32) + starts[:, None]
    if now is not None:
      filled = jnp.arange(k) < traced_count(now, length)
      found = jnp.where(filled, found, 0.0)
      places = jnp.where(filled, places, size)
    values.append(found.reshape(-1))
    indices.append(places.reshape(-1))

  whole = size // chunk_size * chunk_size
  if whole:
    take(0, x[:whole].reshape(-1, chunk_size))
  if whole < size:
    take(whole, x[None, whole:])
  return jnp.concatenate(values), jnp.concatenate(indices)
