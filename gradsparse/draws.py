"""Uniform draws, one for each element, for random rounding and selection.

`jax.random` draws by Threefry, whose twenty rounds of mixing for two words take
longer than the rest of a quantiser. A scheme needs draws that are uniform and
independent between elements, steps and workers, but not cryptographically
strong. Here a draw is a hash of the element's number and of a `jax.random` key.

The hash is the finaliser `lowbias32`: if one bit of its input changes, every
bit of its output changes with a probability near one half. It is applied twice;
one half of the key is mixed in before each application.

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

# 2^32 over the golden ratio: it maps neighbouring numbers far apart.
_WEYL = 0x9E3779B9
_MANTISSA = 24  # bits of a float32


def bits(key: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Draws random words.

  Args:
    key: PRNG key, of any implementation.
    shape: the result's shape, less than 2^32 elements.

  Returns:
    uint32[shape]. The same key gives the same words; a shorter vector is a
    prefix of a longer one.
  """
  return bits_of(key, numbers_of(shape))


def bits_of(key: jax.Array, numbers: jax.Array) -> jax.Array:
  """The random words of a key at these places of its sequence.

  Args:
    key: PRNG key, of any implementation.
    numbers: uint32, the places.

  Returns:
    uint32, like `numbers`.
  """
  return _hashed(*_halves(key), numbers)


def numbers_of(shape: Sequence[int]) -> jax.Array:
  """Numbers the elements of an array, modulo 2^32: uint32[shape]."""
  # Not a reshaped long iota: TPUs would write that out and copy it.
  numbers, stride = jnp.zeros(tuple(shape), jnp.uint32), math.prod(shape)
  for axis, length in enumerate(shape):
    stride = stride // max(length, 1)
    along = jax.lax.broadcasted_iota(jnp.uint32, tuple(shape), axis)
    numbers += along * np.uint32(stride % 2**32)
  return numbers


def uniform(key: jax.Array, shape: Sequence[int]) -> jax.Array:
  """Draws numbers in [0, 1), multiples of 2^-24.

  Args:
    key: PRNG key, of any implementation.
    shape: the result's shape.

  Returns:
    float32[shape].
  """
  return _uniform(bits(key, shape))


def uniform_of_each(
  key: jax.Array, shapes: Sequence[Sequence[int]]
) -> Iterator[jax.Array]:
  """Draws `uniform` numbers for each leaf, from the key folded with its number.

  All keys are made at once, so that leaves of one shape have equal loops (see
  `backend.barriers`).

  Args:
    key: PRNG key, of any implementation.
    shapes: the shapes of the leaves.

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
  """The random words at places `numbers`, from the halves of a key."""
  return _mixed(_mixed(numbers * jnp.uint32(_WEYL) + first) ^ second)


def _uniform(words: jax.Array) -> jax.Array:
  words = words >> (32 - _MANTISSA)
  return words.astype(jnp.float32) * jnp.float32(2.0**-_MANTISSA)


def below(key: jax.Array, limits: jax.Array) -> jax.Array:
  """Draws whole numbers in [0, limit), int32.

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
  """Mixes all words of the key into two words."""
  words = jax.random.key_data(key)
  halves = []
  for start in (jnp.uint32(1), jnp.uint32(_WEYL)):
    mixed = start
    for number in range(words.shape[-1]):
      mixed = _mixed(mixed ^ words[number]) + jnp.uint32(_WEYL)
    halves.append(mixed)
  return halves[0], halves[1]


def _mixed(x: jax.Array) -> jax.Array:
  """Applies lowbias32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)
