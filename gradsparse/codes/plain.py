"""Uncoded numbers: all, or those at coordinates known to all workers."""

from __future__ import annotations

from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
from gradsparse.sockets import Sparse
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def of_leaves() -> Code:
  """`Leaves` without coding; sums of words are sums of leaves.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> code = gs.extend.codes.plain.of_leaves()
  >>> leaves = gs.extend.Leaves([jnp.array([3.0, -1.0])])
  >>> print(*code.pack(code.round(leaves, None), None))
  [ 3. -1.]
  """
  return Code(
    pack=lambda rounded, ctx: rounded.arrays,
    unpack=lambda words, like, ctx: Leaves(words),
    takes=Leaves,
    combines='sums',
  )


def of_known_places() -> Code:
  """`Sparse` whose indices are equal on all workers: only values are sent.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> extend, code = gs.extend, gs.extend.codes.plain.of_known_places()
  >>> space = extend.Space.whole([(100,)])
  >>> entries = extend.Sparse(jnp.array([3.0, -1.0]), jnp.array([7, 90]), space)
  >>> print(code.pack(code.round(entries, None), None))
  [ 3. -1.]
  """
  return Code(
    pack=lambda rounded, ctx: rounded.values,
    unpack=lambda words, like, ctx: Sparse(words, like.indices, like.space),
    takes=Sparse,
    combines='sums',
  )


def bfloat16_of_parts() -> Code:
  """`Parts` in bfloat16, rounded to nearest even: two elements a word.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> code = gs.extend.codes.plain.bfloat16_of_parts()
  >>> parts = gs.extend.Parts.of(jnp.array([[1.0, 1.001]]), [(2,)])
  >>> rounded = code.round(parts, None)
  >>> print(rounded.rows, code.pack(rounded, None).shape)
  [[1. 1.]] (1, 1)
  """

  def round(parts, ctx):
    del ctx
    # Not through astype(bfloat16) and back: XLA may elide the pair.
    rows = jax.lax.reduce_precision(
      parts.rows, exponent_bits=8, mantissa_bits=7
    )
    return Parts(rows, parts.first, parts.space)

  def pack(rounded, ctx):
    del ctx
    return jax.vmap(fixed_width.pack_bfloat16)(rounded.rows)

  def unpack(words, like, ctx):
    del ctx
    length = like.rows.shape[1]
    rows = jax.vmap(lambda row: fixed_width.unpack_bfloat16(row, length))(words)
    return Parts(rows, jnp.int32(0), like.space)

  return Code(pack, unpack, round, takes=Leaves, combines=OfParts(1))
