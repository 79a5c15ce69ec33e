"""The largest magnitudes of each tile of matrices.

Tiles are searched in the rows of their matrix: a group of neighbours is a part
of one row of a tile, and only the groups' maxima are moved together, tile by
tile (alike.py). Where that is not possible the elements themselves are moved,
and a tile is a chunk (chunks.py).
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend.reductions import ROW
from gradsparse.selection import alike
from gradsparse.selection import thresholds
from gradsparse.selection.chunks import chunked_top_k_of_each
from gradsparse.selection.exact import count
from gradsparse.selection.exact import traced_count
import jax
import jax.numpy as jnp
import numpy as np

# Elements of a group, the best first: each divides a row of a tile, or else a
# row that is padded by at most a share of _PADDING.
_GROUPS = (8, 7, 9, 10, 6, 5, 12, 4)
_PADDING = 0.12
# The groups that are searched hold at most this share of all elements.
_WORTHWHILE = 0.5
# Fewer elements are not worth a search of their own.
_FEW = 1 << 16
# With fewer entries than this share of the elements, sorting takes less time
# than counting the elements before each.
_SORTED = 1 / 512


def tiled_top_k_of_each(
  leaves: Sequence[jax.Array],
  density: float,
  tile: int,
  now: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, list[int]]:
  """The k largest of each tile of each leaf; ties keep the lower index.

  A leaf (..., columns) is a matrix of all rows. The sides of its tiles are the
  largest divisors of its rows and columns that are at most `tile`. k is that of
  a tile of tile^2 elements, and at most all elements of a smaller one.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> leaves = [jnp.array([[3.0, -1.0], [0.5, -4.0]])]
  >>> select = gs.extend.selection.tiled_top_k_of_each
  >>> values, indices, slots = jax.jit(lambda: select(leaves, 0.25, 2))()
  >>> print(values, indices, slots[0])
  [-4.] [3] 1

  Args:
    leaves: float32 arrays, none empty.
    density: fraction of tile^2 elements, in (0, 1].
    tile: the longest side of a tile.
    now: a traced density, as in `chunked_top_k_of_each`.

  Returns:
    As `chunked_top_k_of_each`.

  References:
    Sarfi et al., SparseLoCo, arXiv 2508.15706; the tiles are those of its code.
  """
  k = count(density, tile * tile)
  sides = [tile_of(x.shape, tile) for x in leaves]
  sizes = [x.size for x in leaves]
  offsets = joining.offsets([*sizes, 0])
  slots = [
    size // (high * wide) * min(k, high * wide)
    for size, (high, wide) in zip(sizes, sides, strict=True)
  ]
  values, indices = [], []
  groups = _groups(sizes, sides, k)
  for group in sorted({size for size in groups if size}):
    own = [i for i, own in enumerate(groups) if own == group]
    entries = _by_groups(
      [leaves[i] for i in own],
      [sides[i] for i in own],
      group,
      k,
      None if now is None else (now, tile * tile),
      offsets[own],
      int(offsets[-1]),
    )
    values.append(entries[0])
    indices.append(entries[1])
  rest = [i for i, size in enumerate(groups) if size is None]
  for elements in sorted({math.prod(sides[i]) for i in rest}):
    own = [i for i in rest if math.prod(sides[i]) == elements]
    vectors = [_by_tile(leaves[i], *sides[i]).reshape(-1) for i in own]
    most = min(k, elements)
    found = chunked_top_k_of_each(
      vectors,
      # A share whose count is `most`, whatever it is rounded to.
      (most - 0.5) / elements,
      elements,
      None if now is None else now * (tile * tile / elements),
    )
    values.append(found[0])
    indices.append(
      _untiled(
        found[1],
        [leaves[i].shape for i in own],
        [sides[i] for i in own],
        offsets[own],
        int(offsets[-1]),
      )
    )
  ordered = _in_order(
    joining.concat(values), joining.concat(indices), int(offsets[-1])
  )
  return *ordered, slots


def tile_of(shape: tuple[int, ...], tile: int) -> tuple[int, int]:
  """Rows and columns of a leaf's tiles."""
  columns = shape[-1] if shape else 1
  rows = math.prod(shape) // columns

  def side(n):
    return next(d for d in range(min(tile, n), 0, -1) if n % d == 0)

  return side(rows), side(columns)


