"""Value codes: formats of the values of a message's entries.

  name           bits of a value
  'float32'      32
  'bfloat16'     16
  'exponent4'    4, and 8 a leaf (sign and power of two)
  'qsgd4'        4, and 32 a leaf (QSGD's rounding to 7 levels, unbiased)
  'ternary'      1, and 32 a leaf (TernGrad's rounding, unbiased)
  'table4'       2, and 128 a leaf (four numbers, means of the values near them)
  'sign2'        1, and 64 a leaf (one magnitude for each sign)
  `constant`     1 (sign of a magnitude known to all workers)

`round` comes first, and only it is lossy. An entry that the format cannot
represent is not sent and stays in the sender's memory. On rounded values,
`decode` is the exact inverse of `encode`. Both are elementwise:
sparse_values.py applies them to the entries of a `Sparse`, marked.py to whole
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gradsparse import arguments
from gradsparse import draws
from gradsparse import traced
from gradsparse.wire import exponent
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

_BFLOAT16_MAX = float(jnp.finfo(jnp.bfloat16).max)


def _no_scales(values: jax.Array) -> tuple[jax.Array, ...]:
  del values
  return ()


class ValueCode(NamedTuple):
  """Rounds values, and codes rounded values in a few bits.

  A scale has the shape of the values, or is a scalar where all values are of
  one leaf.

  Attributes:
    width: bits of a value.
    encode: (rounded values, scales) -> uint32 below 2**width.
    decode: (codes, scales) -> float32 values.
    scales: values -> arrays like the values. A leaf's scale is the largest
      number of such an array in the leaf, and at least zero.
    scale_width: bits of a scale in a message: 32 (float32), or 8 (int32).
    round: (values, scales, PRNG key) -> (values, which of them can be sent, or
      None if all can). None: the code is exact.
    fit: (values, number of the leaf of each, number of leaves) -> values: in
      place of `round`, a rounding that looks at all values of a leaf.
    table: (rounded values, number of the leaf of each, number of leaves) ->
      scales of each leaf, in place of the largest numbers of `scales`.
  """

  width: int
  encode: Callable[[jax.Array, list[jax.Array]], jax.Array]
  decode: Callable[[jax.Array, list[jax.Array]], jax.Array]
  scales: Callable[[jax.Array], tuple[jax.Array, ...]] = _no_scales
  scale_width: int = 32
  round: (
    Callable[
      [jax.Array, list[jax.Array], jax.Array],
      tuple[jax.Array, jax.Array | None],
    ]
    | None
  ) = None
  fit: Callable[[jax.Array, jax.Array, int], jax.Array] | None = None
  table: Callable[[jax.Array, jax.Array, int], list[jax.Array]] | None = None


def float32() -> ValueCode:
  """Values without rounding."""
  return ValueCode(
    32,
    encode=lambda values, scales: fixed_width.of_floats(values),
    decode=lambda codes, scales: fixed_width.floats_of(codes),
  )


def bfloat16() -> ValueCode:
  """Values rounded to nearest even: the upper half of a float32."""

  def rounded(values, scales, key):
    del scales, key
    # Not through astype(bfloat16) and back: XLA may elide the pair.
    clipped = jnp.clip(values, -_BFLOAT16_MAX, _BFLOAT16_MAX)
    return jax.lax.reduce_precision(
      clipped, exponent_bits=8, mantissa_bits=7
    ), None

  return ValueCode(
    16,
    encode=lambda values, scales: fixed_width.of_floats(values) >> 16,
    decode=lambda codes, scales: fixed_width.floats_of(codes << 16),
    round=rounded,
  )


def exponent4() -> ValueCode:
  """Sign and 3-bit distance from the leaf's largest power of two."""

  def rounded(values, scales, key):
    del key
    return exponent.round_below(values, scales[0])

  return ValueCode(
    4,
    encode=lambda values, scales: exponent.encode(values, scales[0]),
    decode=lambda codes, scales: exponent.decode(codes, scales[0]),
    scales=lambda values: (exponent.floors(values),),
    scale_width=8,
    round=rounded,
  )


