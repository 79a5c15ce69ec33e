"""Small factors of many matrices, as in PowerSGD.

A factor is float32[leaves, r, rows]: r columns, each along the last axis,
because a TPU pads a last axis of a few numbers to 128. A factor has more rows
than columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np

# A part of a column that is no longer than this, of its length, is rounding.
_ROUNDING = 5e-7


def at_once(
  fn: Callable[[jax.Array], jax.Array], factors: Sequence[jax.Array]
) -> list[jax.Array]:
  """Applies a function to each factor.

  Accelerators take longer to begin an operation than to read a factor. There
  factors of about equal lengths are filled up with zeros and stacked.

  Args:
    fn: factor -> factor of the same shape. Zeros after the last row change
      nothing but the last bits.
    factors: of any number of leaves and rows.
  """
  if platforms.is_cpu():
    return [fn(x) for x in factors]
  rows = [x.shape[-1] for x in factors]
  lengths = [1 << (n - 1).bit_length() for n in rows]
  out: dict[int, jax.Array] = {}
  for length in sorted(set(lengths)):
    own = [i for i, n in enumerate(lengths) if n == length]
    padded = [
      jnp.pad(factors[i], ((0, 0), (0, 0), (0, length - rows[i]))) for i in own
    ]
    cuts = np.cumsum([len(x) for x in padded])[:-1]
    parts = jnp.split(fn(jnp.concatenate(padded)), cuts)
    out |= {i: x[..., : rows[i]] for i, x in zip(own, parts, strict=True)}
  return [out[i] for i in range(len(out))]


def orthonormal(factors: Sequence[jax.Array]) -> list[jax.Array]:
  """Orthonormal columns that span those of each factor.

  CPUs decompose each factor by LAPACK: XLA takes twice as long to compile the
  other form for ResNet-50's leaves. On accelerators a decomposition takes many
  small operations, so they go through the columns of all factors at once. The
  bases differ in signs and in their last bits.

  Args:
    factors: no square of a column's length overflows or vanishes, or the
      column is zero.
  """
  return at_once(_by_qr if platforms.is_cpu() else _by_gram_schmidt, factors)


def _by_qr(columns: jax.Array) -> jax.Array:
  return jnp.swapaxes(jnp.linalg.qr(jnp.swapaxes(columns, 1, 2))[0], 1, 2)


def _by_gram_schmidt(columns: jax.Array) -> jax.Array:
  """Each column without its part along those before it, of length 1.

  A column of which nothing but rounding is left becomes another one, as in a QR
  decomposition: zeros would stay zeros in all later steps.
  """
  leaves, rank, rows = columns.shape

  def length(x):
    return jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))

  def rest(x, others):
    along = jnp.sum(others * x, axis=-1, keepdims=True)
    return x - jnp.sum(along * others, axis=-2, keepdims=True)

  row = jnp.arange(rows)
  out = jnp.zeros((leaves, 0, rows), columns.dtype)
  for k in range(rank):
    column = columns[:, k : k + 1]
    left = rest(column, out)
    # The cosines of k + 1 half waves over r + 1 rows: no two are alike.
    waves = jnp.cos((k + 1) * math.pi * (row + 0.5) / (rank + 1))
    nothing = length(left) <= _ROUNDING * length(column)
    left = jnp.where(nothing, jnp.where(row <= rank, waves, 0.0), left)
    # Again: where little was left, much of it is rounding along the others.
    left = rest(left / length(left), out)
    out = jnp.concatenate([out, left / length(left)], axis=1)
  return out
