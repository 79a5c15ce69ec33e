"""The largest magnitudes of each chunk of vectors.

Chunks are runs of consecutive elements of a leaf; the last one may be shorter.
The selection in a chunk does not depend on other chunks: shapes are static, and
a leaf that is sharded at the end of a chunk gives the same result as the whole
leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools

from gradsparse.backend import chunks
from gradsparse.backend import joining
from gradsparse.selection import candidates
from gradsparse.selection.exact import count
from gradsparse.selection.exact import traced_count
import jax
import jax.numpy as jnp
import numpy as np


def chunked_top_k_of_each(
  leaves: Sequence[jax.Array],
  density: float,
  chunk_size: int,
  now: jax.Array | None = None,
  found: Sequence[jax.Array | None] = (),
) -> tuple[jax.Array, jax.Array, list[int]]:
  """The k largest of each chunk of each vector; ties keep the lower index.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> leaves = [jnp.array([3.0, -1.0, 0.5, -4.0])]
  >>> select = gs.extend.selection.chunked_top_k_of_each
  >>> values, indices, slots = jax.jit(lambda: select(leaves, 0.5, 2))()
  >>> print(values, indices, slots[0])
  [ 3. -4.] [0 3] 2

  Args:
    leaves: float32 vectors, none empty.
    density: fraction of a chunk, in (0, 1]; k is that of `count`.
    chunk_size: elements of a chunk.
    now: a traced density, at most `density`, by which slots are filled. None
      fills all.
    found: `Signal.found` of each vector; () or None if kernels found nothing.

  Returns:
    (values float32[m], indices int32[m], the number of slots of each vector).
    Indices are those of the concatenated vectors, and ascend. Empty slots come
    last, with the number of all elements as index, and value 0.
  """
  # The whole chunks of each vector, and the rest as one chunk.
  runs: list[jax.Array] = []
  lengths: list[int] = []
  slots = []
  for x in leaves:
    size = x.shape[0]
    whole, rest = divmod(size, chunk_size)
    slots.append(whole * count(density, chunk_size))
    if whole:
      runs.append(x[: whole * chunk_size])
      lengths.append(chunk_size)
    if rest:
      runs.append(x[size - rest :])
      lengths.append(rest)
      slots[-1] += count(density, rest)
  parts = [x.shape[0] // n for x, n in zip(runs, lengths, strict=True)]
  most = [count(density, n) for n in lengths]
  wanted = jnp.asarray(most, jnp.int32)
  if now is not None:
    wanted = jnp.minimum(traced_count(now, jnp.asarray(lengths)), wanted)
  k = count(density, chunk_size)
  if now is None and chunks.can_search(chunk_size, k):
    own = [x for x in found if x is not None]
    entries = (
      chunks.vectors(joining.concat(own), k)
      if own
      else chunks.largest(leaves, chunk_size, max(most))
    )
    return *_by_chunk(entries, lengths, parts, most), slots
  row = candidates.row_of_parts(chunk_size)
  if row is None:
    return *_by_sorting(runs, lengths, most, wanted), slots
  able = candidates.of_vectors(runs, most, parts, row)
  each = wanted[np.repeat(np.arange(len(runs)), parts)]
  return *able.largest(each, sum(slots), len(leaves)), slots


def _by_chunk(
  entries: tuple[list[jax.Array], list[jax.Array]],
  lengths: Sequence[int],
  parts: Sequence[int],
  most: Sequence[int],
) -> tuple[jax.Array, jax.Array]:
  """The entries by index, of those that `backend.chunks` found."""
  wanted = np.repeat(most, parts)
  ends = np.cumsum(np.repeat(lengths, parts))
  begins = ends - np.repeat(lengths, parts)
  values, places = chunks.ascending(*entries, wanted)
  indices = [jnp.asarray(begins, jnp.int32) + x for x in places]
  # Runs of chunks with the same number of entries.
  cuts = [0, *np.flatnonzero(np.diff(wanted)) + 1, len(wanted)]
  each = [(a, b, wanted[a]) for a, b in itertools.pairwise(cuts)]

  def in_order(entries):
    rows = jnp.stack(entries, axis=1)
    return joining.concat([rows[a:b, :k].reshape(-1) for a, b, k in each])

  return in_order(values), in_order(indices)


def _by_sorting(
  runs: Sequence[jax.Array],
  lengths: Sequence[int],
  most: Sequence[int],
  wanted: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """The entries, by sorting, of chunks that cannot be cut into rows."""
  total = sum(x.shape[0] for x in runs)
  values, indices, begin = [], [], 0
  for number, (x, length, k) in enumerate(
    zip(runs, lengths, most, strict=True)
  ):
    rows = x.reshape(-1, length)
    places = jax.lax.top_k(jnp.abs(rows), k)[1]
    found = jnp.take_along_axis(rows, places, axis=1)
    starts = begin + length * jnp.arange(rows.shape[0], dtype=jnp.int32)
    filled = jnp.arange(k) < wanted[number]
    places = jnp.where(filled, places + starts[:, None], total)
    values.append(jnp.where(filled, found, 0.0).reshape(-1))
    indices.append(places.reshape(-1))
    begin += x.shape[0]
  order, found = jax.lax.sort(
    (jnp.concatenate(indices), jnp.concatenate(values)), num_keys=1
  )
  return found, order
