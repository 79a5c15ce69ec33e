"""Float32 numbers as words, whole or by their upper halves."""

from __future__ import annotations

from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def pack(x: jax.Array) -> jax.Array:
  """float32 as uint32 of the same shape, bit for bit."""
  return jax.lax.bitcast_convert_type(x, jnp.uint32)


def unpack(words: jax.Array) -> jax.Array:
  """The float32 numbers that `pack` packed."""
  return jax.lax.bitcast_convert_type(words, jnp.float32)


def pack_bfloat16(x: jax.Array) -> jax.Array:
  """The upper halves of float32[n], which bfloat16 fills: two a word."""
  return fixed_width.pack(pack(x) >> 16, 16)


def unpack_bfloat16(words: jax.Array, count: int) -> jax.Array:
  """The float32 numbers, their lower halves zero."""
  return unpack(fixed_width.unpack(words, count, 16) << 16)
