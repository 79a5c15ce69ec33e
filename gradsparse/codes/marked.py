"""Codes of all elements, made before it is known how many are sent.

A rule marks the elements to send. Their number decides the size of the message,
so all elements are rounded and coded first, leaf by leaf. The delivered values
are those of these codes, whatever the message's size. A large message has a
bitmap and the codes of the marked elements: single indices would take more
bits, or far more time. The largest message has the codes of all elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import reductions
from gradsparse.codes import sparse_values
from gradsparse.codes.sparse_values import Entries
from gradsparse.codes.value_codes import ValueCode
from gradsparse.sockets import Space
from gradsparse.sockets import deliveries
from gradsparse.sockets.deliveries import Delivered
from gradsparse.sockets.deliveries import Full
from gradsparse.wire import bitmap
from gradsparse.wire import compaction
from gradsparse.wire import fixed_width
from gradsparse.wire import planar_vector
import jax
import jax.numpy as jnp

# A message has a bitmap if it has room for at least one element in this many.
# At that density the bitmap takes 8 bits an entry, Elias-Fano 5.
_BITMAP_FROM = 8
# A word holds few of the wider codes, which are as fast to gather one by one.
_NARROW = 8


class Words(NamedTuple):
  """A message.

  Attributes:
    scales: uint32, the scales of all leaves.
    marks: uint32, which elements are sent.
    codes: uint32, the codes of all elements, or of those that are sent.
  """

  scales: jax.Array
  marks: jax.Array
  codes: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CodedVector:
  """The codes of all leaves, one after the other, in planar words.

  Attributes:
    scales: of all leaves, as in `sparse_values.Entries`.
    marks: uint32 bitmap, which elements are sent, as of
      `planar_vector.pack_parts`.
    codes: uint32, codes of all elements, likewise. If slots < space.size, those
      of unmarked elements are zero, and the tail is whole words of the bitmap.
    space: the leaves.
    width: bits of a code.
    slots: how many codes a message holds: space.size for those of all elements,
      else the most marked elements.
  """

  scales: list[jax.Array]
  marks: jax.Array
  codes: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})
  width: int = dataclasses.field(metadata={'static': True})
  slots: int = dataclasses.field(metadata={'static': True})


@dataclasses.dataclass(frozen=True)
class Joined:
  """The codes of all leaves, one after the other, before they are packed.

  Attributes:
    scales: as in `CodedVector`.
    marks: bool, the parts of a vector, as of `planar_vector.joined`.
    codes: unsigned integers, likewise.
    space: the leaves.
    width: bits of a code.
  """

  scales: list[jax.Array]
  marks: list[jax.Array]
  codes: list[jax.Array]
  space: Space
  width: int

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
    narrow = width <= _NARROW and slots * _BITMAP_FROM >= size
    if slots < size and not narrow:
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
    """The marked elements, with an index each.

    Args:
      slots: see `at_most`.
      first: see `at_most`.
    """
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


class Coded:
  """The coded elements of several leaves, and which of them are sent.

  It has the interface of `Sent` that memories use.

  Args:
    code: of the values.
    scales: of all leaves.
    marks: bool, leaf-shaped.
    codes: unsigned integers, leaf-shaped.
  """

  def __init__(
    self,
    code: ValueCode,
    scales: list[jax.Array],
    marks: Sequence[jax.Array],
    codes: Sequence[jax.Array],
  ):
    self._code = code
    self._scales = scales
    self._marks = list(marks)
    self._codes = list(codes)

  def joined(self) -> Joined:
    """All leaves, concatenated."""
    return Joined(
      self._scales,
      planar_vector.joined([x.reshape(-1) for x in self._marks]),
      planar_vector.joined([x.reshape(-1) for x in self._codes]),
      Space.whole([x.shape for x in self._marks]),
      self._code.width,
    )

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return reductions.count(self._marks)

  def only_if(self, arrived: jax.Array) -> Coded:
    """The same marks if the message arrived, else none."""
    marks = [x & arrived for x in self._marks]
    return Coded(self._code, self._scales, marks, self._codes)

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """The delivered values of each leaf, dense."""
    own = _of_each(self._scales, len(self._marks))
    each = zip(self._marks, self._codes, own, strict=True)
    return deliveries.joined(
      [
        Full(jnp.where(marks, _decoded(self._code, codes, top), 0.0), marks)
        for marks, codes, top in each
      ],
      runs,
    )


# (values of each leaf and which of them to send, context) -> Coded.
Mark = Callable[[Sequence[tuple[jax.Array, jax.Array]], Any], Coded]


def coded(
  code: ValueCode,
  leaves: Sequence[tuple[jax.Array, jax.Array]],
  key: jax.Array,
) -> Coded:
  """Rounds and codes the elements of several leaves.

  Args:
    code: of the values.
    leaves: for each leaf, the values and which of them to send (bool). A value
      too small for the code, compared with the largest, is not sent.
    key: PRNG key of the draws.
  """
  scales = [
    jnp.stack([reductions.top(jnp.where(wanted, x, 0)) for x, wanted in own])
    for own in zip(
      *([(x, wanted) for x in code.scales(v)] for v, wanted in leaves),
      strict=True,
    )
  ]
  numbers: Sequence[int | jax.Array] = range(len(leaves))
  if code.round is not None:
    numbers = barriers.hidden_numbers(
      range(len(leaves)), jax.random.key_data(key)
    )
  marks, codes = [], []
  narrow = fixed_width.narrowest(0, min(2**code.width, 2**31) - 1)
  for (values, wanted), own, number in zip(
    leaves, _of_each(scales, len(leaves)), numbers, strict=True
  ):
    if code.round is not None:
      values, kept = code.round(values, own, jax.random.fold_in(key, number))
      wanted = wanted if kept is None else wanted & kept
    marks.append(wanted)
    codes.append(code.encode(values, own).astype(narrow))
  return Coded(code, scales, marks, codes)


def pack(code: ValueCode, all_: CodedVector) -> Words:
  """Packs the marked elements into words."""
  scales, codes = sparse_values.pack_scales(code, all_.scales), all_.codes
  if all_.slots < all_.space.size:
    codes = compaction.compress(
      codes, all_.marks, all_.space.size, all_.slots, code.width
    )
  return Words(scales, all_.marks, codes)


def unpack(code: ValueCode, words: Words, like: CodedVector) -> CodedVector:
  """Unpacks words; `like` gives the leaves and the size of the message."""
  size = like.space.size
  scales, _ = sparse_values.unpack_scales(
    code, words.scales, len(like.space.shapes)
  )
  codes = words.codes
  if like.slots < size:
    # A barrier, or each reader would expand a word for each element.
    codes = barriers.fusion_barrier(
      compaction.expand(codes, words.marks, size, code.width)
    )
  return dataclasses.replace(
    like, scales=scales, marks=words.marks, codes=codes
  )


def _decoded(
  code: ValueCode, codes: jax.Array, own: list[jax.Array]
) -> jax.Array:
  return code.decode(codes.astype(jnp.uint32), own)


def _of_each(tops: list[jax.Array], leaves: int) -> list[list[jax.Array]]:
  """The scales of each leaf, scalars."""
  if not tops:
    return [[] for _ in range(leaves)]
  cut = [joining.split(top, [()] * leaves) for top in tops]
  return [list(own) for own in zip(*cut, strict=True)]
