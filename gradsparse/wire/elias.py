"""Elias codes: variable-length codes of the integers >= 1.

With b(v) the binary digits of v and L = floor(log2 v) + 1 their number:

| kind | code of v | 1 | 2 | 5 |
|---|---|---|---|---|
| `omega` | b(..), b(L - 1), b(v), a zero | 0 | 100 | 101010 |
| `unary` | v - 1 zeros, a one; above 7: 7 zeros, omega(v-7) | 1 | 01 | 00001 |

`omega` is QSGD's Elias(.), the recursive code: v is preceded by b(L - 1), that
by b of its own length less one, and so on down to 1; a zero ends the code.
`unary` is the shortest if most values are small. It escapes to omega, so that a
large value takes only a few bits more than in omega. `KINDS` maps names to
codes; entries can be added.

**Bit order.** A code is a number of `length` binary digits, of which the most
significant one is sent first. So `code(5, 'unary')` is (0b00001, 5).

For values below 2**31, every code has two `parts` of at most 32 bits. For
values up to `max_value(kind)`, both fit in 32 bits and `code` joins them.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> bits, lengths = wire.elias.code(jnp.array([1, 2, 5]), 'omega')
>>> print([f'{b:0{n}b}' for b, n in zip(bits.tolist(), lengths.tolist())])
['0', '100', '101010']
>>> print(*wire.elias.read(bits << (32 - lengths).astype('uint32'), 'omega'))
[1 2 5] [1 3 6]

References:
  Peter Elias, "Universal codeword sets and representations of the integers",
  IEEE Trans. Information Theory 21(2), 1975. Alistarh et al., QSGD, arXiv
  1610.02132, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# The number of zeros that begin a unary code's escape.
_ESCAPE = 7
_MAX_PARTS_VALUE = 2**31 - 1

# (head, head_length, tail, tail_length), see `parts`.
Parts = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class Kind(NamedTuple):
  """A code of the integers >= 1.

  Attributes:
    max_value: the largest value whose code has at most 32 bits.
    max_length: value -> bits of the longest code of the values 1 to `value`.
      The length grows at powers of two, at 2 to 7, and 7 above powers of two.
    parts: uint32[...] in [0, 2**31) -> the codes in two parts, see `parts`.
    read: (window uint32[...], the 32 bits after it uint32[...]) -> (values
      uint32[...], lengths int32[...]), see `read`.
  """

  max_value: int
  max_length: Callable[[int], int]
  parts: Callable[[jax.Array], Parts]
  read: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def max_value(kind: str, *, parts: bool = False) -> int:
  """The largest value that `code` can express, or `parts` if asked.

  Args:
    kind: a key of KINDS.
    parts: whether codes are sent as two parts.

  Returns:
    2**21 - 1 for omega, 2**16 + 6 for unary; with parts 2**31 - 1.

  Raises:
    ValueError: kind is unknown.
  """
  largest = _by_name(kind).max_value
  return _MAX_PARTS_VALUE if parts else largest


def max_length(value: int, kind: str) -> int:
  """Bits of the longest code of the values 1 to `value`.

  Args:
    value: the largest value that occurs, >= 1.
    kind: a key of KINDS.

  Returns:
    The number of bits.

  Raises:
    ValueError: kind is unknown, or value < 1.

  >>> max_length(8, 'omega')
  7
  """
  longest = _by_name(kind).max_length
  if value < 1:
    raise ValueError(f'value must be >= 1, got {value}')
  return longest(value)


def _by_name(kind: str) -> Kind:
  """The code of this name; ValueError for an unknown one."""
  if kind not in KINDS:
    raise ValueError(f'kind must be one of {tuple(KINDS)}, got {kind!r}')
  return KINDS[kind]


def length(
  values: jax.Array, kind: str, largest: int | None = None
) -> jax.Array:
  """The bits of the codes.

  Args:
    values: uint32[...] or int32[...] in [0, 2**31); 0 has no code and takes no
      bits.
    kind: a key of KINDS.
    largest: the largest value that occurs, with which codes are not computed;
      None if it is unknown.

  Returns:
    int32[...].

  Raises:
    ValueError: kind is unknown.
  """
  if largest is None:
    _, head_length, _, tail_length = parts(values, kind)
    return head_length + tail_length
  bits, before = jnp.zeros_like(values, jnp.int32), 0
  for value in _longer_from(largest):
    here = max_length(value, kind)
    if here > before:
      bits += jnp.where(values >= value, np.int32(here - before), 0)
    before = here
  return bits


def _longer_from(largest: int) -> list[int]:
  """Values up to the largest, including all at which codes get longer."""
  powers = [1 << bit for bit in range(31)]
  values = {*range(1, _ESCAPE + 1), *powers, *(_ESCAPE + x for x in powers)}
  return sorted(value for value in values if value <= largest)


def code(values: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
  """Codes of integers as numbers of up to 32 digits, the first one on top.

  Args:
    values: uint32[...] or int32[...] in [0, max_value(kind)]; 0 has no code
      and gets length 0. Larger values give wrong bits.
    kind: a key of KINDS.

  Returns:
    (bits uint32[...], lengths int32[...]).

  Raises:
    ValueError: kind is unknown.
  """
  head, head_length, tail, tail_length = parts(values, kind)
  # A tail of 32 bits has no head; a shift by 32 is undefined.
  shift = (tail_length & 31).astype(jnp.uint32)
  return (head << shift) | tail, head_length + tail_length


def parts(values: jax.Array, kind: str) -> Parts:
  """Codes of integers in two parts, the head to be sent before the tail.

  Args:
    values: uint32[...] or int32[...] in [0, 2**31); 0 has no code and gets
      length 0.
    kind: a key of KINDS.

  Returns:
    (head uint32[...], head_length int32[...], tail uint32[...], tail_length
    int32[...]), both as numbers of up to 32 digits.

  Raises:
    ValueError: kind is unknown.
  """
  return _by_name(kind).parts(values.astype(jnp.uint32))


def read(
  window: jax.Array, kind: str, following: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """Reads the code at the beginning of a window of a stream.

  Args:
    window: uint32[...], the next 32 bits, the first of them on top.
    kind: a key of KINDS.
    following: uint32[...], the 32 bits after those; needed only for values
      above `max_value(kind)`, whose codes are longer than the window.

  Returns:
    (values uint32[...], lengths int32[...] in bits). Bits that are no code
    give some value, and a length in [1, 95].

  Raises:
    ValueError: kind is unknown.
  """
  if following is None:
    following = jnp.zeros_like(window)
  return _by_name(kind).read(window, following)


def digits_of(value: jax.Array) -> jax.Array:
  """The number of binary digits of a uint32, int32; 0 has none."""
  return 32 - jax.lax.clz(value).astype(jnp.int32)


def window_from(
  window: jax.Array, following: jax.Array, start: jax.Array
) -> jax.Array:
  """The 32 bits that begin at bit `start` in [0, 31] of two windows."""
  start = (start & 31).astype(jnp.uint32)
  return (window << start) | ((following >> 1) >> (31 - start))


def first_bits(window: jax.Array, digits: jax.Array) -> jax.Array:
  """The first `digits` in [1, 32] bits of a window, as a number."""
  return window >> ((32 - digits) & 31).astype(jnp.uint32)


# --- the codes --------------------------------------------------------------


def _omega_length(value):
  bits = 1
  while value > 1:
    bits += value.bit_length()
    value = value.bit_length() - 1
  return bits


def _omega_parts(value):
  # Groups are prepended until one is 1. Below 2**31 there are at most three:
  # the number of digits less one is at most 30, 4, 2.
  digits = digits_of(value)
  head, head_length = jnp.zeros_like(value), jnp.zeros_like(digits)
  group = jnp.maximum(digits - 1, 0)
  for _ in range(3):
    more = group > 1
    prepended = head | (
      group.astype(jnp.uint32) << head_length.astype(jnp.uint32)
    )
    group_digits = digits_of(group.astype(jnp.uint32))
    head = jnp.where(more, prepended, head)
    head_length = jnp.where(more, head_length + group_digits, head_length)
    group = jnp.where(more, group_digits - 1, group)
  # The code of 1 is the final zero alone.
  tail = jnp.where(value > 1, value << 1, jnp.zeros_like(value))
  tail_length = jnp.where(value > 1, digits + 1, jnp.minimum(digits, 1))
  return head, head_length, tail, tail_length


def _omega_read(window, following):
  value = jnp.ones_like(window)
  position = jnp.zeros_like(window, jnp.int32)
  more = jnp.ones_like(window, dtype=bool)
  for _ in range(4):
    rest = window_from(window, following, position)
    # A group of 32 or more is the last: it would announce 33 digits or more.
    more = more & (rest >> 31 == 1) & (value < 32)
    digits = (value & 31).astype(jnp.int32) + 1
    value = jnp.where(more, first_bits(rest, digits), value)
    position = jnp.where(more, position + digits, position)
  return value, position + 1


def _unary_length(value):
  if value <= _ESCAPE:
    return value
  return _ESCAPE + _omega_length(value - _ESCAPE)


def _unary_parts(value):
  escaped = value > _ESCAPE
  head, head_length, tail, tail_length = _omega_parts(
    jnp.where(escaped, value - _ESCAPE, 0)
  )
  return (
    head,
    jnp.where(escaped, head_length + _ESCAPE, 0),
    jnp.where(escaped, tail, jnp.minimum(value, 1)),
    jnp.where(escaped, tail_length, value.astype(jnp.int32)),
  )


def _unary_read(window, following):
  zeros = jax.lax.clz(window).astype(jnp.int32)
  rest = window_from(window, following, jnp.full_like(zeros, _ESCAPE))
  value, length = _omega_read(rest, following << _ESCAPE)
  escaped = zeros >= _ESCAPE
  return (
    jnp.where(escaped, value + _ESCAPE, (zeros + 1).astype(jnp.uint32)),
    jnp.where(escaped, length + _ESCAPE, zeros + 1),
  )


KINDS: dict[str, Kind] = {
  'omega': Kind(2**21 - 1, _omega_length, _omega_parts, _omega_read),
  'unary': Kind(2**16 - 1 + _ESCAPE, _unary_length, _unary_parts, _unary_read),
}
