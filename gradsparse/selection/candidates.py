"""Rows of vectors that contain the largest elements of each segment.

Nothing is sorted, and each vector is read once. The top k of a segment lie in
the k rows (of `reductions.row_length`) with the largest maxima; of rows with
equal maxima, the first are taken. These rows are gathered, then the k largest
elements among them are marked. A threshold finds both (see thresholds.py). All
segments are handled together.

A segment is a vector, a part of a vector, or all vectors together.
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
from typing import NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend import searching
from gradsparse.backend import storage
from gradsparse.backend.reductions import ROW
from gradsparse.selection import thresholds
from gradsparse.wire import bitmap
import jax
import jax.numpy as jnp
import numpy as np

# Rows are gathered only if they hold at most this share of the elements.
_WORTHWHILE = 0.5
# In a selection from all vectors, smaller vectors are concatenated: they are
# many, and each distinct loop takes long to compile.
_SMALL = 1 << 17
# In a selection from all vectors, rows that are gathered at a time.
_BLOCK = 512


def row_of_parts(size: int) -> int | None:
  """The row length for parts of this size, or None if there is none.

  The maxima of a part's rows must fill whole rows of `ROW`.
  """
  lengths = (reductions.row_length(), ROW)
  return next((n for n in lengths if size % (n * ROW) == 0), None)


class Candidates(NamedTuple):
  """Rows of `ROW` elements.

  Attributes:
    values: float32[rows, ROW]; zero after the end of a vector.
    first: int32[rows], the index of each row's first element in the
      concatenated vectors; ascending.
    ranks: int32[rows, ROW], see `thresholds.ranks`; 0 after the end.
    lengths: the number of rows of each segment.
    size: elements of all vectors.
  """

  values: jax.Array
  first: jax.Array
  ranks: jax.Array
  lengths: list[int]
  size: int

  def largest(
    self, wanted: jax.Array, slots: int, readers: int
  ) -> tuple[jax.Array, jax.Array]:
    """The largest elements of each segment.

    Args:
      wanted: int32[segments], how many of each.
      slots: how many entries to return.
      readers: about how many loops will read them.

    Returns:
      (values float32[slots], indices int32[slots]), by index. Empty slots come
      last, with index `size` and value 0.
    """
    marks = thresholds.largest(self.ranks, self.lengths, wanted)
    places = bitmap.positions(bitmap.pack(marks.reshape(-1)), slots)
    places = barriers.barrier_if_shared(places, readers)
    end = ROW * self.values.shape[0]
    there = jnp.minimum(places, end - 1)
    indices = self.first[there // ROW] + there % ROW
    values = self.values.reshape(-1).at[places].get(mode='fill', fill_value=0)
    return values, jnp.where(places < end, indices, self.size)


def of_vectors(
  vectors: Sequence[jax.Array],
  most: Sequence[int],
  parts: Sequence[int] | None = None,
  row: int | None = None,
) -> Candidates:
  """Candidates whose segments are vectors, or equal parts of vectors.

  Args:
    vectors: float32, none empty. If there are no parts, perhaps leaves of other
      shapes, which stand for the vectors of their elements.
    most: for each vector, the largest k of a segment, from 1 to its size.
    parts: the number of parts of each vector. None: one.
    row: length of a row; `row_of_parts` if a vector has several parts.
  """
  row = row or reductions.row_length()
  parts = parts or [1] * len(vectors)
  sizes = [x.size for x in vectors]
  begins = joining.offsets(sizes)
  narrow = [
    i
    for i, size in enumerate(sizes)
    if parts[i] * most[i] * row <= _WORTHWHILE * size
  ]
  rows: dict[int, jax.Array] = {}
  first: dict[int, jax.Array] = {}
  lengths: list[int] = []
  for i, x in enumerate(vectors):
    length = most[i] * (row // ROW)
    if i not in narrow:
      rows[i] = reductions.in_rows(x.reshape(-1))
      length = rows[i].shape[0] // parts[i]
      number = jnp.arange(rows[i].shape[0], dtype=jnp.int32)
      first[i] = jnp.int32(begins[i]) + ROW * number
    lengths += [length] * parts[i]
  places = jnp.zeros(0, jnp.int32)
  if narrow:
    tops = [_tops(vectors[i], row) for i in narrow]
    segments = [
      (x.shape[0] // parts[i], most[i])
      for i, x in zip(narrow, tops, strict=True)
      for _ in range(parts[i])
    ]
    winners = _winners(tops, *map(list, zip(*segments, strict=True)))
    number, places = barriers.barrier_if_shared(
      _placed(winners, tops, begins[narrow], row), len(vectors)
    )
    shapes = [(parts[i] * most[i],) for i in narrow]
    for i, own in zip(narrow, joining.split(number, shapes), strict=True):
      rows[i] = _take(vectors[i], own, row).reshape(-1, ROW)
    places = _cut(places, row)
    if first:
      shapes = [(n * (row // ROW),) for (n,) in shapes]
      first |= zip(narrow, joining.split(places, shapes), strict=True)
  if first:
    places = joining.concat([first[i] for i in range(len(vectors))])
  values = joining.concat([rows[i] for i in range(len(vectors))])
  return _candidates(values, places, lengths, sizes)


def of_all(vectors: Sequence[jax.Array], most: int) -> Candidates:
  """Candidates whose only segment is all vectors together.

  Args:
    vectors: float32, none empty; or leaves, which stand for the vectors of
      their elements.
    most: the largest k, from 1 to the number of all elements.
  """
  row = reductions.row_length()
  if any(_reads_tiles(x, row) for x in vectors):
    if most * row <= _WORTHWHILE * sum(x.size for x in vectors):
      return _of_stored(vectors, most)
  vectors = [x.reshape(-1) for x in vectors]
  if not platforms.loops_freely():
    return of_vectors([joining.concat(vectors)], [most])
  vectors = _runs(vectors)
  sizes = [x.shape[0] for x in vectors]
  if len(vectors) == 1:
    return of_vectors(vectors, [most])
  if most * row > _WORTHWHILE * sum(sizes):
    every = of_vectors(vectors, sizes)
    return every._replace(lengths=[sum(every.lengths)])
  tops = [_tops(x, row) for x in vectors]
  lengths = [x.shape[0] for x in tops]
  winners = _winners(tops, [sum(lengths)], [most])
  number, first = _placed(winners, tops, joining.offsets(sizes), row)
  # The number of a vector's winning rows is traced, so rows are gathered in
  # blocks. The next vector overwrites the end of a block that is not its own.
  starts = ROW * joining.offsets([*lengths, 0])
  bounds = searching.searchsorted(winners, jnp.asarray(starts, jnp.int32))
  number = jnp.pad(number, (0, _BLOCK))
  number, bounds = barriers.barrier_if_shared((number, bounds), len(vectors))
  each = joining.split(bounds, [()] * len(starts))
  # Typed like the rows that are written into it.
  nothing = jnp.where(winners[0] < 0, vectors[0][0], 0.0)
  values = jnp.broadcast_to(nothing, (most + _BLOCK, row))
  for x, begin, end in zip(vectors, each[:-1], each[1:], strict=True):
    values = _written(values, x, number, begin, end)
  values = values[:most].reshape(-1, ROW)
  return _candidates(values, _cut(first, row), [values.shape[0]], sizes)


def _of_stored(leaves: Sequence[jax.Array], most: int) -> Candidates:
  """Candidates of all leaves, whose rows are gathered as they are stored."""
  row, sizes = reductions.row_length(), [x.size for x in leaves]
  tops = [_tops(x, row) for x in leaves]
  winners = _winners(tops, [sum(x.shape[0] for x in tops)], [most])
  starts = ROW * joining.offsets([x.shape[0] for x in tops])
  rows = [reductions.in_rows(storage.vector(x), row) for x in leaves]
  tables = (
    starts,
    joining.offsets(sizes),
    joining.offsets([x.shape[0] for x in rows]),
    [storage.blocks(x.shape) for x in leaves],
  )
  start, offset, begin, side_by_side = searching.looked_up(
    winners, starts.tolist(), tables
  )
  number = winners - start
  own = begin + storage.stored_row(number, side_by_side)
  values = (
    joining.concat(rows).at[own].get(mode='clip', wrap_negative_indices=False)
  )
  first = _cut(offset + row * number, row)
  return _candidates(
    values.reshape(-1, ROW), first, [most * (row // ROW)], sizes
  )


def _runs(vectors: Sequence[jax.Array]) -> list[jax.Array]:
  """The same elements, with consecutive small vectors concatenated."""
  runs = itertools.groupby(vectors, lambda x: x.shape[0] < _SMALL)
  return [
    x
    for small, run in runs
    for x in ([joining.concat(list(run))] if small else run)
  ]


def _written(values, x, number, begin, end) -> jax.Array:
  """Writes rows of x into `values`, from `begin` to at least `end`."""

  def block(carry):
    at, values = carry
    own = jax.lax.dynamic_slice(number, (at,), (_BLOCK,))
    return at + _BLOCK, jax.lax.dynamic_update_slice(
      values, _take(x, own, values.shape[1]), (at, 0)
    )

  return jax.lax.while_loop(
    lambda carry: carry[0] < end, block, (begin, values)
  )[1]


def _tops(x: jax.Array, row: int) -> jax.Array:
  """int32[..., ROW], the largest rank of each row of a vector or leaf."""
  if _reads_tiles(x, row):
    tops = reductions.row_max(thresholds.magnitudes(storage.tiles(x)))
    return reductions.in_rows(
      thresholds.ranks(tops.transpose(0, 2, 1).reshape(-1))
    )
  rows = reductions.in_rows(thresholds.magnitudes(x.reshape(-1)), row)
  return reductions.in_rows(thresholds.ranks(reductions.row_max(rows)))


def _reads_tiles(x: jax.Array, row: int) -> bool:
  """Whether the rows of a leaf are read as they are stored."""
  return row == storage.LANES and storage.is_tiled(x.shape)


def _winners(
  tops: Sequence[jax.Array], lengths: Sequence[int], counts: Sequence[int]
) -> jax.Array:
  """int32[sum(counts)]: ascending places of each segment's largest tops."""
  marks = thresholds.largest(
    joining.concat(tops), lengths, jnp.asarray(counts, jnp.int32)
  )
  return bitmap.positions(bitmap.pack(marks.reshape(-1)), sum(counts))


