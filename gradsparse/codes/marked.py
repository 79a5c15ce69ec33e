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
from gradsparse.sockets import Marked
from gradsparse.sockets import Space
from gradsparse.sockets import deliveries
from gradsparse.sockets.deliveries import Delivered
from gradsparse.sockets.deliveries import Full
from gradsparse.wire import bitmap
from gradsparse.wire import compaction
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp
import numpy as np

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
  """The codes of all leaves, one after the other.

  Attributes:
    scales: of all leaves, as in `sparse_values.Entries`.
    marks: uint32 bitmap, which elements are sent.
    codes: uint32, packed codes of all elements; if slots < space.size, those of
      unmarked elements are zero.
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

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return bitmap.count(self.marks)

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
    if slots == size:
      return self
    if width > _NARROW or slots * _BITMAP_FROM < size:
      return self.entries(slots, first)
    marks = self.marks
    if first is not None:
      marks = bitmap.window(marks, slots, first)
    return dataclasses.replace(
      self,
      marks=marks,
      codes=compaction.only(self.codes, marks, width),
      slots=slots,
    )

  def entries(self, slots: int, first: jax.Array | None = None) -> Entries:
    """The marked elements, with an index each.

    Args:
      slots: see `at_most`.
      first: see `at_most`.
    """
    size = self.space.size
    places = bitmap.positions(self.marks, slots, 0 if first is None else first)
    indices = jnp.minimum(places, size)
    if first is not None:
      indices = jnp.sort(indices)
    codes = fixed_width.at(self.codes, indices, self.width)
    return Entries(
      self.scales,
      indices,
      jnp.where(indices < size, codes, 0),
      Space.at_most(slots, self.space.shapes),
    )


class Coded:
  """The coded elements of several leaves, and which of them are sent.

  It has the interface of `Sent` that memories use.

  Args:
    code: of the values.
    scales: of all leaves.
    marks: uint32 bitmaps of the leaves.
    codes: uint32, packed codes of the leaves.
    shapes: of the leaves.
  """

  def __init__(
    self,
    code: ValueCode,
    scales: list[jax.Array],
    marks: Sequence[jax.Array],
    codes: Sequence[jax.Array],
    shapes: Sequence[tuple[int, ...]],
  ):
    self._code = code
    self._scales = scales
    self._marks = list(marks)
    self._codes = list(codes)
    self._space = Space.whole(shapes)

  def joined(self) -> CodedVector:
    """All leaves, concatenated."""
    sizes = self._space.sizes
    return CodedVector(
      self._scales,
      fixed_width.joined(self._marks, sizes, 1),
      fixed_width.joined(self._codes, sizes, self._code.width),
      self._space,
      self._code.width,
      self._space.size,
    )

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    return bitmap.count(joining.concat(self._marks))

  def only_if(self, arrived: jax.Array) -> Coded:
    """The same marks if the message arrived, else none."""
    keep = jnp.where(arrived, jnp.uint32(2**32 - 1), jnp.uint32(0))
    return Coded(
      self._code,
      self._scales,
      [words & keep for words in self._marks],
      self._codes,
      self._space.shapes,
    )

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """The delivered values of each leaf, dense."""
    out: list[Delivered] = []
    for marks, codes, own, shape, size in zip(
      self._marks,
      self._codes,
      _of_each(self._scales, len(self._marks)),
      self._space.shapes,
      self._space.sizes,
      strict=True,
    ):
      there = bitmap.unpack(marks, size)
      unpacked = fixed_width.unpack(codes, size, self._code.width)
      values = jnp.where(there, self._code.decode(unpacked, own), 0.0)
      out.append(Full(values.reshape(shape), there.reshape(shape)))
    return deliveries.joined(out, runs)


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
  for (values, wanted), own, number in zip(
    leaves, _of_each(scales, len(leaves)), numbers, strict=True
  ):
    values, wanted = values.reshape(-1), wanted.reshape(-1)
    if code.round is not None:
      values, kept = code.round(values, own, jax.random.fold_in(key, number))
      wanted = wanted if kept is None else wanted & kept
    marks.append(bitmap.pack(wanted))
    codes.append(fixed_width.pack(code.encode(values, own), code.width))
  return Coded(code, scales, marks, codes, [v.shape for v, _ in leaves])


def pack(code: ValueCode, all_: CodedVector) -> Words:
  """Packs the marked elements into words."""
  scales, codes = sparse_values.pack_scales(code, all_.scales), all_.codes
  if all_.slots < all_.space.size:
    codes = compaction.compress(codes, all_.marks, all_.slots, code.width)
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


def decode(code: ValueCode, all_: CodedVector) -> Marked:
  """Decodes the marked elements."""
  space, width = all_.space, code.width
  there = bitmap.unpack(all_.marks, space.size)
  # Whole rows; each takes the scales of the leaf in which it begins.
  rows = -(-space.size // reductions.LANES)
  begins = reductions.LANES * jnp.arange(rows, dtype=jnp.int32)
  own = [top[space.leaf_of(begins)][:, None] for top in all_.scales]
  words = jnp.pad(all_.codes, (0, rows * width - all_.codes.shape[0]))
  codes = fixed_width.unpack(words, reductions.LANES * rows, width)
  values = code.decode(codes.reshape(rows, reductions.LANES), own)
  values = jnp.where(there, values.reshape(-1)[: space.size], 0.0)
  if all_.scales:
    # The few elements behind the end of that leaf take their own scales.
    strays = jnp.asarray(_strays(space))
    own = [top[space.leaf_of(strays)] for top in all_.scales]
    again = code.decode(fixed_width.at(all_.codes, strays, width), own)
    sent = fixed_width.at(all_.marks, strays, 1) == 1
    values = values.at[strays].set(jnp.where(sent, again, 0.0))
  return Marked(values, there, space)


def _strays(space: Space) -> np.ndarray:
  """int32: the elements of all rows within which a leaf ends."""
  inside = [end for end in space.offsets[1:-1] if end % reductions.LANES]
  places = np.unique(np.asarray(inside, np.int32) // reductions.LANES)
  lanes = np.arange(reductions.LANES, dtype=np.int32)
  strays = (places[:, None] * reductions.LANES + lanes).reshape(-1)
  return strays[strays < space.size]


def _of_each(tops: list[jax.Array], leaves: int) -> list[list[jax.Array]]:
  """The scales of each leaf, scalars."""
  if not tops:
    return [[] for _ in range(leaves)]
  cut = [joining.split(top, [()] * leaves) for top in tops]
  return [list(own) for own in zip(*cut, strict=True)]
