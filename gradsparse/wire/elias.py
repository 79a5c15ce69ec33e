"""Elias codes: variable-length codes of the integers >= 1.

With b(v) the binary digits of v and L = floor(log2 v) + 1 their number:

| kind | code of v | 1 | 2 | 5 |
|---|---|---|---|---|
| `unary` | v - 1 zeros, a one; above 7: 7 zeros, omega(v-7) | 1 | 01 | 00001 |
| `gamma` | L - 1 zeros, b(v) | 1 | 010 | 00101 |
| `delta` | gamma(L), b(v) without its leading one | 1 | 0100 | 01101 |
| `omega` | b(..), b(L - 1), b(v), a zero | 0 | 100 | 101010 |

`omega` is QSGD's Elias(.), the recursive code: v is preceded by b(L - 1), that
by b of its own length less one, and so on down to 1, and a zero ends it.
`unary` is the shortest where small values prevail. It escapes to omega so that
a large value takes a few bits more than omega, and not as many as its size.

**Bit order.** A code is a number: read as binary digits, `length` of them, the
first digit sent is the most significant one. So `code(5, 'gamma')` is
(0b00101, 5).

Every code is two `parts` of at most 32 bits for values below 2**31. Where both
fit in 32 bits together, `code` joins them: up to `max_value(kind)`.

References:
  Peter Elias, "Universal codeword sets and representations of the integers",
  IEEE Trans. Information Theory 21(2), 1975. Alistarh et al., QSGD, arXiv
  1610.02132, section 3.1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

KINDS = ('omega', 'gamma', 'delta', 'unary')

# Zeros that begin a unary code's escape.
_ESCAPE = 7
# The largest value whose code has at most 32 bits.
_MAX_VALUE = {
  'omega': 2**21 - 1,
  'gamma': 2**16 - 1,
  'delta': 2**24 - 1,
  'unary': 2**16 - 1 + _ESCAPE,
}
_MAX_PARTS_VALUE = 2**31 - 1


def max_value(kind: str, *, parts: bool = False) -> int:
  """The largest value that `code` can express, or `parts` if asked.

  Args:
    kind: one of KINDS.
    parts: whether codes are sent as two parts.

  Returns:
    2**21 - 1 for omega, 2**16 - 1 for gamma, 2**24 - 1 for delta, 2**16 + 6
    for unary; with parts 2**31 - 1.

  Raises:
    ValueError: for an unknown kind.
  """
  check_kind(kind)
  return _MAX_PARTS_VALUE if parts else _MAX_VALUE[kind]


def max_length(value: int, kind: str) -> int:
  """Bits of the longest code of the values 1 to `value`.

  Args:
    value: the largest value that occurs, >= 1.
    kind: one of KINDS.

  Returns:
    The number of bits.

  Raises:
    ValueError: for an unknown kind, or a value < 1.

  >>> max_length(8, 'omega')
  7
  """
  check_kind(kind)
  if value < 1:
    raise ValueError(f'value must be >= 1, got {value}')
  digits = value.bit_length()
  if kind == 'unary':
    if value <= _ESCAPE:
      return value
    return _ESCAPE + max_length(value - _ESCAPE, 'omega')
  if kind == 'gamma':
    return 2 * digits - 1
  if kind == 'delta':
    return digits - 1 + 2 * digits.bit_length() - 1
  bits = 1
  while value > 1:
    bits += value.bit_length()
    value = value.bit_length() - 1
  return bits


def check_kind(kind: str) -> None:
  """Raises ValueError for a kind that is not among KINDS."""
  if kind not in KINDS:
    raise ValueError(f'kind must be one of {KINDS}, got {kind!r}')


def length(
  values: jax.Array, kind: str, largest: int | None = None
) -> jax.Array:
  """Bits of the codes, without making them.

  Args:
    values: uint32[...] or int32[...] in [0, 2**31); 0 has no code and takes no
      bits.
    kind: one of KINDS.
    largest: the largest value that occurs, if it is known: then codes are not
      looked at. None: it is not.

  Returns:
    int32[...].

  Raises:
    ValueError: for an unknown kind.
  """
  if largest is None:
    _, head_length, _, tail_length = parts(values, kind)
    return head_length + tail_length
  check_kind(kind)
  bits, before = jnp.zeros_like(values, jnp.int32), 0
  for value in _longer_from(largest):
    here = max_length(value, kind)
    if here > before:
      bits += jnp.where(values >= value, np.int32(here - before), 0)
    before = here
  return bits


def _longer_from(largest: int) -> list[int]:
  """Values up to the largest, all from which codes get longer among them."""
  powers = [1 << bit for bit in range(31)]
  values = {*range(1, _ESCAPE + 1), *powers, *(_ESCAPE + x for x in powers)}
  return sorted(value for value in values if value <= largest)


def code(values: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
  """Codes of integers as numbers of up to 32 digits, first-sent on top.

  Args:
    values: uint32[...] or int32[...] in [0, max_value(kind)]; 0 has no code
      and gets length 0. Larger values give wrong bits.
    kind: one of KINDS.

  Returns:
    (bits uint32[...], lengths int32[...]).

  Raises:
    ValueError: for an unknown kind.
  """
  head, head_length, tail, tail_length = parts(values, kind)
  # A tail of 32 bits has no head; a shift by 32 is not defined.
  shift = (tail_length & 31).astype(jnp.uint32)
  return (head << shift) | tail, head_length + tail_length


def parts(
  values: jax.Array, kind: str
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Codes of integers in two parts, the head to be sent before the tail.

  Args:
    values: uint32[...] or int32[...] in [0, 2**31); 0 has no code and gets
      length 0.
    kind: one of KINDS.

  Returns:
    (head uint32[...], head_length int32[...], tail uint32[...], tail_length
    int32[...]), both as numbers of up to 32 digits.

  Raises:
    ValueError: for an unknown kind.
  """
  check_kind(kind)
  value = values.astype(jnp.uint32)
  digits = _digits(value)
  zero = jnp.zeros_like(value)
  none = jnp.zeros_like(digits)
  if kind == 'unary':
    escaped = value > _ESCAPE
    head, head_length, tail, tail_length = parts(
      jnp.where(escaped, value - _ESCAPE, 0), 'omega'
    )
    return (
      head,
      jnp.where(escaped, head_length + _ESCAPE, 0),
      jnp.where(escaped, tail, jnp.minimum(value, 1)),
      jnp.where(escaped, tail_length, value.astype(jnp.int32)),
    )
  if kind == 'gamma':
    return zero, jnp.maximum(digits - 1, 0), value, digits
  if kind == 'delta':
    head = digits.astype(jnp.uint32)
    head_length = jnp.maximum(2 * _digits(head) - 1, 0)
    tail_length = jnp.maximum(digits - 1, 0)
    leading_one = np.uint32(1) << tail_length.astype(jnp.uint32)
    return head, head_length, value & (leading_one - 1), tail_length
  # Groups are prepended until one is 1. Below 2**31 there are at most three:
  # the number of digits less one is at most 30, 4, 2.
  head, head_length = zero, none
  group = jnp.maximum(digits - 1, 0)
  for _ in range(3):
    more = group > 1
    prepended = head | (
      group.astype(jnp.uint32) << head_length.astype(jnp.uint32)
    )
    group_digits = _digits(group.astype(jnp.uint32))
    head = jnp.where(more, prepended, head)
    head_length = jnp.where(more, head_length + group_digits, head_length)
    group = jnp.where(more, group_digits - 1, group)
  # The code of 1 is the final zero alone.
  tail = jnp.where(value > 1, value << 1, zero)
  tail_length = jnp.where(value > 1, digits + 1, jnp.minimum(digits, 1))
  return head, head_length, tail, tail_length