def _cut(first: jax.Array, row: int) -> jax.Array:
  """The first elements of rows' parts of `ROW` elements."""
  if row == ROW:
    return first
  return (first[:, None] + jnp.arange(0, row, ROW)).reshape(-1)


def _placed(
  winners: jax.Array, tops: Sequence[jax.Array], begins: np.ndarray, row: int
) -> tuple[jax.Array, jax.Array]:
  """The numbers of winning rows in their vectors, and their first elements.

  Args:
    winners: int32[k], the rows' numbers among the tops of all vectors.
    tops: of each vector.
    begins: the first element of each vector in the concatenation.
    row: length of a row.

  Returns:
    (int32[k], int32[k]).
  """
  starts = jnp.asarray(
    ROW * joining.offsets([x.shape[0] for x in tops]), jnp.int32
  )
  own = searching.searchsorted(starts, winners, 'right') - 1
  number = winners - starts[own]
  return number, jnp.asarray(begins, jnp.int32)[own] + row * number


def _take(x: jax.Array, rows: jax.Array, length: int) -> jax.Array:
  """Gathers rows of a vector or leaf; zeros beyond the end of the last row."""
  stored = storage.vector(x)
  if _reads_tiles(x, length):
    rows = storage.stored_row(rows, storage.blocks(x.shape))
  if x.size % length == 0:
    stored = stored.reshape(-1, length)
    return stored.at[rows].get(mode='clip', wrap_negative_indices=False)
  lanes = jnp.arange(length, dtype=jnp.int32)[None]
  return stored.at[rows[:, None] * length + lanes].get(
    mode='fill', fill_value=0, wrap_negative_indices=False
  )


def _candidates(
  values: jax.Array, first: jax.Array, lengths: list[int], sizes: list[int]
) -> Candidates:
  ranks = thresholds.ranks(thresholds.magnitudes(values))
  if any(size % ROW for size in sizes):
    ends = jnp.asarray(np.cumsum(sizes), jnp.int32)
    end = ends[searching.searchsorted(ends, first, 'right')]
    lanes = jnp.arange(ROW, dtype=jnp.int32)[None]
    ranks = jnp.where(first[:, None] + lanes < end[:, None], ranks, 0)
  return Candidates(values, first, ranks, lengths, sum(sizes))
