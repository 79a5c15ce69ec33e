"""How QSGD's integer levels travel: fixed width, or Elias streams.

A stream's length depends on the data, so its message takes one size of a
ladder. The last rung is always the fixed-width code, which holds anything:
QSGD has no memory, so nothing may overflow.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.wire import elias
from gradsparse.wire import fixed_width
from gradsparse.wire import qsgd_codes
from gradsparse.wire import streams
import jax
import jax.numpy as jnp

CODES = ('fixed', 'elias', 'elias_dense', 'elias_sparse')

# Words of a stream as fractions of the fixed-width code's.
_LADDER = (1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)


class LevelCode(NamedTuple):
  """A code of int32 levels in [-s, s].

  Attributes:
    rungs: n -> sizes in words; the last is the fixed-width code's.
    words: levels -> int32, words that the stream needs (block lengths apart),
      or None for a code of one size.
    encode: (levels, words) -> payload.
    decode: (payload, n, words) -> int32[n].
  """

  rungs: Callable[[int], tuple[int, ...]]
  words: Callable[[jax.Array], jax.Array] | None
  encode: Callable[[jax.Array, int], Any]
  decode: Callable[[Any, int, int], jax.Array]


def fixed(levels: int) -> LevelCode:
  """ceil(log2(2 s + 1)) bits each."""
  width = math.ceil(math.log2(2 * levels + 1))

  def encode(signed, words):
    del words
    return fixed_width.pack((signed + levels).astype(jnp.uint32), width)

  def decode(payload, n, words):
    del words
    raw = fixed_width.unpack(payload, n, width)
    return raw.astype(jnp.int32) - levels

  return LevelCode(
    lambda n: (fixed_width.words(n, width),), None, encode, decode
  )


def elias_stream(levels: int, sparse: bool, kind: str) -> LevelCode:
  """Elias codes: the dense code, or the sparse code with gaps.

  Raises:
    ValueError: a kind that cannot say what is asked of it.
  """
  if sparse and kind == 'unary':
    raise ValueError("elias='unary' cannot express the gaps of a sparse code")
  if elias.max_length(levels + 1, kind) + 1 > 32:
    raise ValueError(
      f'elias={kind!r} needs more than 32 bits for {levels} levels'
    )
  plain = fixed(levels)
  bits = qsgd_codes.sparse_bits if sparse else qsgd_codes.dense_bits

  def beside(n: int, words: int) -> int:
    """Words of the block lengths (and of the count) beside a stream."""
    symbols = qsgd_codes.nonzero_limit(n, words) if sparse else n
    return streams.offset_words(symbols) + (1 if sparse else 0)

  def rungs(n):
    (most,) = plain.rungs(n)
    # The dense code takes a bit even for a zero.
    least = 1 if sparse else math.ceil(n / 32)
    sizes = sorted({max(1, math.ceil(f * most)) for f in _LADDER})
    useful = [w for w in sizes if w >= least and w + beside(n, w) < most]
    return (*useful, most)

  def words(signed):
    return (bits(signed, kind) + jnp.uint32(31)) // 32

  def encode(signed, size):
    if size == rungs(signed.shape[0])[-1]:
      return plain.encode(signed, size)
    make = qsgd_codes.encode_sparse if sparse else qsgd_codes.encode_dense
    payload = make(signed, size, max_level=levels, kind=kind)
    return payload._replace(total_bits=jnp.zeros(0, jnp.uint32))

  def decode(payload, n, size):
    if size == rungs(n)[-1]:
      return plain.decode(payload, n, size)
    read = qsgd_codes.decode_sparse if sparse else qsgd_codes.decode_dense
    return read(payload, n, kind=kind)

  return LevelCode(rungs, words, encode, decode)


def level_code(
  code: str, levels: int, bucket_size: int, kind: str
) -> LevelCode:
  """A code by name.

  Args:
    code: 'fixed', 'elias_dense', 'elias_sparse', or 'elias': sparse where few
      levels leave most elements at zero (s^2 < d), dense otherwise.
    levels: s.
    bucket_size: d.
    kind: 'omega' (the paper's), 'gamma', 'delta' or 'unary'.

  Raises:
    TypeError: a name that is not text.
    ValueError: an unknown name.
  """
  arguments.one_of('code', code, CODES)
  arguments.one_of('elias', kind, elias.KINDS)
  if code == 'fixed':
    return fixed(levels)
  sparse = code == 'elias_sparse' or (
    code == 'elias' and levels * levels < bucket_size
  )
  return elias_stream(levels, sparse, kind)
