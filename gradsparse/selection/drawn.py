"""Exactly k elements of each vector, drawn without replacement.

Every element draws a word of 31 bits, and the k elements with the smallest
words are taken. Each set of k is equally likely, except that of two elements
with equal words the first is taken. Only words below a bar are ranked; the bar
is set such that a few more than k are below it. If fewer than k are, or more
than there is room for, all elements draw again. That depends only on how many
words are below the bar, so sets of k stay equally likely.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse import draws
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend.reductions import LANES
from gradsparse.selection import thresholds
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# Standard deviations by which the expected number of words below exceeds k.
_SPARE = 8


def drawn_of_each(
  sizes: Sequence[int], counts: Sequence[int], key: jax.Array
) -> jax.Array:
  """Draws k distinct elements of each vector; every set of k is equally likely.

  Args:
    sizes: of the vectors, at least 1, less than 2^31 in all.
    counts: k of each, from 1 to its size.
    key: PRNG key.

  Returns:
    int32[sum(counts)], ascending indices in the concatenated vectors.
  """
  size, count = np.asarray(sizes), np.asarray(counts)
  spare = np.ceil(_SPARE * np.sqrt(count)).astype(int) + _SPARE
  room = np.minimum(size, count + 2 * spare)
  share = np.minimum((count + spare) / size, 1.0)
  bars = np.minimum(share * 2.0**32, 2**32 - 1).astype(np.uint32)
  words, begins = -(-size // 32), joining.offsets(size)
  groups = [np.flatnonzero(size == own) for own in np.unique(size)]
  place = np.argsort(np.concatenate(groups))  # of each vector in the groups

  def counted(marks):
    bits = [jax.lax.population_count(x).astype(jnp.int32) for x in marks]
    return jnp.concatenate([jnp.sum(x, axis=1) for x in bits])[place]

  def fits(marks):
    found = counted(marks)
    return jnp.all((found >= count) & (found <= room))

  def again(carry):
    turn, _ = carry
    own = jax.random.fold_in(key, turn)
    marks = [_marks(int(size[g[0]]), begins[g], bars[g], own) for g in groups]
    return turn + 1, marks

  # Typed like the key, which may differ between devices.
  zero = jax.random.key_data(key).reshape(-1)[0] & 0
  nothing = [
    jnp.zeros((len(g), words[g[0]]), jnp.uint32) + zero for g in groups
  ]
  turn, marks = jax.lax.while_loop(
    lambda carry: ~fits(carry[1]), again, (zero.astype(jnp.int32), nothing)
  )
  found = counted(marks)
  each = [
    own
    for x in marks
    for own in joining.split(x.reshape(-1), [x.shape[1:]] * x.shape[0])
  ]
  joined = joining.concat([each[n] for n in place])
  places = bitmap.positions(joined, int(room.sum()))
  # The candidates of each vector, in rows.
  rows = -(-room // LANES)
  segment = thresholds.segment_of(rows.tolist())
  lanes = LANES * jnp.arange(rows.sum(), dtype=jnp.int32)[:, None]
  lanes += jnp.arange(LANES, dtype=jnp.int32)[None]
  number = lanes - _of(LANES * joining.offsets(rows), segment)
  first = jnp.cumsum(found) - found
  at = jnp.minimum(first[segment][:, None] + number, places.shape[0] - 1)
  shift = _of(begins - 32 * joining.offsets(words), segment)
  indices = places[at] + shift
  last = jax.random.fold_in(key, turn - 1)
  word = draws.bits_of(last, indices.astype(jnp.uint32)) >> 1
  ranks = jnp.where(
    number < found[segment][:, None], (2**31 - 1) - word.astype(jnp.int32), 0
  )
  smallest = thresholds.largest(
    ranks, rows.tolist(), jnp.asarray(count, jnp.int32)
  )
  taken = bitmap.positions(bitmap.pack(smallest.reshape(-1)), sum(counts))
  return barriers.barrier_if_shared(indices.reshape(-1)[taken], len(sizes))


def _marks(
  size: int, begins: np.ndarray, bars: np.ndarray, key: jax.Array
) -> jax.Array:
  """Bitmaps of vectors of one size: elements whose words are at most a bar.

  Args:
    size: elements of a vector.
    begins: int[g], offsets of the vectors.
    bars: uint32[g].
    key: PRNG key.

  Returns:
    uint32[g, ceil(size / 32)].
  """
  # Bits are drawn plane by plane, so that packing has no short last axis.
  shape = len(begins), 32, -(-size // 32)
  bit = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
  place = 32 * jax.lax.broadcasted_iota(jnp.uint32, shape, 2) + bit
  begin, bar = (
    jnp.asarray(x, jnp.uint32)[:, None, None] for x in (begins, bars)
  )
  below = draws.bits_of(key, begin + place) <= bar
  if size % 32:
    below &= place < size
  bits = below.astype(jnp.uint32) << bit
  return jax.lax.reduce(bits, np.uint32(0), jax.lax.bitwise_or, (1,))


def _of(numbers: np.ndarray, segment: jax.Array) -> jax.Array:
  """int32[rows, 1]: a segment's number, for each of its rows."""
  return jnp.asarray(numbers, jnp.int32)[segment][:, None]