def _by_tile(x: jax.Array, high: int, wide: int) -> jax.Array:
  """[tiles, high wide], the elements of a leaf."""
  columns = x.shape[-1] if x.ndim else 1
  cut = x.reshape(-1, high, columns // wide, wide)
  return cut.swapaxes(1, 2).reshape(-1, high * wide)


def _untiled(
  indices: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  sides: Sequence[tuple[int, int]],
  offsets: np.ndarray,
  total: int,
) -> jax.Array:
  """Indices of concatenated leaves, from those of their tiles in a row.

  Args:
    indices: of the elements of `_by_tile` of some leaves, concatenated.
    shapes: of these leaves.
    sides: of their tiles.
    offsets: where each of these leaves begins in all leaves.
    total: elements of all leaves; the index of an empty slot.
  """
  ends = np.cumsum([math.prod(shape) for shape in shapes])
  out = jnp.full_like(indices, total)
  begin = 0
  for shape, (high, wide), offset, end in zip(
    shapes, sides, offsets.tolist(), ends.tolist(), strict=True
  ):
    columns = shape[-1] if shape else 1
    place = indices - begin
    number, inside = place // (high * wide), place % (high * wide)
    across = columns // wide
    row = number // across * high + inside // wide
    column = number % across * wide + inside % wide
    is_own = (indices >= begin) & (indices < end)
    out = jnp.where(is_own, offset + row * columns + column, out)
    begin = end
  return out


def _groups(
  sizes: Sequence[int], sides: Sequence[tuple[int, int]], k: int
) -> list[int | None]:
  """Elements of a group of each leaf, or None to move its elements."""

  def of(high, wide):
    few = _WORTHWHILE * high * wide / (k + alike.SPARE)
    able = [n for n in _GROUPS if n <= few]
    whole = (n for n in able if wide % n == 0)
    # Indices of padded leaves must be int32, too.
    can_pad = (1 + _PADDING) * sum(sizes) < 2**31
    padded = (n for n in able if can_pad and -wide % n <= _PADDING * wide)
    return next(whole, next(padded, None))

  found = [of(*side) if platforms.reads_singly() else None for side in sides]
  held: collections.Counter[int | None] = collections.Counter()
  for n, own in zip(sizes, found, strict=True):
    held[own] += n
  return [own if held[own] >= _FEW else None for own in found]


def _by_groups(
  leaves: Sequence[jax.Array],
  sides: Sequence[tuple[int, int]],
  size: int,
  k: int,
  now: tuple[jax.Array, int] | None,
  offsets: np.ndarray,
  total: int,
) -> tuple[jax.Array, jax.Array]:
  """The entries of leaves whose tiles' rows are cut into groups.

  Args:
    leaves: float32 arrays.
    sides: of their tiles.
    size: elements of a group.
    k: slots of a tile.
    now: (a traced density, of how many elements it is a fraction); None fills
      all slots.
    offsets: where each leaf begins in all leaves.
    total: elements of all leaves; the index of an empty slot.

  Returns:
    (values, indices), tile by tile.
  """
  tiles = [
    x.size // math.prod(own) for x, own in zip(leaves, sides, strict=True)
  ]
  widths = [-(-wide // size) * size for _, wide in sides]  # of padded rows
  leaves = [
    _padded(x, wide, width)
    for x, (_, wide), width in zip(leaves, sides, widths, strict=True)
  ]
  numbers = [
    high * width // size for (high, _), width in zip(sides, widths, strict=True)
  ]
  most = -(-max(numbers) // ROW) * ROW
  # Barriers, or maxima and numbers would be computed where they are read.
  maxima = barriers.fusion_barrier([_maxima(x, size) for x in leaves])
  tops = [
    jnp.pad(_by_tile(x, high, width // size), ((0, 0), (0, most - number)))
    for x, (high, _), width, number in zip(
      maxima, sides, widths, numbers, strict=True
    )
  ]
  ends = np.cumsum(tiles)[:-1].tolist()
  seen: list[tuple[jax.Array, jax.Array]] = []

  def of_groups(found):
    parts = zip(jnp.split(found, ends), leaves, sides, widths, strict=True)
    places = barriers.fusion_barrier(
      [
        _group(part, x.shape, high, width, size)
        for part, x, (high, _), width in parts
      ]
    )
    rows = [
      x.reshape(-1, size)
      .at[place]
      .get(mode='promise_in_bounds', wrap_negative_indices=False)
      for x, place in zip(leaves, places, strict=True)
    ]
    first = [
      offset + _unpadded(size * place, wide, width)
      for place, (_, wide), width, offset in zip(
        places, sides, widths, offsets.tolist(), strict=True
      )
    ]
    seen.append(
      barriers.fusion_barrier((joining.concat(rows), joining.concat(first)))
    )
    ranks = thresholds.ranks(thresholds.magnitudes(seen[0][0]))
    if widths == [wide for _, wide in sides]:
      return ranks
    there = [
      size * place[..., None] % width + jnp.arange(size) < wide
      for place, (_, wide), width in zip(places, sides, widths, strict=True)
    ]
    return jnp.where(joining.concat(there), ranks, 0)

  wanted = jnp.full(sum(tiles), k, jnp.int32)
  if now is not None:
    each = np.repeat([math.prod(own) for own in sides], tiles)
    density = now[0] * jnp.asarray(now[1] / each, jnp.float32)
    wanted = jnp.minimum(traced_count(density, jnp.asarray(each)), k)
  cells = alike.largest(
    joining.concat(tops), np.repeat(numbers, tiles), of_groups, k, wanted
  )
  rows, first = (x.reshape(sum(tiles), -1) for x in seen[0])
  indices = jnp.take_along_axis(first, cells.group, axis=1) + cells.place
  values = jnp.take_along_axis(rows, cells.group * size + cells.place, axis=1)
  if now is not None:
    filled = jnp.arange(k)[None] < wanted[:, None]
    indices = jnp.where(filled, indices, total)
    values = jnp.where(filled, values, 0.0)
  return values.reshape(-1), indices.reshape(-1)


def _padded(x: jax.Array, wide: int, width: int) -> jax.Array:
  """A matrix of all rows, each tile's rows padded with zeros to `width`."""
  if wide == width:
    return x
  cut = x.reshape(-1, x.shape[-1] // wide, wide)
  return jnp.pad(cut, ((0, 0), (0, 0), (0, width - wide))).reshape(
    cut.shape[0], -1
  )


def _unpadded(index: jax.Array, wide: int, width: int) -> jax.Array:
  """An element's index in a leaf, from that in the padded one."""
  return index - (width - wide) * (index // width)


def _maxima(x: jax.Array, size: int) -> jax.Array:
  """int32[rows, groups of a row], the largest rank of each group."""
  groups = thresholds.magnitudes(x).reshape(-1, x.shape[-1] // size, size)
  return thresholds.ranks(jnp.max(groups, axis=2))


def _group(
  found: jax.Array, shape: tuple[int, ...], high: int, wide: int, size: int
) -> jax.Array:
  """Numbers of a leaf's groups, from those in each tile: int32[tiles, m]."""
  tile = jnp.arange(found.shape[0], dtype=jnp.int32)[:, None]
  across, each = shape[-1] // wide, wide // size
  row = tile // across * high + found // each
  return (row * across + tile % across) * each + found % each


def _in_order(
  values: jax.Array, indices: jax.Array, total: int
) -> tuple[jax.Array, jax.Array]:
  """The entries by index.

  Args:
    values: float32[m].
    indices: int32[m], distinct, except `total` for empty slots.
    total: elements of all leaves.
  """
  few = indices.shape[0] < _SORTED * total
  if few or not platforms.reads_singly():
    order, ordered = jax.lax.sort((indices, values), num_keys=1)
    return ordered, order
  # The place of an entry is the number of entries before it.
  is_there = indices < total
  word, bit = indices // 32, (indices % 32).astype(jnp.uint32)
  own = jnp.where(is_there, word, -(-total // 32))
  words = jnp.zeros(-(-total // 32), jnp.uint32)
  words = words.at[own].add(np.uint32(1) << bit, mode='drop')
  counts = jax.lax.population_count(words).astype(jnp.int32)
  before = jnp.cumsum(counts) - counts
  below = words.at[own].get(mode='clip') & ((np.uint32(1) << bit) - 1)
  rank = before.at[own].get(mode='clip')
  rank += jax.lax.population_count(below).astype(jnp.int32)
  rank = barriers.fusion_barrier(jnp.where(is_there, rank, len(indices)))
  return (
    jnp.zeros_like(values).at[rank].set(values, mode='drop'),
    jnp.full_like(indices, total).at[rank].set(indices, mode='drop'),
  )
