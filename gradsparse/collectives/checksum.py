"""A checksum of the bits of an array."""

from __future__ import annotations

from typing import Any

from gradsparse import draws
import jax
import jax.numpy as jnp
import numpy as np

# 2^32 over the golden ratio: it maps neighbouring places far apart.
_PLACE = np.uint32(0x9E3779B9)


def words(x: Any) -> jax.Array:
  """The bits of an array, uint32; they differ between arrays of one dtype."""
  x = jnp.asarray(x)
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  if jnp.iscomplexobj(x):
    x = jnp.stack([x.real, x.imag])
  if x.dtype == bool:
    return x.astype(jnp.uint32)
  number = jnp.finfo if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo
  bits = min(32, number(x.dtype).bits)  # 64 bits become two words
  return jax.lax.bitcast_convert_type(x, f'uint{bits}').astype(jnp.uint32)


def of(x: Any) -> jax.Array:
  """Sum modulo 2^32 of the words of an array, each mixed with its place.

  One changed word of 32 bits always changes the sum. Several changed words
  leave it unchanged with probability 2^-32. Nothing is rounded.
  """
  bits = words(x)
  # In the array's own shape: flattening would gather an array that is sharded
  # over devices.
  places = draws.numbers_of(bits.shape)
  return jnp.sum(_mixed(bits + places * _PLACE), dtype=jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
  """A permutation of the 32-bit words that removes patterns.

  References:
    Appleby, MurmurHash3 (2011), the finaliser of 32 bits.
  """
  x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
