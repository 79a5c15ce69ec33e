"""Looks numbers up in vectors, and sums by segment.

CPUs search and gather. A TPU gathers one number at a time, so it compares all
numbers with all places, if these are few; GPUs search by comparison, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np

# On other chips, up to this many comparisons cost less than a binary search.
_COMPARED = 1 << 26
# With fewer, a search for bounds among numbers is not faster.
_FEW_COMPARED = 1 << 24
# A loop is some operations an iteration; a GPU does the unrolled search in one.
_SEARCHES = {'gpu': 'scan_unrolled'}


def searchsorted(
  ascending: jax.Array,
  x: jax.Array,
  side: str = 'left',
  both_ascend: bool = False,
) -> jax.Array:
  """`jnp.searchsorted`, int32.

  Chips other than CPUs compare each number with all, if there are few: a binary
  search gathers in each iteration, which is slow there. If both vectors ascend,
  CPUs and TPUs search for the fewer bounds among the numbers.

  Args:
    ascending: int32[n].
    x: int32, of any shape.
    side: 'left' or 'right'.
    both_ascend: whether x is a vector that ascends, too.
  """
  compared = ascending.size * x.size
  if both_ascend and platforms.name() != 'gpu' and compared > _FEW_COMPARED:
    other = 'left' if side == 'right' else 'right'
    begins = jnp.searchsorted(x, ascending, side=other).astype(jnp.int32)
    passed = jnp.zeros_like(x).at[begins].add(1, mode='drop')
    return jnp.cumsum(passed, dtype=jnp.int32)
  method = _SEARCHES.get(platforms.name(), 'scan')
  if not platforms.is_cpu() and compared <= _COMPARED:
    method = 'compare_all'
  found = jnp.searchsorted(ascending, x, side=side, method=method)
  return found.astype(jnp.int32)


def looked_up(
  x: jax.Array,
  ascending: Sequence[int],
  tables: Sequence[Sequence[int] | np.ndarray],
) -> list[jax.Array]:
  """What each table has for the last bound that each number reaches.

  TPUs gather one number at a time, so all bounds are compared with all numbers.

  Args:
    x: int32, of any shape; none below the first bound.
    ascending: the bounds.
    tables: integers, one for each bound.

  Returns:
    For each table, int32 of the shape of x.
  """
  reached = x[None] >= _column(ascending[1:], x.ndim)
  return [
    table[0]
    + jnp.sum(
      jnp.where(reached, _column(np.diff(table), x.ndim), 0),
      axis=0,
      dtype=jnp.int32,
    )
    for table in map(np.asarray, tables)
  ]


def _column(numbers: Sequence[int] | np.ndarray, ndim: int) -> np.ndarray:
  """int32, along a first axis before `ndim` others."""
  return np.asarray(numbers, np.int32).reshape(-1, *(1,) * ndim)


def taken(table: jax.Array, numbers: jax.Array) -> jax.Array:
  """`table[numbers]`, all inside; TPUs compare each number with all places.

  Args:
    table: int32[n].
    numbers: int32[m].
  """
  few = table.size * numbers.size <= _COMPARED
  if platforms.name() != 'tpu' or not few:
    return table[numbers]
  own = numbers[None] == np.arange(table.size, dtype=np.int32)[:, None]
  return jnp.sum(jnp.where(own, table[:, None], 0), axis=0, dtype=table.dtype)


def sums_of_segments(
  counts: Sequence[jax.Array], segments: jax.Array, number: int
) -> jax.Array:
  """The sums of counts over segments; TPUs make them products of matrices.

  Args:
    counts: int32[n], several; each count is from 0 to 1,024.
    segments: int32[n], the segment of each count, ascending.
    number: of segments.

  Returns:
    int32[len(counts), number].
  """
  n = segments.shape[0]
  # Beyond, sums of float32 may be inexact, or the matrix is large.
  if platforms.name() != 'tpu' or n * max(number, 32) > 1 << 24:
    each = [
      jax.ops.segment_sum(x, segments, number, indices_are_sorted=True)
      for x in counts
    ]
    return jnp.stack(each)
  # Integers up to 256 are exact in bfloat16.
  own = segments[:, None] == jnp.arange(number, dtype=jnp.int32)
  stacked = jnp.stack(counts)
  halves = jnp.concatenate([stacked >> 5, stacked & 31]).astype(jnp.bfloat16)
  sums = jnp.dot(
    halves, own.astype(jnp.bfloat16), preferred_element_type=jnp.float32
  )
  high, low = jnp.split(sums.astype(jnp.int32), 2)
  return (high << 5) + low
