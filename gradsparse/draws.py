"""Uniform draws, one for each element of a gradient, to round and to choose by.

`jax.random` draws by Threefry: twenty rounds of mixing for two words. They take
longer than all else that a quantiser does. A scheme needs draws that are
uniform and independent between elements, steps and workers; it needs no
cryptographic strength. Here a draw is a hash of the element's number and of a
key, which comes of `jax.random` as ever.

The hash is the finaliser `lowbias32`: of a word in which one bit changes, every
bit of the result changes with a probability near one half. It is applied twice,
with one half of the key before each.

References:
  Ellis, "Prospecting for Hash Functions" (2018), for the constants.
  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), for
    drawing by counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import math

from gradsparse.backend import barriers
from gradsparse.backend import joining
import jax
import jax.numpy as jnp
import numpy as np

# 2^32 over the golden ratio: neighbouring numbers get unlike words.
_WEYL = 0x9E3779B9
_MANTISSA = 24  # bits of a float32


def bits(key: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Random words.

  Args:
    key: PRNG key, of any implementation.
    shape: of the result, less than 2^32 elements.

  Returns:
    uint32[shape]; the same key gives the same words, and the first elements of
    a longer vector are those of a shorter one.
  """
  return bits_of(key, numbers_of(shape))


def bits_of(key: jax.Array, numbers: jax.Array) -> jax.Array:
  """The random words with these numbers, of all that a key leads to.

  Args:
    key: PRNG key, of any implementation.
    numbers: uint32.

  Returns:
    uint32, like `numbers`.
  """
  return _hashed(*_halves(key), numbers)


def numbers_of(shape: Sequence[int]) -> jax.Array:
  """Those of the elements of an array, modulo 2^32: uint32[shape]."""
  # Not a long iota in another shape: TPUs would write that out, and copy it.
  numbers, stride = jnp.zeros(tuple(shape), jnp.uint32), math.prod(shape)
  for axis, length in enumerate(shape):
    stride = stride // max(length, 1)
    along = jax.lax.broadcasted_iota(jnp.uint32, tuple(shape), axis)
    numbers += along * np.uint32(stride % 2**32)
  return numbers


def uniform(key: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Numbers in [0, 1), multiples of 2^-24.

  Args:
    key: PRNG key, of any implementation.
    shape: of the result.

  Returns:
    float32[shape].
  """
  return _uniform(bits(key, shape))


def uniform_of_each(
  key: jax.Array, shapes: Sequence[Sequence[int]]
) -> Iterator[jax.Array]:
  """Yields such numbers for each leaf: of the key with its number folded in.

  The keys are made together and once, so that the loops of leaves of one shape
  are equal (see `backend.barriers`).

  Args:
    key: PRNG key, of any implementation.
    shapes: of the leaves.

  Yields:
    float32 of each shape.
  """
  count = len(shapes)
  numbers = jnp.arange(count, dtype=jnp.uint32)
  keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
  halves = barriers.barrier_if_shared(jax.vmap(_halves)(keys), count)
  firsts, seconds = (joining.split(half, [()] * count) for half in halves)
  for first, second, shape in zip(firsts, seconds, shapes, strict=True):
    yield _uniform(_hashed(first, second, numbers_of(shape)))


def _hashed(
  first: jax.Array, second: jax.Array, numbers: jax.Array
) -> jax.Array:
  """The words with these numbers, of the halves of a key."""
  return _mixed(_mixed(numbers * jnp.uint32(_WEYL) + first) ^ second)


def _uniform(words: jax.Array) -> jax.Array:
  words = words >> (32 - _MANTISSA)
  return words.astype(jnp.float32) * jnp.float32(2.0**-_MANTISSA)


def below(key: jax.Array, limits: jax.Array) -> jax.Array:
  """Whole numbers in [0, limit), int32.

  Args:
    key: PRNG key, of any implementation.
    limits: uint32, from 1 to 2^31 - 1. The numbers below a limit are equally
      likely to within one part in 2^32 / limit.

  Returns:
    int32, like `limits`.
  """
  word = bits(key, limits.shape)
  # The upper word of the product of two words, from halves of both.
  low, high = word & 0xFFFF, word >> 16
  small, large = limits & 0xFFFF, limits >> 16
  middle = high * small + (low * small >> 16)
  other = low * large + (middle & 0xFFFF)
  upper = high * large + (middle >> 16) + (other >> 16)
  return upper.astype(jnp.int32)


def _halves(key: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Two words that every word of the key has part in."""
  words = jax.random.key_data(key)
  halves = []
  for start in (jnp.uint32(1), jnp.uint32(_WEYL)):
    mixed = start
    for number in range(words.shape[-1]):
      mixed = _mixed(mixed ^ words[number]) + jnp.uint32(_WEYL)
    halves.append(mixed)
  return halves[0], halves[1]


def _mixed(x: jax.Array) -> jax.Array:
  """lowbias32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)
