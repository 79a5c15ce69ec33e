"""Exactly k elements of each vector, drawn without replacement.

Every element draws a word of 31 bits, and the k elements with the smallest
words are taken. Each set of k is equally likely, except that of two elements
with equal words the first is taken. Only words below a bar are ranked; the bar
is set such that more than k are below it. The chance that fewer than k are, or
more than there is room for, is at most about 1e-15 in each vector. If so, the
first k of each vector are taken: drawing again would need a loop, and each turn
of a loop keeps a GPU waiting for its host.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend.reductions import ROW
from gradsparse.selection import thresholds
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# k + spare words are expected below the bar, with spare = _SPARE sqrt(k) +
# _LEAST_SPARE. There is room for k + 2 spare + _LEAST_SPARE words, as a Poisson
# distribution has its longer tail above.
_SPARE = 8
_LEAST_SPARE = 34


def drawn_of_each(
  sizes: Sequence[int], counts: Sequence[int], key: jax.Array
) -> jax.Array:
  """Draws k distinct elements of each vector; every set of k is equally likely.

  >>> import gradsparse as gs, jax
  >>> def draw(key):  # all of 4 elements, and of 3
  ...   return gs.extend.selection.drawn_of_each([4, 3], [4, 3], key)
  >>> print(jax.jit(draw)(jax.random.key(0)))
  [0 1 2 3 4 5 6]

  Args:
    sizes: of the vectors, at least 1, less than 2^31 in all.
    counts: k of each, from 1 to its size.
    key: PRNG key.

  Returns:
    int32[sum(counts)], ascending indices in the concatenated vectors.
  """
  size, count = np.asarray(sizes), np.asarray(counts)
  spare = np.ceil(_SPARE * np.sqrt(count)).astype(int) + _LEAST_SPARE
  room = np.minimum(size, count + 2 * spare + _LEAST_SPARE)
  share = np.minimum((count + spare) / size, 1.0)
  bars = np.minimum(share * 2.0**32, 2**32 - 1).astype(np.uint32)
  words = -(-size // 32)
  vector = thresholds.segment_of(words.tolist())
  key = jax.random.fold_in(key, 0)
  marks = _marks(sizes, bars, key)
  bits = jax.lax.population_count(marks).astype(jnp.int32)
  found = jax.ops.segment_sum(bits, vector, len(sizes), indices_are_sorted=True)
  fits = jnp.all((found >= count) & (found <= room))
  places = bitmap.positions(marks, int(room.sum()))
  # The candidates of each vector, in rows.
  rows = -(-room // ROW)
  segment = thresholds.segment_of(rows.tolist())
  lanes = ROW * jnp.arange(rows.sum(), dtype=jnp.int32)[:, None]
  lanes += jnp.arange(ROW, dtype=jnp.int32)[None]
  number = lanes - _of(ROW * joining.offsets(rows), segment)
  first = jnp.cumsum(found) - found
  at = jnp.minimum(first[segment][:, None] + number, places.shape[0] - 1)
  shift = _of(joining.offsets(size) - 32 * joining.offsets(words), segment)
  indices = jnp.where(
    fits, places[at] + shift, _of(joining.offsets(size), segment) + number
  )
  word = draws.bits_of(key, indices.astype(jnp.uint32)) >> 1
  held = jnp.where(fits, found, count)[segment][:, None]
  ranks = jnp.where(number < held, (2**31 - 1) - word.astype(jnp.int32), 0)
  marks = thresholds.largest(
    ranks, rows.tolist(), jnp.asarray(count, jnp.int32)
  )
  taken = bitmap.positions(bitmap.pack(marks.reshape(-1)), sum(counts))
  return barriers.barrier_if_shared(indices.reshape(-1)[taken], len(sizes))


def _marks(sizes: Sequence[int], bars: np.ndarray, key: jax.Array) -> jax.Array:
  """uint32 bitmaps: elements of each vector whose words are at most its bar."""
  data = jax.random.key_data(key)
  begins = barriers.hidden_numbers(joining.offsets(sizes).tolist(), data)
  joined = barriers.barrier_if_shared(jnp.asarray(bars), len(sizes))
  each = joining.split(joined, [()] * len(sizes))

  def marked(size, begin, bar):
    number = begin + jax.lax.iota(jnp.int32, size)
    return draws.bits_of(key, number.astype(jnp.uint32)) <= bar

  return joining.concat(
    [
      bitmap.pack(marked(size, begin, bar))
      for size, begin, bar in zip(sizes, begins, each, strict=True)
    ]
  )


def _of(numbers: np.ndarray, segment: jax.Array) -> jax.Array:
  """int32[rows, 1]: the number of each row's segment."""
  return jnp.asarray(numbers, jnp.int32)[segment][:, None]
