"""Sums of messages of all elements, in the layout of their planar words.

TPUs would look up the scales of eight messages for each element, and write each
message out before it is added. So messages are added up in rows of LANES, which
take the scales of the leaf in which they begin. The few rows within which a
leaf ends are added up once more, element by element.
"""

from __future__ import annotations

from gradsparse.codes.marked import CodedVector
from gradsparse.codes.value_codes import ValueCode
from gradsparse.sockets import Marked
from gradsparse.wire import planar_vector
import jax
import jax.numpy as jnp
import numpy as np


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
  shape = 32 // like.width, like.width, -1, planar_vector.LANES
  return [
    jnp.zeros(size, jnp.float32).reshape(shape),
    jnp.zeros(like.space.size - size, jnp.float32),
    jnp.zeros((_ends(like).shape[0], planar_vector.LANES), jnp.float32),
  ]


def add(code: ValueCode, total: Total, all_: CodedVector) -> Total:
  """Adds the marked elements of a message to a total."""
  space, width, lanes = all_.space, code.width, planar_vector.LANES
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
    if all_.scales and end < size and end % planar_vector.LANES
  ]
  return np.unique(np.asarray(inside, np.int32) // planar_vector.LANES)
