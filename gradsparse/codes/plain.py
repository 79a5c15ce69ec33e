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
  """`Leaves` without coding; sums of words are sums of leaves."""
  return Code(
    pack=lambda rounded, ctx: rounded.arrays,
    unpack=lambda words, like, ctx: Leaves(words),
    takes=Leaves,
    combines='sums',
  )


def of_known_places() -> Code:
  """`Sparse` whose indices are equal on all workers: only values are sent."""
  return Code(
    pack=lambda rounded, ctx: rounded.values,
    unpack=lambda words, like, ctx: Sparse(words, like.indices, like.space),
    takes=Sparse,
    combines='sums',
  )


def bfloat16_of_parts() -> Code:
  """`Parts` in bfloat16, rounded to nearest even: two elements a word."""

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
