"""Repeats numbers along the rows of a matrix."""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any

from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np

# Smaller matrices are not worth several operations.
_LARGE = 1 << 18
# With more numbers in a row, comparisons would take longer than a copy.
_MOST = 4
# The most products for each element of the result, to find its row's numbers.
_SHARE = 4


Cut = Callable[[jax.Array], Any]


def in_rows(
  x: jax.Array, times: int, rows: int, columns: int, cut: Cut = lambda x: x
) -> Any:
  """Repeats each number, and reshapes the result to rows.

  Args:
    x: float32[n].
    times: how often each number is repeated.
    rows: of the result.
    columns: of the result, which has at most n * times elements.
    cut: cuts an array [1, rows, ...] by its rows. XLA for TPUs would write out
      what is cut, so numbers are cut before they are repeated.

  Returns:
    What `cut` makes of float32[1, rows, columns].
  """
  if rows > 1 and rows * columns >= _LARGE and platforms.name() == 'tpu':
    compared = by_comparison(x, times, rows, columns, cut)
    if compared is not None:
      return compared
  return cut(jnp.repeat(x, times)[: rows * columns].reshape(1, rows, columns))


def by_comparison(
  x: jax.Array, times: int, rows: int, columns: int, cut: Cut = lambda x: x
) -> Any:
  """`in_rows` for TPUs, which take long to reshape a vector to rows.

  A row has few numbers. They are found first, then each column is compared with
  the places at which they begin. These places repeat after `period` rows.

  Returns:
    As `in_rows`; None if that would take longer than to reshape.
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
  numbers, places = [], []
  for place in range(most):
    number = first + place  # in the period, of each row
    # By comparison as well: a gather is slow.
    is_own = np.arange(held)[:, None] == np.minimum(number, held - 1)
    own = jnp.sum(jnp.where(is_own, table, 0), axis=1).reshape(-1)[:rows]
    starts = jnp.tile(jnp.asarray(number * times - begins, jnp.int32), groups)
    numbers.append(cut(own[None]))
    places.append(cut(starts[None, :rows]))

  def of_columns(*both):
    shape = *both[0].shape, columns
    column = jax.lax.broadcasted_iota(jnp.int32, shape, len(shape) - 1)
    out = jnp.zeros_like(x, shape=shape)
    for own, starts in zip(both[:most], both[most:], strict=True):
      out = jnp.where(column >= starts[..., None], own[..., None], out)
    return out

  return jax.tree.map(of_columns, *numbers, *places)
