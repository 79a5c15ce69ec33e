"""The k largest magnitudes of vectors, exactly.

`jax.lax.top_k` of 25 million numbers is slow on CPUs and a full sort on GPUs.
Here nothing is sorted. An element of the top k lies in one of the k rows (of
`folding.LANES` elements) with the largest maxima, so those rows are found
first, then the k elements in them: each time by a threshold. All leaves go
through that side by side, whose k and threshold are their own. Large leaves are
read once.

Ties keep the lower index. With two stages too: rows with equal maxima are taken
from the left, each holds at least one of the tied elements, and the rows stay
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

from gradsparse import folding
from gradsparse import opaque
from gradsparse.folding import LANES
from gradsparse.selection import thresholds
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# Two stages pay when the rows that are looked through hold at most this share
# of the leaf.
_WORTHWHILE = 0.5
# Fewer numbers are sorted.
_SMALL = 1 << 14


def count(density: float, size: int) -> int:
  """k = min(n, max(1, ceil(density n - 1e-6))); 0 for an empty leaf."""
  return min(size, max(1, math.ceil(density * size - 1e-6)))


def traced_count(density: jax.Array, size: int | jax.Array) -> jax.Array:
  """`count` for a density that is known at run time only, int32.

  float32 arithmetic: may differ from `count` by one.
  """
  k = jnp.ceil(density * size - 1e-6).astype(jnp.int32)
  return jnp.minimum(size, jnp.maximum(1, k))


def top_k(
  x: jax.Array, k: int, *, ranked: bool = False
) -> tuple[jax.Array, jax.Array]:
  """The k entries of largest magnitude.

  Args:
    x: float32[n].
    k: how many, 0 <= k <= n.
    ranked: largest first, ties by index; otherwise by index.

  Returns:
    (values float32[k], indices int32[k]).
  """
  values, indices = top_k_of_each([x], [k])
  if ranked:
    order = -thresholds.magnitudes(values)
    _, indices, values = jax.lax.sort((order, indices, values), num_keys=2)
  return values, indices


def top_k_of_each(
  leaves: Sequence[jax.Array],
  counts: Sequence[int],
  now: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """The entries of largest magnitude of each of some vectors.

  Args:
    leaves: float32 vectors.
    counts: k of each, at most its size.
    now: int32, traced k of each, at most the other: so many slots are filled.
      None fills all.

  Returns:
    (values float32[m], indices int32[m]), m the sum of counts. Indices count
    through all vectors as if they were joined, and ascend; with `now`, empty
    slots come last (the number of all elements, of value 0).
  """
  if sum(x.shape[0] for x in leaves) < _SMALL:
    return _by_sorting(leaves, counts, now)
  sizes = [x.shape[0] for x in leaves]
  offsets = np.cumsum([0, *sizes])
  some = [i for i in range(len(leaves)) if counts[i]]
  if not some:
    return jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
  narrow = [i for i in some if counts[i] * LANES <= _WORTHWHILE * sizes[i]]
  wide = [i for i in some if i not in set(narrow)]
  rows, first_of_row = _winning_rows(
    [leaves[i] for i in narrow], [counts[i] for i in narrow], offsets[narrow]
  )
  if wide:
    own = [folding.in_rows(leaves[i]) for i in wide]
    lengths = [x.shape[0] for x in own]
    # Of each row the number, less that of its leaf's first.
    number = jnp.arange(sum(lengths), dtype=jnp.int32)
    begin = offsets[wide] - LANES * (np.cumsum(lengths) - lengths)
    leaf = thresholds.segment_of(lengths)
    first_of_row.append(jnp.asarray(begin, jnp.int32)[leaf] + number * LANES)
    rows += own
  candidates = folding.joined(rows)
  order = np.asarray([*narrow, *wide])
  most = np.asarray([counts[i] for i in order], np.int32)
  wanted = jnp.asarray(most) if now is None else now[order]
  marks = thresholds.largest(
    thresholds.magnitudes(candidates), [x.shape[0] for x in rows], wanted
  )
  slots = int(most.sum())
  places = bitmap.positions(bitmap.pack(marks.reshape(-1)), slots)
  in_order = bool(np.all(np.diff(order) > 0))
  if now is None and not in_order:
    # All slots are filled, so it is known where those of each leaf are.
    first = np.cumsum(most) - most
    own = [first[n] + np.arange(most[n]) for n in np.argsort(order)]
    places = places[np.concatenate(own)]
  places = opaque.computed_once(places, len(leaves))
  end, size = LANES * candidates.shape[0], int(offsets[-1])
  values = candidates.reshape(-1).at[places].get(mode='fill', fill_value=0)
  row = jnp.minimum(places, end - 1) // LANES
  indices = folding.joined(first_of_row)[row] + places % LANES
  if now is not None:
    indices = jnp.where(places < end, indices, size)
    if not in_order:
      indices, values = jax.lax.sort((indices, values), num_keys=1)
  return values, indices


def _by_sorting(
  leaves: Sequence[jax.Array],
  counts: Sequence[int],
  now: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
  """As `top_k_of_each`, for so few numbers that only compiling takes time."""
  joined = folding.joined(leaves) if leaves else jnp.zeros(0, jnp.float32)
  size, begin = joined.shape[0], 0
  indices = [jnp.zeros(0, jnp.int32)]
  for number, (x, k) in enumerate(zip(leaves, counts, strict=True)):
    own = begin + jax.lax.top_k(jnp.abs(x), k)[1]
    if now is not None:
      own = jnp.where(jnp.arange(k) < now[number], own, size)
    indices.append(own)
    begin += x.shape[0]
  places = jnp.sort(jnp.concatenate(indices))
  return joined.at[places].get(mode='fill', fill_value=0), places


def _winning_rows(
  leaves: Sequence[jax.Array], counts: Sequence[int], offsets: np.ndarray
) -> tuple[list[jax.Array], list[jax.Array]]:
  """The k rows with the largest maxima of each leaf, in order.

  Args:
    leaves: vectors.
    counts: k of each.
    offsets: where each begins, if all leaves are joined.

  Returns:
    (float32[k, LANES] for each leaf; int32, where their rows begin if all
    leaves are joined, of all leaves in one array).
  """
  if not leaves:
    return [], []
  tops = [
    folding.in_rows(
      thresholds.row_tops(folding.in_rows(thresholds.magnitudes(x)))
    )
    for x in leaves
  ]
  lengths = [x.shape[0] for x in tops]
  marks = thresholds.largest(
    folding.joined(tops), lengths, jnp.asarray(counts, jnp.int32)
  )
  places = bitmap.positions(bitmap.pack(marks.reshape(-1)), sum(counts))
  begins = LANES * (np.cumsum(lengths) - lengths)
  leaf = thresholds.segment_of(counts)
  numbers = opaque.computed_once(
    places - jnp.asarray(begins, jnp.int32)[leaf], len(leaves)
  )
  first = jnp.asarray(offsets, jnp.int32)[leaf] + numbers * LANES
  own = opaque.cut(numbers, [(count,) for count in counts])
  return [_take(x, n) for x, n in zip(leaves, own, strict=True)], [first]


def _take(x: jax.Array, rows: jax.Array) -> jax.Array:
  """Some rows of a vector; zeros beyond its end."""
  if x.shape[0] % LANES == 0:
    return x.reshape(-1, LANES)[rows]
  lanes = jnp.arange(LANES, dtype=jnp.int32)
  places = rows[:, None] * LANES + lanes
  return x.at[places].get(mode='fill', fill_value=0)


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
