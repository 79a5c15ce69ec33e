"""1-bit SGD: one bit an element, two means a column."""

from __future__ import annotations

import math

from gradsparse.interfaces import Compressor
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def _columns(shape) -> tuple[int, int]:
  """(rows, columns): a column fixes the last index; a vector is one."""
  columns = shape[-1] if len(shape) > 1 else 1
  return math.prod(shape) // columns, columns


def halves(
  x: jax.Array, axis: int, valid: jax.Array | bool = True
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """What stands for the numbers along an axis: a sign each, and two means.

  Args:
    x: float32 array.
    axis: the numbers along it share their means.
    valid: bool array like x, what the means are taken over; or True.

  Returns:
    (bool array like x: x >= 0; float32, the mean of those that are, without
    the axis; float32, the mean of those that are not). The mean of none is 0.
  """
  positive = x >= 0
  # A power of two changes no digit, and no sum overflows.
  small = 0.5 ** x.shape[axis].bit_length()
  means = []
  for half in (positive & valid, ~positive & valid):
    held = jnp.sum(half, axis=axis)
    total = jnp.sum(jnp.where(half, x * small, 0.0), axis=axis)
    means.append(total / jnp.maximum(held, 1) / small)
  return positive, means[0], means[1]


def one_bit() -> Compressor:
  """The sign of each element, decoded as the mean of its half of the column.

  A column fixes the last index (an output unit of a Flax kernel). The
  threshold is 0, and 0 counts as positive.

  References:
    Seide et al., Interspeech 2014.
  """

  def encode(signals, shared, ctx):
    del shared, ctx
    bits, means = [], []
    for signal in signals:
      x = signal.value.reshape(_columns(signal.value.shape))
      positive, above, below = halves(x, axis=0)
      means += [above, below]
      bits.append(positive.reshape(-1))
    signs = jnp.concatenate(bits).astype(jnp.uint32)
    return {
      'means': jnp.concatenate(means),
      'signs': fixed_width.pack(signs, 1),
    }

  def decode(payload, shared, ctx, summands):
    del shared, summands
    sizes = [math.prod(shape) for shape in ctx.shapes]
    signs = fixed_width.unpack(payload['signs'], sum(sizes), 1)
    out, start, first = [], 0, 0
    for shape, size in zip(ctx.shapes, sizes, strict=True):
      rows, columns = _columns(shape)
      above = payload['means'][first : first + columns]
      below = payload['means'][first + columns : first + 2 * columns]
      positive = signs[start : start + size].reshape(rows, columns) == 1
      out.append(jnp.where(positive, above, below).reshape(shape))
      start, first = start + size, first + 2 * columns
    return out

  return Compressor('one_bit_sgd', encode, decode)