def read(
  window: jax.Array, kind: str, following: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
  """Reads the code that a window of a stream begins with.

  Args:
    window: uint32[...], the next 32 bits, the first of them on top.
    kind: one of KINDS.
    following: uint32[...], the 32 bits after those; needed only for values
      above `max_value(kind)`, whose codes are longer than the window.

  Returns:
    (values uint32[...], lengths int32[...] in bits). Bits that are no code
    give some value, and a length in [1, 95].

  Raises:
    ValueError: for an unknown kind.
  """
  check_kind(kind)
  if following is None:
    following = jnp.zeros_like(window)
  zeros = jax.lax.clz(window).astype(jnp.int32)
  if kind == 'unary':
    rest = _from(window, following, jnp.full_like(zeros, _ESCAPE))
    value, length = read(rest, 'omega', following << _ESCAPE)
    escaped = zeros >= _ESCAPE
    return (
      jnp.where(escaped, value + _ESCAPE, (zeros + 1).astype(jnp.uint32)),
      jnp.where(escaped, length + _ESCAPE, zeros + 1),
    )
  if kind == 'gamma':
    zeros = jnp.minimum(zeros, 31)
    rest = _from(window, following, zeros)
    return _first(rest, zeros + 1), 2 * zeros + 1
  if kind == 'delta':
    # Lengths have at most six digits, so five zeros before them.
    zeros = jnp.minimum(zeros, 5)
    digits = _first(_from(window, following, zeros), zeros + 1)
    digits = jnp.clip(digits.astype(jnp.int32), 1, 32)
    rest = _from(window, following, 2 * zeros + 1)
    # The leading one is not sent: put it back before the first digit.
    rest = (rest >> 1) | np.uint32(1 << 31)
    return _first(rest, digits), 2 * zeros + digits
  value = jnp.ones_like(window)
  position = jnp.zeros_like(zeros)
  more = jnp.ones_like(window, dtype=bool)
  for _ in range(4):
    rest = _from(window, following, position)
    # A group of 32 or more is the last: what it could announce has 33 digits.
    more = more & (rest >> 31 == 1) & (value < 32)
    digits = (value & 31).astype(jnp.int32) + 1
    value = jnp.where(more, _first(rest, digits), value)
    position = jnp.where(more, position + digits, position)
  return value, position + 1


def _digits(value: jax.Array) -> jax.Array:
  """How many binary digits a uint32 has, int32; 0 has none."""
  return 32 - jax.lax.clz(value).astype(jnp.int32)


def _from(
  window: jax.Array, following: jax.Array, start: jax.Array
) -> jax.Array:
  """The 32 bits that begin at bit `start` in [0, 31] of two windows."""
  start = (start & 31).astype(jnp.uint32)
  return (window << start) | ((following >> 1) >> (31 - start))


def _first(window: jax.Array, digits: jax.Array) -> jax.Array:
  """The first `digits` in [1, 32] bits of a window, as a number."""
  return window >> ((32 - digits) & 31).astype(jnp.uint32)
