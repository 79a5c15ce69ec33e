"""Codes of all elements, made before it is known how many are sent.

A rule marks the elements to send. Their number decides the size of the message,
so all elements are rounded and coded first, leaf by leaf. The delivered values
are those of these codes, whatever the message's size. A large message has a
bitmap and the codes of the marked elements: single indices would take more
bits, or far more time. The largest message has the codes of all elements.

Messages with a bitmap are added up in the layout of their planar words. TPUs
would look up the scales of eight messages for each element, and write each
message out before it is added. So messages are added up in rows of LANES, which
take the scales of the leaf in which they begin. The few rows within which a
leaf ends are added up once more, element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
import dataclasses
from typing import NamedTuple

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend.storage import LANES
from gradsparse.codes import marked_vector
from gradsparse.codes import sparse_values
from gradsparse.codes.marked_vector import CodedVector
from gradsparse.codes.marked_vector import Joined
from gradsparse.codes.marked_vector import PackedLeaves
from gradsparse.codes.value_codes import ValueCode
from gradsparse.sockets import Marked
from gradsparse.sockets import Space
from gradsparse.sockets import deliveries
from gradsparse.sockets.deliveries import Delivered
from gradsparse.sockets.deliveries import Full
from gradsparse.wire import compaction
from gradsparse.wire import fixed_width
from gradsparse.wire import planar_vector
import jax
import jax.numpy as jnp
import numpy as np


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


class Coded:
  """The coded elements of several leaves, and which of them are sent.

  It has the interface of `Sent` that memories use. Except on TPUs, the marks
  and codes of a leaf are kept packed by `marked_vector.pack_leaf`.

  Args:
    code: the value code.
    scales: the scales of all leaves.
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
    self._space = Space.whole([x.shape for x in marks])
    self._packed = not platforms.stores_tiles()
    if self._packed:
      marks = [marked_vector.pack_leaf(x, 1) for x in marks]
      codes = [marked_vector.pack_leaf(x, code.width) for x in codes]
    self._marks, self._codes = list(marks), list(codes)

  def joined(self) -> Joined | PackedLeaves:
    """All leaves, concatenated."""
    marks, codes, width = self._marks, self._codes, self._code.width
    if not self._packed or not marks:
      return Joined.of(self._scales, marks, codes, self._space, width)
    both = joining.concat(marks), joining.concat(codes)
    return PackedLeaves(self._scales, *both, self._space, width)

  def count(self) -> jax.Array:
    """How many elements are marked, int32 scalar."""
    if self._packed:
      return self.joined().count()
    return reductions.count(self._marks)

  def only_if(self, arrived: jax.Array) -> Coded:
    """The same marks if the message arrived, else none."""
    out = copy.copy(self)
    out._marks = [jnp.where(arrived, x, jnp.zeros_like(x)) for x in self._marks]
    return out

  def deliveries(self, runs: Sequence[int] = ()) -> list[Delivered]:
    """The delivered values of each leaf, dense."""
    out: list[Delivered] = []
    own = _of_each(self._scales, len(self._marks))
    each = zip(self._marks, self._codes, self._space.shapes, own, strict=True)
    for marks, codes, shape, top in each:
      if self._packed:
        marks = marked_vector.unpack_leaf(marks, shape, 1) != 0
        codes = marked_vector.unpack_leaf(codes, shape, self._code.width)
      values = self._code.decode(codes.astype(jnp.uint32), top)
      out.append(Full(jnp.where(marks, values, 0.0), marks))
    return deliveries.joined(out, runs)


