"""Four-bit values: a sign, and the distance in powers of two to the largest.

With M the largest magnitude of a segment (a tensor) and e_M = floor(log2 M):

    |r| > 2**e_M  ->  2**e_M
    otherwise     ->  the nearer of 2**floor(log2 |r|), 2**ceil(log2 |r|)
    d = e_M - log2(rounded);  d > 7 is not sent

The code is the sign bit and d in three bits. Rounding is bit arithmetic on the
float: add one to the top bit of the mantissa, so that 1.5 2**e and more carry
into the exponent, drop the mantissa, take the minimum with 2**e_M. e_M is sent
once for each segment, as the 8-bit biased exponent `limit`.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> values = jnp.array([3.0, -1.0, 0.5, -4.0])
>>> limit = wire.exponent.floors(values).max()
>>> rounded, kept = wire.exponent.round_below(values, limit)
>>> codes = wire.exponent.encode(rounded, limit)
>>> print(codes, wire.exponent.decode(codes, limit))
[ 0 10  3  8] [ 4.  -1.   0.5 -4. ]

References:
  Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression, arXiv
  1802.06058, sections 4.2 and 4.4, appendix B.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

_SIGN = np.uint32(0x80000000)
_MANTISSA_BITS = 23
_TOP_MANTISSA_BIT = np.uint32(1 << (_MANTISSA_BITS - 1))
_MAX_DISTANCE = 7


def floors(values: jax.Array) -> jax.Array:
  """Biased exponents floor(log2 |r|) + 127, int32; 0 for zeros and denormals.

  Args:
    values: float32.
  """
  return (_magnitude(values) >> _MANTISSA_BITS).astype(jnp.int32)


def round_below(
  values: jax.Array, limit: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Rounds values to signed powers of two that the code can express.

  Args:
    values: float32.
    limit: int32, like values or a scalar: the largest of `floors` in the
      segment.

  Returns:
    (float32, 0 where not kept; bool, False where not expressible).
  """
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  exponent = _nearest(_magnitude(values), limit)
  kept = (floors(values) > 0) & (limit - exponent <= _MAX_DISTANCE)
  return jnp.where(kept, _power(bits & _SIGN, exponent), 0.0), kept


def encode(rounded: jax.Array, limit: jax.Array) -> jax.Array:
  """Codes of rounded values: the sign in bit 3, the distance d below it.

  Args:
    rounded: float32, from `round_below`.
    limit: that of `round_below`.

  Returns:
    uint32 in [0, 15]; values that were not kept get a code of distance 7 and
    must be marked as empty in another way.
  """
  distance = jnp.clip(limit - floors(rounded), 0, _MAX_DISTANCE)
  sign = jax.lax.bitcast_convert_type(rounded, jnp.uint32) >> 31
  return (sign << 3) | distance.astype(jnp.uint32)


def decode(codes: jax.Array, limit: jax.Array) -> jax.Array:
  """The rounded values that `encode` encoded.

  Args:
    codes: uint32 in [0, 15].
    limit: that of `round_below`; 0 in segments without values.

  Returns:
    float32, `±2**(limit - 127 - d)`; 0 in segments without values.
  """
  distance = (codes & np.uint32(_MAX_DISTANCE)).astype(jnp.int32)
  exponent = limit - distance
  value = _power((codes >> 3) << 31, exponent)
  return jnp.where(exponent > 0, value, 0.0)


def _magnitude(values: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(values, jnp.uint32) & ~_SIGN


def _nearest(magnitude: jax.Array, limit: jax.Array) -> jax.Array:
  """Biased exponent of the nearest power of two, no larger than `limit`."""
  nearest = (magnitude + _TOP_MANTISSA_BIT) >> _MANTISSA_BITS
  return jnp.minimum(nearest.astype(jnp.int32), limit)


def _power(sign: jax.Array, exponent: jax.Array) -> jax.Array:
  """The float32 of a sign bit and a biased exponent in [1, 255]."""
  magnitude = exponent.astype(jnp.uint32) << _MANTISSA_BITS
  return jax.lax.bitcast_convert_type(sign | magnitude, jnp.float32)
