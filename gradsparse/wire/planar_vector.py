"""Planar packing of a vector of all leaves.

The vector is cut in two parts, each packed separately into planar words (see
planar.py). The head is as many whole units of 32 * 1024 elements as there are,
so that slabs are whole registers of a TPU; the tail is the rest, padded with
zeros.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> parts = wire.planar_vector.joined([jnp.array([1, 2]), jnp.array([3, 4])])
>>> words = wire.planar_vector.pack_parts(parts, width=8)
>>> _, tail = wire.planar_vector.cut_parts(words, size=4, width=8)
>>> print(words.shape, wire.planar_vector.unpack_tail(tail, width=8))
(1,) [1 2 3 4]
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.backend import joining
from gradsparse.backend.storage import LANES
from gradsparse.backend.storage import TILE
from gradsparse.wire import planar
import jax
import jax.numpy as jnp
import numpy as np

_UNIT = 32 * TILE  # elements of a vector's unit


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
    if x.shape[0] % _UNIT == 0:
      slabs = x.reshape(1, 32 // width, -1, LANES)
    else:
      x = jnp.pad(x, (0, -x.shape[0] % unit))
      slabs = x.reshape(1, 32 // width, -1)
    out.append(planar.packed(slabs, width))
  return joining.concat(out) if out else jnp.zeros(0, jnp.uint32)


def cut_parts(
  words: jax.Array, size: int, width: int
) -> tuple[jax.Array, jax.Array]:
  """The words of the head and those of the tail.

  Args:
    words: the result of `pack_parts`.
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
  # No constant: XLA may look constants up, element by element.
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
