"""Elements rounded to few bits and a scale of many; QSGD's rounding."""

from __future__ import annotations

from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.codes.norm_buckets import Buckets
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp

NORMS = ('max', 'l2')
# Up to this many levels, every code of a level and its sign fits in 32 bits.
# float32 then holds |v| / norm * s to 1/256 of a level (2^-24 of the norm), and
# the probability of rounding up is as exact. s = sqrt(n) stays below this limit
# for every n that an int32 can count.
MAX_LEVELS = 2**16 - 2


class Scaled(NamedTuple):
  """Rounded elements: a code for each, scales for many.

  Attributes:
    codes: for each leaf an array of the code's own shape, or `planar.Slabs` of
      it; or rows for `Parts`. QSGD has levels in [-s, s], in units of norm / s.
      1-bit SGD has bools, whether an element is >= 0.
    scales: float32, of all buckets or columns: QSGD's norms; the means of the
      elements >= 0 and of the others, or magnitudes.
  """

  codes: Any
  scales: jax.Array


def checked(levels: Any, bucket_size: Any, norm: Any) -> tuple[int, int, str]:
  """Checks the arguments of the quantiser.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: an argument is out of range.
  """
  return (
    arguments.whole_number('levels', levels, 1, MAX_LEVELS),
    arguments.whole_number('bucket_size', bucket_size, 1),
    arguments.one_of('norm', norm, NORMS),
  )


def type_of(levels: int) -> Any:
  """The integer type of signed levels, from -s to s."""
  return fixed_width.narrowest(-levels, levels)


def scales(x: jax.Array, how: Buckets, norm: str) -> jax.Array:
  """float32[buckets]: each bucket's largest magnitude or 2-norm.

  Args:
    x: a leaf.
    how: its buckets.
    norm: one of NORMS.
  """
  x = x.reshape(how.view)
  tops = how.reduced(x, reductions.largest_along)
  return tops if norm == 'max' else two_norms(x, how, tops)


def two_norms(x: jax.Array, how: Buckets, tops: jax.Array) -> jax.Array:
  """float32[buckets]: each bucket's 2-norm.

  Args:
    x: a leaf.
    how: its buckets.
    tops: float32[buckets], the largest magnitudes.
  """
  x = x.reshape(how.view)
  # Divided by the largest magnitude first, so that no square overflows.
  shares = x / how.spread(jnp.where(tops > 0, tops, 1.0))
  return tops * jnp.sqrt(how.reduced(shares * shares, reductions.sum_along))


def quantise(
  x: jax.Array, norms: jax.Array, levels: int, uniform: jax.Array
) -> jax.Array:
  """Signed levels in [-s, s], of x's shape and of `type_of(s)`.

  With a = |v_i| / norm and l = floor(a s), the level is l with probability
  1 - (a s - l), else l + 1. The expectation of norm * level / s is v_i.

  Args:
    x: float32, the elements.
    norms: float32, of each element's bucket.
    levels: s.
    uniform: float32, a draw from [0, 1) for each element.

  References:
    Alistarh et al., arXiv 1610.02132, section 3.1.
  """
  safe: Any = jnp.where(norms > 0, norms, 1.0)
  if platforms.stores_tiles():
    # Otherwise XLA would write out |x| and x < 0; on CPUs this takes longer.
    x, safe = x / safe, 1.0
  scaled = jnp.minimum(jnp.abs(x) / safe * levels, levels)
  low = jnp.floor(scaled)
  up = uniform < scaled - low
  level = low.astype(jnp.int32) + up.astype(jnp.int32)
  level = jnp.where(x < 0, -level, level)
  return platforms.narrowed(level, type_of(levels))
