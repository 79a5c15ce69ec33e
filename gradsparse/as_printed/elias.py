"""Elias's gamma and delta codes, beside the two of `wire.elias`.

With b(v) the binary digits of v and L = floor(log2 v) + 1 their number:

| kind | code of v | 1 | 2 | 5 |
|---|---|---|---|---|
| `gamma` | L - 1 zeros, b(v) | 1 | 010 | 00101 |
| `delta` | gamma(L), b(v) without its leading one | 1 | 0100 | 01101 |

A code of at most 32 bits holds values up to 2**16 - 1 in gamma and up to
2**24 - 1 in delta.

References:
  Peter Elias, "Universal codeword sets and representations of the integers",
  IEEE Trans. Information Theory 21(2), 1975.
"""

from __future__ import annotations

from gradsparse.wire.elias import Kind
from gradsparse.wire.elias import digits_of
from gradsparse.wire.elias import first_bits
from gradsparse.wire.elias import window_from
import jax
import jax.numpy as jnp
import numpy as np


def _gamma_length(value):
  return 2 * value.bit_length() - 1


def _gamma_parts(value):
  digits = digits_of(value)
  return jnp.zeros_like(value), jnp.maximum(digits - 1, 0), value, digits


def _gamma_read(window, following):
  zeros = jnp.minimum(jax.lax.clz(window).astype(jnp.int32), 31)
  rest = window_from(window, following, zeros)
  return first_bits(rest, zeros + 1), 2 * zeros + 1


def _delta_length(value):
  digits = value.bit_length()
  return digits - 1 + _gamma_length(digits)


def _delta_parts(value):
  digits = digits_of(value)
  head = digits.astype(jnp.uint32)
  head_length = jnp.maximum(2 * digits_of(head) - 1, 0)
  tail_length = jnp.maximum(digits - 1, 0)
  leading_one = np.uint32(1) << tail_length.astype(jnp.uint32)
  return head, head_length, value & (leading_one - 1), tail_length


def _delta_read(window, following):
  # Lengths have at most six digits, so at most five zeros precede them.
  zeros = jnp.minimum(jax.lax.clz(window).astype(jnp.int32), 5)
  digits = first_bits(window_from(window, following, zeros), zeros + 1)
  digits = jnp.clip(digits.astype(jnp.int32), 1, 32)
  rest = window_from(window, following, 2 * zeros + 1)
  # The leading one is not sent: put it back before the first digit.
  rest = (rest >> 1) | np.uint32(1 << 31)
  return first_bits(rest, digits), 2 * zeros + digits


GAMMA = Kind(2**16 - 1, _gamma_length, _gamma_parts, _gamma_read)
DELTA = Kind(2**24 - 1, _delta_length, _delta_parts, _delta_read)
