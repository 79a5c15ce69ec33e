"""Codes of QSGD's integer levels: fixed width, or Elias streams.

A stream's length depends on the data, so its message has one size of a ladder.
The largest size is that of the fixed-width code: a worker whose stream would be
longer sends its levels in that code. So all levels always fit; QSGD has no
memory for a remainder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.codes.rounding import type_of
from gradsparse.sockets import Shape
from gradsparse.wire import elias
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
from gradsparse.wire import qsgd_codes
import jax
import jax.numpy as jnp

CODES = ('fixed', 'elias', 'elias_dense', 'elias_sparse')

# (Steps to an octave, octaves) of the ladder, from the top: steps of 2 % where
# dense codes lie, whatever the number of levels, and of 12 % below.
_STEPS = ((32, 3), (6, 7))


class LevelCode(NamedTuple):
  """A code of integer levels in [-s, s].

  Attributes:
    sizes: n -> the possible lengths of a message in words, smallest first. The
      last one holds any levels.
    encode: arrays of integers, n in all -> (uint32[sizes(n)[-1]], int32[] how
      many of these words must be sent).
    decode: (uint32[sizes(n)[-1]], shapes) -> levels of these shapes or
      `planar.Slabs` of them, of `type_of(s)`. It reads only the words that had
      to be sent.
    most: the most levels of a stream; more are sent in fixed width. None: no
      limit.
  """

  sizes: Callable[[int], tuple[int, ...]]
  encode: Callable[[Sequence[jax.Array]], tuple[jax.Array, jax.Array]]
  decode: Callable[[jax.Array, Sequence[Shape]], list[Any]]
  most: int | None = None


def _width(levels: int) -> int:
  """The bits of a level in [-s, s]."""
  return (2 * levels).bit_length()


def pack(signed: Sequence[jax.Array], levels: int) -> jax.Array:
  """Packs arrays of levels, ceil(log2(2 s + 1)) bits each.

  The layout is planar if that many bits divide a word, else back to back.
  """
  width = _width(levels)
  kind = fixed_width.narrowest(0, 2 * levels)
  codes = [
    platforms.narrowed(x.astype(jnp.int32) + levels, kind) for x in signed
  ]
  if 32 % width == 0:
    return planar.pack_each(codes, width)
  return fixed_width.pack(_flat(codes), width)


def unpack(words: jax.Array, shapes: Sequence[Shape], levels: int) -> list[Any]:
  """The levels that `pack` packed: of these shapes, or `planar.Slabs`."""
  width = _width(levels)
  if 32 % width == 0:
    raw = planar.unpack_each(words, shapes, width, in_slabs=True)
  else:
    count = sum(map(math.prod, shapes))
    words = words.reshape(-1)[: fixed_width.words(count, width)]
    raw = joining.split(fixed_width.unpack(words, count, width), shapes)
  kind = type_of(levels)
  return jax.tree.map(
    lambda x: platforms.narrowed(x.astype(jnp.int32) - levels, kind), raw
  )


def _flat(arrays: Sequence[jax.Array]) -> jax.Array:
  """The elements of all arrays, as a vector."""
  return joining.concat([x.reshape(-1) for x in arrays])


def fixed(levels: int) -> LevelCode:
  """Levels of fixed width: one message size."""

  def sizes(n):
    return (fixed_width.words(n, _width(levels)),)

  def encode(signed):
    words = pack(signed, levels)
    return words, jnp.int32(words.shape[0])

  return LevelCode(
    sizes, encode, lambda words, shapes: unpack(words, shapes, levels)
  )


def elias_stream(levels: int, sparse: bool, kind: str) -> LevelCode:
  """Elias codes: the dense code, or the sparse code with gaps.

  The first word says whether the levels follow as a stream or in fixed width.
  More levels than a stream can have are always sent in fixed width.

  Raises:
    ValueError: `levels` exceeds what the codes have bits for.
  """
  most = qsgd_codes.most_levels(levels, kind, sparse)
  make = qsgd_codes.encode_sparse if sparse else qsgd_codes.encode_dense
  read = qsgd_codes.decode_sparse if sparse else qsgd_codes.decode_dense
  length = qsgd_codes.sparse_words if sparse else qsgd_codes.dense_words

  plain = fixed(levels)

  def sizes(n):
    if n > most:
      return plain.sizes(n)
    # If all levels are zero, the sparse code is one word.
    least = 1 if sparse else qsgd_codes.dense_least(n, levels, kind)
    size = fixed_width.words(n, _width(levels))
    return ladder(1 + min(least, size), 1 + size)

  def encode(signed):
    if sum(x.size for x in signed) > most:
      return plain.encode(signed)
    signed = joining.concat_shared([x.reshape(-1) for x in signed])
    size = fixed_width.words(signed.shape[0], _width(levels))
    needed = length(signed.astype(jnp.int32), levels, kind)
    fits = needed <= size
    # A stream that does not fit is not written.
    words = jax.lax.cond(
      fits,
      lambda x: make(x.astype(jnp.int32), size, max_level=levels, kind=kind)[0],
      lambda x: pack([x], levels),
      signed,
    )
    flag = fits.astype(jnp.uint32)[None]
    used = jnp.where(fits, needed, size)
    return jnp.concatenate([flag, words]), 1 + used

  def decode(words, shapes):
    n = sum(map(math.prod, shapes))
    if n > most:
      return plain.decode(words, shapes)
    signed = jax.lax.cond(
      words[0] == 1,
      lambda words: platforms.narrowed(
        read(words, n, max_level=levels, kind=kind), type_of(levels)
      ),
      lambda words: unpack(words, [(n,)], levels)[0],
      words[1:],
    )
    return joining.split(signed, shapes)

  return LevelCode(sizes, encode, decode, most)


def ladder(least: int, most: int) -> tuple[int, ...]:
  """Sizes from `most` down in the steps of `_STEPS`, none below `least`."""
  sizes, size = {most}, float(most)
  for steps, octaves in _STEPS:
    for _ in range(steps * octaves):
      size /= 2 ** (1 / steps)
      sizes.add(max(least, math.ceil(size)))
  return tuple(sorted(sizes))


def level_code(
  code: str, levels: int, bucket_size: int, kind: str
) -> LevelCode:
  """A code by name.

  Args:
    code: 'fixed', 'elias_dense', 'elias_sparse', or 'elias': sparse where few
      levels leave most elements at zero (s^2 < d), dense otherwise.
    levels: s.
    bucket_size: d.
    kind: a key of `elias.KINDS`, such as 'omega' (the paper's).

  Raises:
    TypeError: a name is not text.
    ValueError: a name is unknown, or a code has too few bits for the levels.
  """
  arguments.one_of('code', code, CODES)
  arguments.one_of('elias', kind, elias.KINDS)
  if code == 'fixed':
    return fixed(levels)
  sparse = code == 'elias_sparse' or (
    code == 'elias' and levels * levels < bucket_size
  )
  return elias_stream(levels, sparse, kind)