def coded(
  code: ValueCode,
  leaves: Sequence[tuple[jax.Array, jax.Array]],
  key: jax.Array,
) -> Coded:
  """Rounds and codes the elements of several leaves.

  Args:
    code: the value code.
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


def decode(code: ValueCode, all_: CodedVector) -> Marked:
  """Decodes the marked elements."""
  marks = jnp.concatenate([x.reshape(-1) for x in _marks(all_)])
  values = finish(add(code, start(all_), all_), all_)
  return Marked(values, marks, all_.space)


# A sum of messages, in parts: their heads in rows, their tails, and the rows of
# the heads within which a leaf ends.
Total = list[jax.Array]


def start(like: CodedVector) -> Total:
  """The total before any message: zeros."""
  size = planar_vector.head(like.space.size)
  shape = 32 // like.width, like.width, -1, LANES
  return [
    jnp.zeros(size, jnp.float32).reshape(shape),
    jnp.zeros(like.space.size - size, jnp.float32),
    jnp.zeros((_ends(like).shape[0], LANES), jnp.float32),
  ]


def add(code: ValueCode, total: Total, all_: CodedVector) -> Total:
  """Adds the marked elements of a message to a total."""
  space, width, lanes = all_.space, code.width, LANES
  size = planar_vector.head(space.size)
  out = []
  # Whole rows take the scales of the leaf in which they begin.
  rows = jnp.arange(size // lanes, dtype=jnp.int32) * lanes
  tail = jnp.arange(space.size - size, dtype=jnp.int32) + size
  shape = 32 // width, width, -1
  # A barrier, or XLA for TPUs would look the scales up for each element.
  own = jax.lax.optimization_barrier(
    [x.reshape(shape) for x in _scales_at(all_, rows)]
  )
  scales = [x[..., None] for x in own], _scales_at(all_, tail)
  parts = zip(total[:2], _marks(all_), _codes(all_), scales, strict=True)
  for x, there, codes, tops in parts:
    out.append(x + jnp.where(there, code.decode(codes, tops), 0.0))
  # The rows within which a leaf ends, each element with its own scales.
  ends = _ends(all_)
  places = lanes * ends[:, None] + np.arange(lanes, dtype=np.int32)
  marks, codes = (
    planar_vector.rows_of_head(
      planar_vector.cut_parts(x, space.size, n)[0], ends, n, size
    )
    for x, n in ((all_.marks, 1), (all_.codes, width))
  )
  values = code.decode(codes, _scales_at(all_, jnp.asarray(places)))
  return [*out, total[2] + jnp.where(marks == 1, values, 0.0)]


def finish(total: Total, like: CodedVector) -> jax.Array:
  """The total as a vector, float32[N]."""
  head, tail, rows = total
  ends = _ends(like)
  if ends.shape[0]:
    # The head keeps the shape in which it was added up: XLA for TPUs would use
    # a new shape for the sums too, in which scales take ten times as long. The
    # barrier is there because XLA cannot fuse a gather into a scatter.
    rows = jax.lax.optimization_barrier(rows)
    head = head.at[np.unravel_index(ends, head.shape[:3])].set(
      rows, unique_indices=True, indices_are_sorted=True
    )
  return jnp.concatenate([head.reshape(-1), tail])


def _marks(all_: CodedVector) -> tuple[jax.Array, jax.Array]:
  """The marks of the head (`planar_vector.unpack_head`) and the tail, bool."""
  head, tail = planar_vector.cut_parts(all_.marks, all_.space.size, 1)
  left = all_.space.size - planar_vector.head(all_.space.size)
  return (
    planar_vector.unpack_head(head, 1, all_.width) == 1,
    planar_vector.unpack_tail(tail, 1)[:left] == 1,
  )


def _codes(all_: CodedVector) -> tuple[jax.Array, jax.Array]:
  """The codes of the head and the tail, uint32."""
  head, tail = planar_vector.cut_parts(all_.codes, all_.space.size, all_.width)
  left = all_.space.size - planar_vector.head(all_.space.size)
  return (
    planar_vector.unpack_head(head, all_.width, all_.width),
    planar_vector.unpack_tail(tail, all_.width)[:left],
  )


def _scales_at(all_: CodedVector, places: jax.Array) -> list[jax.Array]:
  """The scales of elements, each like `places`."""
  if not all_.scales:
    return []
  leaf = all_.space.leaf_of(places)
  return [top[leaf] for top in all_.scales]


def _ends(all_: CodedVector) -> np.ndarray:
  """int32: the rows of the head within which the scales change."""
  size = planar_vector.head(all_.space.size)
  inside = [
    end
    for end in all_.space.offsets[1:-1]
    if all_.scales and end < size and end % LANES
  ]
  return np.unique(np.asarray(inside, np.int32) // LANES)


def _of_each(tops: list[jax.Array], leaves: int) -> list[list[jax.Array]]:
  """The scales of each leaf, scalars."""
  if not tops:
    return [[] for _ in range(leaves)]
  cut = [joining.split(top, [()] * leaves) for top in tops]
  return [list(own) for own in zip(*cut, strict=True)]
