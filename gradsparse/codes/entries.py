"""Value codes applied to the entries of a message.

Words: the scales of all leaves, the first of each and then the second, and the
codes of the entries, back to back.
"""

from __future__ import annotations

import dataclasses

from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import fixed_width
from gradsparse.wire import floats
import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entries:
  """Entries whose values are coded.

  Attributes:
    scales: of all leaves, float32[L] or int32[L] for each scale of the code.
    indices: int32[k], as those of a `Sparse`.
    codes: uint32[k], zero in empty slots.
    space: the leaves that the indices count through.
  """

  scales: list[jax.Array]
  indices: jax.Array
  codes: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})

  @property
  def slots(self) -> int:
    """k, how many entries there is room for; static."""
    return self.indices.shape[0]

  def count(self) -> jax.Array:
    """How many entries there are, int32 scalar."""
    return jnp.sum(self.indices < self.space.size, dtype=jnp.int32)


def coded(code: ValueCode, s: Sparse) -> Entries:
  """Rounded entries, coded."""
  scales = scales_of(code, s)
  own = _of_entries(scales, s.indices, s.space)
  codes = jnp.where(s.valid, code.encode(s.values, own), 0)
  return Entries(scales, s.indices, codes, s.space)


def decoded(code: ValueCode, e: Entries) -> Sparse:
  """What coded entries stand for."""
  values = code.decode(e.codes, _of_entries(e.scales, e.indices, e.space))
  valid = e.indices < e.space.size
  return Sparse(jnp.where(valid, values, 0.0), e.indices, e.space)


def round(code: ValueCode, s: Sparse, key: jax.Array) -> Sparse:
  """What the code can say; an entry that it cannot becomes an empty slot."""
  if code.round is None:
    return s
  scales = _of_entries(scales_of(code, s), s.indices, s.space)
  values, kept = code.round(s.values, scales, key)
  out = Sparse(values, s.indices, s.space)
  return out if kept is None else out.keep(kept)


def pack(code: ValueCode, e: Entries) -> jax.Array:
  """Scales and codes as uint32 words."""
  packed = fixed_width.pack(e.codes, code.width)
  return jnp.concatenate([pack_scales(code, e.scales), packed])


def unpack(
  code: ValueCode, words: jax.Array, indices: jax.Array, space: Space
) -> Entries:
  """The entries that were packed, at these places."""
  scales, rest = unpack_scales(code, words, len(space.shapes))
  codes = fixed_width.unpack(rest, indices.shape[0], code.width)
  return Entries(scales, indices, codes, space)


def _of_entries(
  scales: list[jax.Array], indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The scales of the leaf of each entry."""
  if not scales:
    return []
  leaf = space.leaf_of(indices)
  return [top[leaf] for top in scales]


def scales_of(code: ValueCode, s: Sparse) -> list[jax.Array]:
  """The scales of each leaf, float32[L] or int32[L]; 0 if not finite."""
  leaves = len(s.space.shapes)
  leaf = jnp.where(s.valid, s.space.leaf_of(s.indices), leaves)
  out = []
  for x in code.scales(s.values):
    top = jnp.zeros(leaves, x.dtype).at[leaf].max(x, mode='drop')
    out.append(jnp.where(jnp.isfinite(top), top, 0))
  return out


def pack_scales(code: ValueCode, tops: list[jax.Array]) -> jax.Array:
  """uint32 words of the scales of all leaves."""
  if not tops:
    return jnp.zeros(0, jnp.uint32)
  joined = jnp.concatenate(tops)
  if code.scale_width == 32:
    return floats.pack(joined)
  return fixed_width.pack(joined, code.scale_width)


def unpack_scales(
  code: ValueCode, words: jax.Array, leaves: int
) -> tuple[list[jax.Array], jax.Array]:
  """The scales that a message begins with, and the words after them."""
  shape = jax.ShapeDtypeStruct((1,), jnp.float32)
  number = len(jax.eval_shape(code.scales, shape))
  size = fixed_width.words(number * leaves, code.scale_width)
  if not number:
    return [], words
  if code.scale_width == 32:
    joined = floats.unpack(words[:size])
  else:
    codes = fixed_width.unpack(words[:size], number * leaves, code.scale_width)
    joined = codes.astype(jnp.int32)
  return list(joined.reshape(number, leaves)), words[size:]
