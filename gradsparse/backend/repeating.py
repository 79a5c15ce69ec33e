"""Repeats numbers along the rows of a matrix."""

from __future__ import annotations

import math

from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np

# Smaller matrices are not worth several operations.
_LARGE = 1 << 18
# With more numbers in a row, comparisons would take longer than a copy.
_MOST = 4
# The most products by which the numbers of rows are found, for each element.
_SHARE = 4


def in_rows(x: jax.Array, times: int, rows: int, columns: int) -> jax.Array:
  """Repeats each number, and reshapes the result to rows.

  Args:
    x: float32[n].
    times: how often each number is repeated.
    rows: of the result.
    columns: of the result, which has at most n * times elements.

  Returns:
    float32[rows, columns].
  """
  if rows > 1 and rows * columns >= _LARGE and platforms.name() == 'tpu':
    compared = by_comparison(x, times, rows, columns)
    if compared is not None:
      return compared
  return jnp.repeat(x, times)[: rows * columns].reshape(rows, columns)


def by_comparison(
  x: jax.Array, times: int, rows: int, columns: int
) -> jax.Array | None:
  """`in_rows` for TPUs, which take long to reshape a vector to rows.

  A row has few numbers. They are found first, then each column is compared with
  the places at which they begin. Where rows begin in a run of equal numbers
  repeats after `period` rows.

  Returns:
    float32[rows, columns]; None if that would take longer than to reshape.
  """
  common = math.gcd(times, columns)
  period, held = times // common, columns // common
  begins = columns * np.arange(period)
  first = begins // times
  most = int(np.max((begins + columns - 1) // times - first)) + 1
  groups = -(-rows // period)
  if most > _MOST or groups * held * period * most > _SHARE * rows * columns:
    return None
  x = x[: groups * held]
  table = jnp.pad(x, (0, groups * held - x.shape[0])).reshape(groups, held, 1)
  column = jax.lax.broadcasted_iota(jnp.int32, (rows, columns), 1)
  out = jnp.zeros_like(x, shape=(rows, columns))
  for place in range(most):
    number = first + place  # in the period, of each row
    # By comparison as well: a gather is slow.
    is_own = np.arange(held)[:, None] == np.minimum(number, held - 1)
    own = jnp.sum(jnp.where(is_own, table, 0), axis=1).reshape(-1)[:rows]
    starts = jnp.tile(jnp.asarray(number * times - begins, jnp.int32), groups)
    out = jnp.where(column >= starts[:rows, None], own[:, None], out)
  return out
