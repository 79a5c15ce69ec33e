"""The k largest magnitudes of vectors, exactly.

`jax.lax.top_k` of 25 million numbers is slow on CPUs and a full sort on GPUs.
Here nothing is sorted. An element of the top k lies in one of the k rows (of
`thresholds.LANES` elements) with the largest maxima, so those rows are found
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
from typing import NamedTuple

from gradsparse import leafwise
from gradsparse.selection import thresholds
from gradsparse.selection.thresholds import LANES
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# Two stages pay when the rows that are looked through hold at most this share
# of the leaf.
_WORTHWHILE = 0.5


def count(density: float, size: int) -> int:
  """k = min(n, max(1, ceil(density n - 1e-6))); 0 for an empty leaf."""
  return min(size, max(1, math.ceil(density * size - 1e-6)))


def traced_count(density: jax.Array, size: int) -> jax.Array:
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
    through all vectors as if they were joined, and ascend; with `now`, those of
    empty slots (the number of all elements, of value 0) lie between.
  """
  sizes = [x.shape[0] for x in leaves]
  offsets = np.cumsum([0, *sizes])
  parts = [
    _Part([leaves[i] for i in numbers], numbers, sizes[i], counts[i])
    for numbers in leafwise.classes(list(zip(sizes, counts, strict=True)))
    for i in numbers[:1]
    if counts[i]
  ]
  if not parts:
    return jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
  rows, bases = [], []
  blocks = _winning_rows([part for part in parts if part.two_stages])
  for part in parts:
    begin = jnp.asarray(offsets[part.numbers], jnp.int32)[:, None]
    if part.two_stages:
      own = next(blocks)
      rows.append(leafwise.stacked(_take, part.leaves, own))
    else:
      own = jnp.arange(part.rows, dtype=jnp.int32)[None]
      rows.append(leafwise.stacked(thresholds.in_rows, part.leaves))
    bases.append((begin + own * LANES).reshape(-1))
  candidates = _joined(rows)
  # As the parts have them: how many rows a leaf has, and how many are wanted.
  order = [i for part in parts for i in part.numbers]
  lengths = [part.candidates for part in parts for _ in part.numbers]
  most = np.asarray([counts[i] for i in order], np.int32)
  wanted = jnp.asarray(most) if now is None else now[np.asarray(order)]
  marks = thresholds.largest(thresholds.magnitudes(candidates), lengths, wanted)
  # Slots in the order of the leaves.
  first = np.cumsum(most) - most
  slots = np.concatenate(
    [first[n] + np.arange(most[n]) for n in np.argsort(order)]
  )
  if now is None:
    places = bitmap.positions(bitmap.pack(marks.reshape(-1)), len(slots))
    places = places if np.all(np.diff(slots) == 1) else places[slots]
    filled = None
  else:
    leaf = np.repeat(np.arange(len(most)), most)
    rank = np.arange(len(slots)) - first[leaf]
    begin = jnp.cumsum(wanted) - wanted
    find, _ = bitmap.finder(bitmap.pack(marks.reshape(-1)))
    places = find((begin[leaf] + rank)[slots])
    filled = (rank < wanted[leaf])[slots]
    places = jnp.where(filled, places, 0)
  values = candidates.reshape(-1)[places]
  base = bases[0] if len(bases) == 1 else jnp.concatenate(bases)
  indices = base[places // LANES] + places % LANES
  if filled is not None:
    values = jnp.where(filled, values, 0.0)
    indices = jnp.where(filled, indices, int(offsets[-1]))
  return values, indices


class _Part(NamedTuple):
  """Leaves of one size, of which the same number of entries is wanted.

  Attributes:
    leaves: float32[size] each.
    numbers: of these among all.
    size: of each.
    wanted: k, positive.
  """

  leaves: list[jax.Array]
  numbers: list[int]
  size: int
  wanted: int

  @property
  def rows(self) -> int:
    return -(-self.size // LANES)

  @property
  def two_stages(self) -> bool:
    return self.wanted * LANES <= _WORTHWHILE * self.size

  @property
  def candidates(self) -> int:
    """How many rows of a leaf are looked through for the entries."""
    return self.wanted if self.two_stages else self.rows


def _winning_rows(parts: Sequence[_Part]):
  """Yields for each part int32[leaves, k]: the rows with the largest maxima."""
  if not parts:
    return

  def tops(x):
    rows = thresholds.in_rows(thresholds.magnitudes(x))
    return thresholds.in_rows(thresholds.row_tops(rows))

  found = [leafwise.stacked(tops, part.leaves) for part in parts]
  lengths = [x.shape[1] for x in found for _ in range(x.shape[0])]
  counts = [part.wanted for part in parts for _ in part.numbers]
  marks = thresholds.largest(
    _joined(found), lengths, jnp.asarray(counts, jnp.int32)
  )
  places = bitmap.positions(bitmap.pack(marks.reshape(-1)), sum(counts))
  first = begin = 0
  for part, x in zip(parts, found, strict=True):
    leaves, length = x.shape[:2]
    stop = first + leaves * part.wanted
    own = places[first:stop].reshape(leaves, part.wanted)
    starts = begin + np.arange(leaves, dtype=np.int32) * length * LANES
    yield own - starts[:, None]
    first, begin = stop, begin + leaves * length * LANES


def _take(x: jax.Array, rows: jax.Array) -> jax.Array:
  """Some rows of a vector; zeros beyond its end."""
  if x.shape[0] % LANES == 0:
    return x.reshape(-1, LANES)[rows]
  lanes = jnp.arange(LANES, dtype=jnp.int32)
  places = rows[:, None] * LANES + lanes
  return x.at[places].get(mode='fill', fill_value=0)


def _joined(rows: Sequence[jax.Array]) -> jax.Array:
  """[leaves, n, LANES] of several parts as [m, LANES]."""
  flat = [x.reshape(-1, LANES) for x in rows]
  return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


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
