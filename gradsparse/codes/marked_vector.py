"""All leaves' marks and codes, before the size of the message is known.

A leaf is packed by itself, in the loop that computes it: joined bytes take
longer. Where arrays are stored in tiles (`platforms.stores_tiles`) all leaves
are packed at once, in the planar layout of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import reductions
from gradsparse.codes.sparse_values import Entries
from gradsparse.sockets import Space
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
from gradsparse.wire import planar_vector
import jax
import jax.numpy as jnp
import numpy as np

# A message has a bitmap if it has room for at least one element in this many.
# At that density the bitmap takes 8 bits an entry, Elias-Fano 5.
_BITMAP_FROM = 8
# A word holds few of the wider codes, which are as fast to gather one by one.
_NARROW = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CodedVector:
  """The codes of all leaves, one after the other, in planar words.

  Attributes:
    scales: of all leaves, as in `sparse_values.Entries`.
    marks: uint32 bitmap, which elements are sent, packed by
      `planar_vector.pack_parts`.
    codes: uint32, codes of all elements, packed likewise. If slots <
      space.size, codes of unmarked elements are zero, and the tail fills whole
      words of the bitmap.
    space: the leaves.
    width: bits of a code.
    slots: the number of codes in a message: space.size if it has those of all
      elements, else the most marked elements that it can hold.
  """

  scales: list[jax.Array]
  marks: jax.Array
  codes: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})
  width: int = dataclasses.field(metadata={'static': True})
  slots: int = dataclasses.field(metadata={'static': True})


@dataclasses.dataclass(frozen=True)
class Joined:
  """The marks and codes of all leaves, one after the other, not yet packed.

  Attributes:
    scales: as in `CodedVector`.
    marks: bool, the parts of a vector, made by `planar_vector.joined`.
    codes: unsigned integers, likewise.
    space: the leaves.
    width: bits of a code.
  """

  scales: list[jax.Array]
  marks: list[jax.Array]
  codes: list[jax.Array]
  space: Space
  width: int

  @staticmethod
  def of(
    scales: list[jax.Array],
    marks: Sequence[jax.Array],
    codes: Sequence[jax.Array],
    space: Space,
    width: int,
  ) -> Joined:
    """Concatenates leaves: marks and codes of each, leaf-shaped."""
    return Joined(
      scales,
      planar_vector.joined([x.reshape(-1) for x in marks]),
      planar_vector.joined([x.reshape(-1) for x in codes]),
      space,
      width,
    )

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return reductions.count(self.marks)

  def at_most(
    self, slots: int, first: jax.Array | None = None
  ) -> CodedVector | Entries:
    """The marked elements, in a message of this size.

    Args:
      slots: the most elements that the message holds.
      first: if more are marked, the number of the marked element to begin with;
        the selection wraps around. None: all fit.
    """
    size, width = self.space.size, self.width
    if _single(slots, size, width):
      return self.entries(slots, first)
    marks, codes, unit = self.marks, self.codes, None
    if slots < size:
      if first is not None:
        words = bitmap.window(self._bitmap(), slots, first)
        marks, begin = [], 0
        for x in self.marks:
          own = words[begin // 32 : (begin + x.shape[0] + 31) // 32]
          marks.append(bitmap.unpack(own, x.shape[0]))
          begin += x.shape[0]
      both = zip(codes, marks, strict=True)
      codes, unit = [jnp.where(m, x, 0) for x, m in both], 32
    return CodedVector(
      self.scales,
      planar_vector.pack_parts(marks, 1),
      planar_vector.pack_parts(codes, width, unit),
      self.space,
      width,
      slots,
    )

  def entries(self, slots: int, first: jax.Array | None = None) -> Entries:
    """The marked elements, each with an index; arguments as for `at_most`."""
    size = self.space.size
    places = bitmap.positions(
      self._bitmap(), slots, 0 if first is None else first
    )
    indices = jnp.minimum(places, size)
    if first is not None:
      indices = jnp.sort(indices)
    codes, begin = jnp.zeros(slots, jnp.uint32), 0
    for x in self.codes:
      own = x.at[indices - begin].get(
        mode='fill', fill_value=0, wrap_negative_indices=False
      )
      codes |= own.astype(jnp.uint32)
      begin += x.shape[0]
    return Entries(
      self.scales, indices, codes, Space.at_most(slots, self.space.shapes)
    )

  def _bitmap(self) -> jax.Array:
    """The bitmap whose bits are in the order of the elements."""
    if not self.marks:
      return jnp.zeros(0, jnp.uint32)
    return joining.concat([bitmap.pack(x) for x in self.marks])


@dataclasses.dataclass(frozen=True)
class PackedLeaves:
  """The marks and codes of all leaves, as CPUs and GPUs keep them.

  It has the interface of `Joined`. Each leaf is padded to a multiple of 32
  elements, so that it begins with a word.

  Attributes:
    scales: as in `CodedVector`.
    marks: uint32, the bitmaps of all leaves, made by `pack_leaf`.
    codes: unsigned integers, the codes of all leaves, likewise.
    space: the leaves.
    width: bits of a code.
  """

  scales: list[jax.Array]
  marks: jax.Array
  codes: jax.Array
  space: Space
  width: int

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return bitmap.count(self.marks)

  def at_most(
    self, slots: int, first: jax.Array | None = None
  ) -> CodedVector | Entries:
    """The marked elements, in a message of this size.

    Args:
      slots: see `Joined.at_most`.
      first: see `Joined.at_most`.
    """
    if _single(slots, self.space.size, self.width):
      return self.entries(slots, first)
    # All at once: XLA would compile a loop for each leaf.
    padded = self._padded()
    marks = bitmap.unpack(self.marks, padded.size)
    codes = self.codes
    if _packs(self.width):
      codes = fixed_width.unpack(codes, padded.size, self.width)
    both = barriers.fusion_barrier((marks, codes))
    # Leaves of whole words are one piece with the leaf behind them.
    begin, begins, shapes = 0, [], []
    for start, size in zip(padded.offsets, self.space.sizes, strict=False):
      if size % 32 or start + size == padded.size:
        begins.append(begin)
        shapes.append((start + size - begin,))
        begin = start + 32 * _lines(size)
    at = barriers.hidden_numbers(begins, self.marks)
    own = [joining.split(x, shapes, at) for x in both]
    joined = Joined.of(self.scales, own[0], own[1], self.space, self.width)
    return joined.at_most(slots, first)

  def entries(self, slots: int, first: jax.Array | None = None) -> Entries:
    """The marked elements, each with an index; arguments as for `at_most`."""
    space, width, padded = self.space, self.width, self._padded()
    places = bitmap.positions(self.marks, slots, 0 if first is None else first)
    if first is not None:
      places = jnp.sort(places)
    # Elements of padding before each leaf.
    before = np.subtract(padded.offsets, space.offsets)[:-1]
    before = jnp.asarray(before, jnp.int32)
    indices = places - before[padded.leaf_of(places)]
    each = 32 // width if _packs(width) else 1
    codes = self.codes.at[places // each].get(mode='fill', fill_value=0)
    if each > 1:
      shift = (places % each).astype(jnp.uint32) * np.uint32(width)
      codes = (codes >> shift) & np.uint32(2**width - 1)
    return Entries(
      self.scales,
      jnp.where(places < padded.size, indices, space.size),
      codes.astype(jnp.uint32),
      Space.at_most(slots, space.shapes),
    )

  def _padded(self) -> Space:
    """The leaves with their padding."""
    return Space.whole([(32 * _lines(size),) for size in self.space.sizes])


def pack_leaf(codes: jax.Array, width: int) -> jax.Array:
  """The codes of a leaf, as `PackedLeaves` has them.

  Args:
    codes: unsigned integers or bool, leaf-shaped.
    width: bits of a code.

  Returns:
    The vector of all codes, padded with zeros to a multiple of 32. Codes of at
    most 8 bits that fill whole words are packed, uint32; others keep their
    dtype.
  """
  lines, codes = _lines(codes.size), codes.reshape(-1)
  if not _packs(width):
    return jnp.pad(codes, (0, 32 * lines - codes.shape[0]))
  words = fixed_width.pack(codes, width)
  return jnp.pad(words, (0, width * lines - words.shape[0]))


def unpack_leaf(
  kept: jax.Array, shape: tuple[int, ...], width: int
) -> jax.Array:
  """The codes that `pack_leaf` packed, unsigned integers of this shape."""
  size = math.prod(shape)
  if _packs(width):
    words = kept[: fixed_width.words(size, width)]
    return fixed_width.unpack(words, size, width).reshape(shape)
  return kept[:size].reshape(shape)


def _lines(size: int) -> int:
  """The number of groups of 32 elements."""
  return -(-size // 32)


def _packs(width: int) -> bool:
  """Whether `pack_leaf` packs such codes."""
  return width <= _NARROW and 32 % width == 0


def _single(slots: int, size: int, width: int) -> bool:
  """Whether a message has an index for each element that it sends."""
  narrow = width <= _NARROW and slots * _BITMAP_FROM >= size
  return slots < size and not narrow
