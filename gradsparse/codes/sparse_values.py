"""The entries of a `Sparse`, with their values in a value code.

The words of entries are the scales (the first of every leaf, then the second of
every leaf), then the codes of the entries, back to back.
"""

from __future__ import annotations

import dataclasses

from gradsparse.codes.value_codes import ValueCode
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entries:
  """Entries whose values are coded.

  Attributes:
    scales: float32[L] or int32[L] of all L leaves, for each scale of the code.
    indices: int32[k], as those of a `Sparse`.
    codes: uint32[k], zero in empty slots.
    space: the leaves that the indices point into.
  """

  scales: list[jax.Array]
  indices: jax.Array
  codes: jax.Array
  space: Space = dataclasses.field(metadata={'static': True})

  @property
  def slots(self) -> int:
    """k, the most entries; static."""
    return self.indices.shape[0]

  def count(self) -> jax.Array:
    """The number of entries, int32 scalar."""
    return jnp.sum(self.indices < self.space.size, dtype=jnp.int32)


def coded(code: ValueCode, s: Sparse) -> Entries:
  """Codes rounded entries."""
  scales = scales_of(code, s)
  own = _of_entries(scales, s.indices, s.space)
  codes = jnp.where(s.valid, code.encode(s.values, own), 0)
  return Entries(scales, s.indices, codes, s.space)


def decoded(code: ValueCode, e: Entries) -> Sparse:
  """Decodes entries."""
  values = code.decode(e.codes, _of_entries(e.scales, e.indices, e.space))
  valid = e.indices < e.space.size
  return Sparse(jnp.where(valid, values, 0.0), e.indices, e.space)


def round(code: ValueCode, s: Sparse, key: jax.Array) -> Sparse:
  """Rounds entries; those that the code cannot represent become empty slots."""
  if code.fit is not None:
    leaf = jnp.where(
      s.valid, s.space.leaf_of(s.indices, ascend=True), len(s.space.shapes)
    )
    values = code.fit(s.values, leaf, len(s.space.shapes))
    return dataclasses.replace(s, values=jnp.where(s.valid, values, 0.0))
  if code.round is None:
    return s
  scales = _of_entries(scales_of(code, s), s.indices, s.space)
  values, kept = code.round(s.values, scales, key)
  out = dataclasses.replace(s, values=values)
  return out if kept is None else out.keep(kept)


def pack(code: ValueCode, e: Entries) -> jax.Array:
  """Packs scales and codes into uint32 words."""
  packed = fixed_width.pack(e.codes, code.width)
  return jnp.concatenate([pack_scales(code, e.scales), packed])


def unpack(
  code: ValueCode, words: jax.Array, indices: jax.Array, space: Space
) -> Entries:
  """Unpacks entries that have these indices."""
  scales, rest = unpack_scales(code, words, len(space.shapes))
  codes = fixed_width.unpack(rest, indices.shape[0], code.width)
  return Entries(scales, indices, codes, space)


def _of_entries(
  scales: list[jax.Array], indices: jax.Array, space: Space
) -> list[jax.Array]:
  """The scales of the leaf of each entry."""
  if not scales:
    return []
  leaf = space.leaf_of(indices, ascend=True)
  return [top[leaf] for top in scales]


def scales_of(code: ValueCode, s: Sparse) -> list[jax.Array]:
  """The scales of each leaf, float32[L] or int32[L]; 0 if not finite."""
  leaves = len(s.space.shapes)
  leaf = jnp.where(s.valid, s.space.leaf_of(s.indices, ascend=True), leaves)
  if code.table is not None:
    return code.table(s.values, leaf, leaves)
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
    return fixed_width.of_floats(joined)
  return fixed_width.pack(joined, code.scale_width)


def unpack_scales(
  code: ValueCode, words: jax.Array, leaves: int
) -> tuple[list[jax.Array], jax.Array]:
  """The scales at the head of a message, and the words after them."""
  shape = jax.ShapeDtypeStruct((1,), jnp.float32)
  number = len(jax.eval_shape(code.scales, shape))
  size = fixed_width.words(number * leaves, code.scale_width)
  if not number:
    return [], words
  if code.scale_width == 32:
    joined = fixed_width.floats_of(words[:size])
  else:
    codes = fixed_width.unpack(words[:size], number * leaves, code.scale_width)
    joined = codes.astype(jnp.int32)
  return list(joined.reshape(number, leaves)), words[size:]
