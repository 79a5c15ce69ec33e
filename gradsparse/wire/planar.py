"""Planar packing: each word holds elements that are far apart in a leaf.

The rows of a leaf (..., rows, columns) are cut into as many equal, consecutive
slabs as a word has fields. Word w of a leaf holds element w of every slab; that
of slab j is in bits `[j width, (j + 1) width)`. So packing shifts and combines
whole slabs, in the leaf's own layout, which is fast on every chip. Packing
neighbours into one word would need an array with a last axis of a few elements.

A slab of eight or more rows has a multiple of eight, as many as a TPU's
registers have. The rows that are left over, and the leaves that are small or
have too few rows, follow in one vector, which is padded with zeros and cut into
slabs in the same way.

A field never crosses a word, so words of several workers may be summed as long
as no field overflows.

>>> from gradsparse.extend import wire
>>> import jax.numpy as jnp
>>> leaves = [jnp.array([1, 2]), jnp.array([[3]])]
>>> words = wire.planar.pack_each(leaves, width=8)
>>> print(words.shape, *wire.planar.unpack_each(words, [(2,), (1, 1)], width=8))
(1,) [1 2] [[3]]
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend.storage import SUBLANES
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp
import numpy as np


class Slabs(NamedTuple):
  """A leaf whose slabs are an axis; XLA would write out the joined leaf.

  Attributes:
    filled: of shape [blocks, fields, rows of a slab, columns]; the axes of the
      leaf before its last two are blocks.
    rest: of shape [blocks, rows, columns], the rows that are left over.
  """

  filled: jax.Array
  rest: jax.Array

  def cut(self, leaf: jax.Array) -> Slabs:
    """Cuts an array [blocks, rows, ...] by its rows in the same way.

    Args:
      leaf: of as many rows, and any other axes.
    """
    _, fields, height, _ = self.filled.shape
    whole = fields * height
    filled = leaf[:, :whole].reshape(-1, fields, height, *leaf.shape[2:])
    return Slabs(filled, leaf[:, whole:])

  def joined(self, shape: tuple[int, ...]) -> jax.Array:
    """The leaf, of its shape."""
    # Barriers keep the reshape out of the computation of the slabs, and out of
    # that of the leaf's readers.
    filled, rest = jax.lax.optimization_barrier(self)
    leaf = filled.reshape(filled.shape[0], -1, filled.shape[-1])
    if rest.size:
      leaf = jnp.concatenate([leaf, rest], axis=1)
    return jax.lax.optimization_barrier(leaf.reshape(shape))


def pack_each(leaves: Sequence[jax.Array], width: int) -> jax.Array:
  """Packs the codes of several leaves.

  Args:
    leaves: integers or bool of any shapes, at least one; only the low `width`
      bits of each element are kept.
    width: bits of a code, in 1..32.

  Returns:
    uint32[ceil(n / (32 // width))], n the number of all codes.
  """
  fields = 32 // width
  # A barrier, or the loop that reads slabs would compute the codes.
  leaves = barriers.fusion_barrier(list(leaves))
  parts, rest = [], []
  for leaf in leaves:
    height = _height(leaf.shape, fields)
    if height:
      blocks = leaf.reshape(-1, *leaf.shape[-2:])
      whole = fields * height
      slabs = blocks[:, :whole].reshape(-1, fields, height, leaf.shape[-1])
      parts.append(packed(slabs, width))
      leaf = blocks[:, whole:]
    rest.append(leaf.reshape(-1))
  together = joining.concat([x for x in rest if x.size] or rest[:1])
  missing = -together.shape[0] % fields
  together = jnp.pad(together, (0, missing)).reshape(1, fields, -1)
  parts.append(packed(together, width))
  return joining.concat_few([x for x in parts if x.size] or parts[:1])


def unpack_each(
  words: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  width: int,
  *,
  in_slabs: bool = False,
) -> list[Any]:
  """The codes that `pack_each` packed, of these shapes, as narrow integers.

  Args:
    words: uint32, the result of `pack_each`, and perhaps more words; in rows
      as well (`joining.split`).
    shapes: of the leaves.
    width: bits of a code.
    in_slabs: whether leaves that have slabs are returned as `Slabs` where that
      is faster: TPUs would write out the words once for each field, in the
      shape of the leaf.
  """
  fields = 32 // width
  slabs: list[tuple[int, ...]] = []
  rests: list[tuple[int, ...]] = []
  for shape in shapes:
    height = _height(shape, fields)
    if height:
      *_, rows, columns = shape
      blocks = math.prod(shape[:-2])
      slabs.append((blocks, height, columns))
      rests.append((blocks, rows - fields * height, columns))
    else:
      slabs.append((0,))
      rests.append(shape)
  left = sum(map(math.prod, rests))
  *own, last = joining.split(words, [*slabs, (1, -(-left // fields))])
  both = zip(
    shapes,
    own,
    joining.split(_unpacked(last, width).reshape(-1), rests),
    strict=True,
  )
  out: list[Any] = []
  for shape, part, rest in both:
    if part.size:
      codes = _unpacked(part, width)
      if in_slabs and platforms.stores_tiles():
        out.append(Slabs(codes, rest))
        continue
      codes = codes.reshape(codes.shape[0], -1, codes.shape[-1])
      rest = jnp.concatenate([codes, rest], axis=1) if rest.size else codes
    out.append(rest.reshape(shape))
  return out


def matrices(leaves: Sequence[jax.Array]) -> list[jax.Array]:
  """Leaves of three or more axes as matrices, of which more rows make slabs."""
  return [x.reshape(matrix(x.shape)) for x in leaves]


def matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
  """The shape of a leaf whose axes before the last are one."""
  if len(shape) < 3:
    return shape
  return math.prod(shape[:-1]), shape[-1]


def _height(shape: tuple[int, ...], fields: int) -> int:
  """The rows of a leaf's slabs; 0 if it has none of its own."""
  if len(shape) < 2 or math.prod(shape) < joining.SMALL:
    return 0
  rows = shape[-2] // fields
  return rows if rows < SUBLANES else rows // SUBLANES * SUBLANES


def packed(slabs: jax.Array, width: int) -> jax.Array:
  """The words of slabs [blocks, fields, ...], as a vector."""
  shifts = _shifts(slabs.ndim, width)
  if slabs.dtype == bool:
    # XLA for TPUs would write converted bits out, four bytes each.
    fields = jnp.where(slabs, np.uint32(1) << shifts, np.uint32(0))
  else:
    fields = (slabs.astype(jnp.uint32) & np.uint32(2**width - 1)) << shifts
  words = jax.lax.reduce(fields, np.uint32(0), jax.lax.bitwise_or, (1,))
  return words.reshape(-1)


def _unpacked(words: jax.Array, width: int) -> jax.Array:
  """The slabs [blocks, fields, ...] of words [blocks, ...]."""
  codes = words[:, None] >> _shifts(words.ndim + 1, width)
  codes = codes & np.uint32(2**width - 1)
  return platforms.narrowed(codes, fixed_width.narrowest(0, 2**width - 1))


def _shifts(axes: int, width: int) -> jax.Array:
  """The first bit of each slab's field in a word, along the second axis."""
  # No constant: XLA may look constants up, element by element.
  shape = (1, 32 // width, *[1] * (axes - 2))
  return jax.lax.broadcasted_iota(jnp.uint32, shape, 1) * np.uint32(width)