def stochastic(levels: int) -> ValueCode:
  """QSGD's rounding to `levels` levels of the leaf's largest magnitude.

  The rounding is unbiased; an entry at level 0 is not sent. One level is
  TernGrad's code: the sign, with probability |r| / max.
  """
  width = 1 + (levels - 1).bit_length()  # a sign and a level of 1..s

  def size(level, top):
    # A table and one product: the compiler has nothing to reorder, so sender
    # and receiver compute the same bits.
    shares = jnp.asarray([i / levels for i in range(levels + 1)], jnp.float32)
    return shares[level] * top

  def scaled(values, top):
    return jnp.abs(values) / jnp.where(top > 0, top, 1.0) * levels

  def rounded(values, scales, key):
    (top,) = scales
    exact = scaled(values, top)
    low = jnp.floor(exact)
    up = draws.uniform(key, exact.shape) < exact - low
    level = jnp.minimum(low + up.astype(low.dtype), levels).astype(jnp.int32)
    return jnp.sign(values) * size(level, top), level > 0

  # The largest entry of a leaf is exactly at the top level, so the scale of the
  # rounded values is the same.
  def encode(values, scales):
    level = jnp.round(scaled(values, scales[0])).astype(jnp.uint32)
    negative = (values < 0).astype(jnp.uint32)
    return (jnp.maximum(level, 1) - 1) | (negative << (width - 1))

  def decode(codes, scales):
    level = (codes & ((1 << (width - 1)) - 1)) + 1
    magnitude = size(level, scales[0])
    return jnp.where(codes >> (width - 1) == 1, -magnitude, magnitude)

  return ValueCode(
    width,
    encode,
    decode,
    scales=lambda values: (jnp.abs(values),),
    round=rounded,
  )


def table4() -> ValueCode:
  """Four reconstruction values a leaf, the means of four bins.

  The bins are of equal width, 1.5 standard deviations of the values of the
  leaf, around their mean. Values beyond are in the outer bins.

  References:
    Sarfi et al., SparseLoCo, arXiv 2508.15706; its code has bins=4, range=6.
  """
  bins, reach = 4, 6.0

  def fit(values, leaf, leaves):
    def total(x, owner=leaf, size=leaves):
      return jnp.zeros(size, jnp.float32).at[owner].add(x, mode='drop')

    def spread(of_leaf):
      return jnp.append(of_leaf, jnp.float32(0))[leaf]

    number = total(jnp.ones_like(values))
    mean = total(values) / jnp.maximum(number, 1)
    apart = values - spread(mean)
    variance = total(apart * apart) / jnp.maximum(number - 1, 1)
    width = reach * jnp.sqrt(variance) / bins
    width = jnp.where((width > 0) & jnp.isfinite(width), width, 1.0)
    share = jnp.round(apart / spread(width) + bins / 2)
    code = jnp.clip(share, 0, bins - 1).astype(jnp.int32)
    owner = jnp.where(leaf < leaves, leaf * bins + code, leaves * bins)
    held = total(jnp.ones_like(values), owner, leaves * bins)
    means = total(apart, owner, leaves * bins) / jnp.maximum(held, 1)
    return jnp.append(means, jnp.float32(0))[owner] + spread(mean)

  def table(values, leaf, leaves):
    # The numbers that occur, in ascending order; the last one is repeated if
    # they are fewer than the bins.
    found: list[jax.Array] = []
    for _ in range(bins):
      below = found[-1] if found else jnp.full(leaves, -jnp.inf, jnp.float32)
      above = jnp.append(below, jnp.float32(0))[leaf] < values
      least = jnp.full(leaves, jnp.inf, jnp.float32)
      least = least.at[leaf].min(jnp.where(above, values, jnp.inf), mode='drop')
      last = found[-1] if found else jnp.zeros(leaves, jnp.float32)
      found.append(jnp.where(jnp.isfinite(least), least, last))
    return found

  def encode(values, scales):
    ranks = [values > x for x in scales[:-1]]
    return sum(rank.astype(jnp.uint32) for rank in ranks)

  def decode(codes, scales):
    out = scales[0]
    for number in range(1, bins):
      out = jnp.where(codes == number, scales[number], out)
    return out

  return ValueCode(
    2,
    encode,
    decode,
    scales=lambda values: (values,) * bins,
    fit=fit,
    table=table,
  )


def _negative(values: jax.Array, scales: list[jax.Array]) -> jax.Array:
  del scales
  return (values < 0).astype(jnp.uint32)


def sign2() -> ValueCode:
  """One bit for each value, and two magnitudes a leaf: one for each sign."""
  return ValueCode(
    1,
    encode=_negative,
    decode=lambda codes, scales: jnp.where(codes == 1, -scales[1], scales[0]),
    scales=lambda values: (values, -values),
  )


def constant(magnitude: float) -> ValueCode:
  """One bit for each value: the sign of a magnitude known to all workers.

  Raises:
    TypeError: magnitude is not a number.
    ValueError: magnitude is not positive and finite.
  """
  magnitude = arguments.number(
    'magnitude', magnitude, arguments.POSITIVE, traced=True
  )

  def decode(codes, scales):
    del scales
    size = traced.here(magnitude)
    return jnp.where(codes == 1, -size, size).astype(jnp.float32)

  return ValueCode(1, encode=_negative, decode=decode)


BY_NAME: dict[str, Callable[[], ValueCode]] = {
  'float32': float32,
  'bfloat16': bfloat16,
  'exponent4': exponent4,
  'qsgd4': lambda: stochastic(7),
  'ternary': lambda: stochastic(1),
  'table4': table4,
  'sign2': sign2,
}
