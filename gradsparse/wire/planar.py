"""Planar packing: each word holds elements that are far apart in a leaf.

A leaf is cut into as many equal, consecutive slabs as a word has fields. Word w
holds element w of every slab; that of slab j is in bits
`[j width, (j + 1) width)`. So packing shifts and combines whole slabs, in the
leaf's own layout, which is fast on every chip. Packing neighbours into one word
would need an array with a last axis of a few elements.

A field never crosses a word, so words of several workers may be summed as long
as no field overflows.

Large leaves that fill whole words come first, each packed separately. The
others follow in one vector, padded with zeros.

A vector of all leaves is cut in two parts, each packed separately. The head is
as many whole units of 32 * 1024 elements as there are, so that slabs are whole
registers of a TPU; the tail is the rest, padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp
import numpy as np

# Leaves with at least this many codes are packed separately, without a copy.
_LARGE = 1 << 14
# Lanes of a TPU's vector registers, and elements of a vector's unit.
LANES = 128
_UNIT = 32 * 8 * LANES


def pack_each(leaves: Sequence[jax.Array], width: int) -> jax.Array:
  """Packs the codes of several leaves.

  Args:
    leaves: integers or bool of any shapes, at least one; only the low `width`
      bits of each element are kept.
    width: bits of a code, in 1..32.

  Returns:
    uint32[ceil(n / (32 // width))], n the number of all codes.
  """
  alone, rest = _order([x.shape for x in leaves], width)
  # A barrier, or the loop that reads slabs would compute the codes.
  leaves = barriers.fusion_barrier(list(leaves))
  parts = [_packed(leaves[i], width) for i in alone]
  if rest:
    together = joining.concat([leaves[i].reshape(-1) for i in rest])
    missing = -together.shape[0] % (32 // width)
    parts.append(_packed(jnp.pad(together, (0, missing)), width))
  return joining.concat_few(parts)


def unpack_each(
  words: jax.Array, shapes: Sequence[tuple[int, ...]], width: int
) -> list[jax.Array]:
  """The codes that `pack_each` packed, of these shapes, as narrow integers."""
  alone, rest = _order(shapes, width)
  sizes = [math.prod(shape) for shape in shapes]
  fields = 32 // width
  lengths = [(sizes[i] // fields,) for i in alone]
  total = sum(sizes[i] for i in rest)
  if rest:
    lengths.append((-(-total // fields),))
  cuts = [shapes[i] for i in alone]
  if rest:
    cuts.append((lengths[-1][0] * fields,))
  parts = [
    _unpacked(own, shape, width)
    for own, shape in zip(joining.split(words, lengths), cuts, strict=True)
  ]
  parts = [x.reshape(cut) for x, cut in zip(parts, cuts, strict=True)]
  out = dict(zip(alone, parts, strict=False))
  if rest:
    own = joining.split(parts[-1], [shapes[i] for i in rest])
    out |= zip(rest, own, strict=True)
  return [out[i] for i in range(len(shapes))]


def head(size: int) -> int:
  """The number of elements in the head of a vector."""
  return size // _UNIT * _UNIT


def joined(vectors: Sequence[jax.Array]) -> list[jax.Array]:
  """Concatenates vectors, to a head and a tail; an empty part is left out."""
  left = head(sum(x.shape[0] for x in vectors))
  parts: list[list[jax.Array]] = [[], []]
  for x in vectors:
    cut = min(left, x.shape[0])
    for part, piece in zip(parts, (x[:cut], x[cut:]), strict=True):
      part += [piece] if piece.shape[0] else []
    left -= cut
  return [joining.concat(part) for part in parts if part]


def pack_parts(
  parts: Sequence[jax.Array], width: int, unit: int | None = None
) -> jax.Array:
  """Packs the codes of a vector.

  Args:
    parts: vectors of integers or bool, as `joined` returns them; only the low
      `width` bits of each element are kept.
    width: bits of a code, in 1..32.
    unit: the tail is padded to a multiple of this; None is the codes of a word.

  Returns:
    uint32[ceil(n / (32 // width))] for n codes, or more with a larger unit.
  """
  unit = unit or 32 // width
  out = []
  for x in parts:
    whole = x.shape[0] % _UNIT == 0
    x = x.reshape(-1, LANES) if whole else jnp.pad(x, (0, -x.shape[0] % unit))
    out.append(_packed(x, width))
  return joining.concat(out) if out else jnp.zeros(0, jnp.uint32)


def cut_parts(
  words: jax.Array, size: int, width: int
) -> tuple[jax.Array, jax.Array]:
  """The words of the head and those of the tail.

  Args:
    words: as of `pack_parts`.
    size: number of codes.
    width: bits of a code, a divisor of 32.
  """
  at = head(size) // 32 * width
  return words[:at], words[at:]


def unpack_head(words: jax.Array, width: int, columns: int) -> jax.Array:
  """The codes of a head, in rows.

  Args:
    words: uint32, the words of the head.
    width: bits of a code, 1 or `columns`.
    columns: a divisor of 32. It gives the shape, in which codes of several
      widths can be combined element by element.

  Returns:
    uint32[32 // columns, columns, rows, LANES].
  """
  lines = words.reshape(1, width, -1, LANES)
  shape = (32 // columns, columns, 1, 1)
  # XLA for CPUs would look constant shifts up, element by element.
  shift = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) * np.uint32(columns)
  if width < columns:
    shift += jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
  return (lines >> shift) & np.uint32(2**width - 1)


def unpack_tail(words: jax.Array, width: int) -> jax.Array:
  """The codes of a tail, uint32[codes of all its words]."""
  shape = (32 // width, 1)
  shift = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) * np.uint32(width)
  return ((words[None] >> shift) & np.uint32(2**width - 1)).reshape(-1)


def rows_of_head(
  words: jax.Array, rows: np.ndarray, width: int, size: int
) -> jax.Array:
  """The codes of some rows of LANES elements of a head.

  Args:
    words: uint32, the words of the head.
    rows: int[k], the numbers of the rows.
    width: bits of a code, a divisor of 32.
    size: number of codes in the head.

  Returns:
    uint32[k, LANES].
  """
  lines = size // LANES // (32 // width)  # of a slab
  own = words.reshape(-1, LANES)[jnp.asarray(rows % lines, jnp.int32)]
  shift = (rows // lines * width).astype(np.uint32)[:, None]
  return (own >> shift) & np.uint32(2**width - 1)


def _order(
  shapes: Sequence[tuple[int, ...]], width: int
) -> tuple[list[int], list[int]]:
  """Numbers of the leaves that are packed separately, and of the others."""
  alone: list[int] = []
  rest: list[int] = []
  for number, size in enumerate(map(math.prod, shapes)):
    fits = size >= _LARGE and size % (32 // width) == 0
    (alone if fits else rest).append(number)
  return alone, rest


def _slabs(shape: tuple[int, ...], fields: int) -> tuple[int, ...]:
  """The shape of a leaf cut into slabs, whole rows of it if possible."""
  rows, columns = math.prod(shape[:-1]), shape[-1]
  if len(shape) > 1 and rows % fields == 0:
    return fields, rows // fields, columns
  return fields, rows * columns // fields


def _packed(codes: jax.Array, width: int) -> jax.Array:
  slabs = codes.reshape(_slabs(codes.shape, 32 // width)).astype(jnp.uint32)
  slabs = (slabs & np.uint32(2**width - 1)) << _shifts(slabs, width)
  packed = jax.lax.reduce(slabs, np.uint32(0), jax.lax.bitwise_or, (0,))
  return packed.reshape(-1)


def _unpacked(
  words: jax.Array, shape: tuple[int, ...], width: int
) -> jax.Array:
  """The codes, in the shape of slabs."""
  fields, *slab = _slabs(shape, 32 // width)
  words = words.reshape(slab)
  codes = (words[None] >> _shifts(words[None], width)) & np.uint32(2**width - 1)
  return codes.astype(fixed_width.narrowest(0, 2**width - 1))


def _shifts(slabs: jax.Array, width: int) -> np.ndarray:
  """The first bit of each slab's field in a word."""
  shifts = np.arange(32 // width, dtype=np.uint32) * np.uint32(width)
  return shifts.reshape(-1, *[1] * (slabs.ndim - 1))
