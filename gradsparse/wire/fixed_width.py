"""Fixed-width bit packing: codes of 1 to 32 bits, back to back in words.

Little-endian: code i occupies bits `[i width, (i + 1) width)` of the message,
and bit b of the message is bit `b mod 32` of word `b // 32`. 32 codes fill
exactly `width` words, so a group of 32 codes is packed by tables that depend
on the width only: there is no scatter and no loop at run time, and the size of
the program does not depend on the width.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> words = wire.fixed_width.pack(jnp.array([1, 2, 3]), width=8)
>>> print([f'{word:08x}' for word in words.tolist()])
['00030201']
>>> print(wire.fixed_width.unpack(words, count=3, width=8))
[1 2 3]
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def narrowest(least: int, most: int) -> Any:
  """The narrowest integer type, unsigned if possible.

  Args:
    least: the smallest number that it must hold, -2**31 or more.
    most: the largest one, less than 2**31.
  """
  signed = jnp.int8, jnp.int16, jnp.int32
  unsigned = jnp.uint8, jnp.uint16, jnp.uint32
  types = [jnp.iinfo(t) for t in (signed if least < 0 else unsigned)]
  return next(t.dtype for t in types if t.min <= least and most <= t.max)


def words(count: int, width: int) -> int:
  """Words that `count` codes take: `ceil(count width / 32)`.

  Args:
    count: number of codes, >= 0.
    width: bits of a code, in [1, 32].

  Returns:
    The number of 32-bit words.

  Raises:
    ValueError: count or width is out of range.

  >>> words(25_557, 9)
  7188
  """
  _check(count, width)
  return _ceil_div(count * width, 32)


def pack(codes: jax.Array, width: int) -> jax.Array:
  """Packs codes into words.

  Args:
    codes: uint32[count] (other integers and bool are cast); only the low
      `width` bits of each are kept.
    width: bits of a code, in [1, 32].

  Returns:
    uint32[words(count, width)]; the bits after the last code are zero.

  Raises:
    ValueError: width is out of range.
  """
  (count,) = codes.shape
  _check(count, width)
  codes = codes.astype(jnp.uint32)
  if width == 32:
    return codes
  codes = codes & _mask(width)
  if 32 % width == 0:
    per_word = 32 // width
    shifts = _shifts(width)
    rows = _rows(codes, per_word)
    # The bits are disjoint, so the sum is the bitwise or.
    return jnp.sum(rows << shifts, axis=-1, dtype=jnp.uint32)
  source, *tables = _pack_tables(width)
  left, right, keep = (table[None] for table in tables)
  pieces = _rows(codes, 32)[:, source]  # [groups, width, codes of a word]
  pieces = ((pieces << left) >> right) & keep
  packed = jnp.sum(pieces, axis=-1, dtype=jnp.uint32).reshape(-1)
  return packed[: _ceil_div(count * width, 32)]


def unpack(words: jax.Array, count: int, width: int) -> jax.Array:
  """The codes that `pack` packed.

  Args:
    words: uint32[words(count, width)].
    count: number of codes.
    width: bits of a code, in [1, 32].

  Returns:
    uint32[count].

  Raises:
    ValueError: count or width is out of range, or the number of words is
      wrong.
  """
  _check(count, width)
  size = _ceil_div(count * width, 32)
  if words.shape != (size,):
    raise ValueError(
      f'words must have shape ({size},) for {count} codes of {width} bits, got '
      f'{words.shape}'
    )
  if width == 32:
    return words
  if 32 % width == 0:
    shifts = _shifts(width)
    codes = (words[:, None] >> shifts) & _mask(width)
    return codes.reshape(-1)[:count]
  first_bit = np.arange(32) * width
  low = first_bit // 32
  # A code that ends in its first word reads that word twice; the mask drops the
  # second read.
  high = np.minimum(low + 1, width - 1)
  shift = (first_bit % 32).astype(np.uint32)[None]
  rows = _rows(words, width)
  # Two shifts of at most 31 bits, as a shift by 32 is undefined.
  codes = (rows[:, low] >> shift) | ((rows[:, high] << 1) << (31 - shift))
  return (codes & _mask(width)).reshape(-1)[:count]


def _check(count: int, width: int) -> None:
  if not 1 <= width <= 32:
    raise ValueError(f'width must be in [1, 32], got {width}')
  if count < 0:
    raise ValueError(f'count must be >= 0, got {count}')


def _ceil_div(a: int, b: int) -> int:
  return -(-a // b)


def _shifts(width: int) -> np.ndarray:
  """uint32[1, 32 / width]: the first bit of each code in a word."""
  return (np.arange(32 // width, dtype=np.uint32) * np.uint32(width))[None]


def _mask(width: int) -> np.uint32:
  return np.uint32(2**width - 1)


def _rows(x: jax.Array, length: int) -> jax.Array:
  """Reshapes x to rows of `length`, padded with zeros."""
  missing = -x.shape[0] % length
  if missing:  # padding would copy
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, length)


def _pack_tables(width: int) -> tuple[np.ndarray, ...]:
  """The codes of a group of 32 that touch word j, and their bits in it.

  Returns:
    Four arrays [width, m], m the most codes that touch one word: the code's
    number, its shift to the left, its shift to the right, and a mask that is
    zero where word j has fewer than m codes.
  """
  word = np.arange(width)
  first = 32 * word // width
  last = (32 * word + 31) // width
  code = first[:, None] + np.arange(np.max(last - first) + 1)
  shift = code * width - 32 * word[:, None]
  present = code <= last[:, None]
  left = np.where(present, np.maximum(shift, 0), 0).astype(np.uint32)
  right = np.where(present, np.maximum(-shift, 0), 0).astype(np.uint32)
  keep = np.where(present, 2**32 - 1, 0).astype(np.uint32)
  return np.minimum(code, 31), left, right, keep


def of_floats(x: jax.Array) -> jax.Array:
  """float32 as uint32 of the same shape, bit for bit."""
  return jax.lax.bitcast_convert_type(x, jnp.uint32)


def floats_of(words: jax.Array) -> jax.Array:
  """Inverse of `of_floats`."""
  return jax.lax.bitcast_convert_type(words, jnp.float32)


def pack_bfloat16(x: jax.Array) -> jax.Array:
  """Packs the upper halves of float32[n], those of bfloat16, two a word."""
  return pack(of_floats(x) >> 16, 16)


def unpack_bfloat16(words: jax.Array, count: int) -> jax.Array:
  """Inverse of `pack_bfloat16`: float32 with zeros as lower halves."""
  return floats_of(unpack(words, count, 16) << 16)
