"""Value codes applied to the entries of a `Sparse`.

Words: the scales of all leaves, the first of each and then the second, and the
codes of the entries, back to back.
"""

from __future__ import annotations

from gradsparse.codes.sparse_values import ValueCode
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.wire import fixed_width
from gradsparse.wire import floats
import jax
import jax.numpy as jnp


def round(code: ValueCode, s: Sparse, key: jax.Array) -> Sparse:
  """What the code can say; an entry that it cannot becomes an empty slot."""
  if code.round is None:
    return s
  leaf = s.space.leaf_of(s.indices)
  scales = [top[leaf] for top in scales_of(code, s)]
  values, kept = code.round(s.values, scales, key)
  out = Sparse(values, s.indices, s.space)
  return out if kept is None else out.keep(kept)


def pack(code: ValueCode, s: Sparse) -> jax.Array:
  """Rounded entries as uint32 words."""
  tops = scales_of(code, s)
  return jnp.concatenate(
    [
      pack_scales(code, tops),
      fixed_width.pack(codes_of(code, s, tops), code.width),
    ]
  )


def unpack(
  code: ValueCode, words: jax.Array, indices: jax.Array, space: Space
) -> jax.Array:
  """The values that were packed; in empty slots they may be anything."""
  tops, rest = unpack_scales(code, words, len(space.shapes))
  codes = fixed_width.unpack(rest, indices.shape[0], code.width)
  leaf = space.leaf_of(indices)
  return code.decode(codes, [top[leaf] for top in tops])


def codes_of(code: ValueCode, s: Sparse, tops: list[jax.Array]) -> jax.Array:
  """uint32[k], the codes of rounded entries, of scales for each leaf."""
  leaf = s.space.leaf_of(s.indices)
  return code.encode(s.values, [top[leaf] for top in tops])


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
