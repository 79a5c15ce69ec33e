"""1-bit SGD's code: one bit an element, two means a column."""

from __future__ import annotations

from itertools import chain
import math
from typing import NamedTuple

from gradsparse import arguments
from gradsparse import folding
from gradsparse import opaque
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import Parts
from gradsparse.wire import bitmap
from gradsparse.wire import floats
import jax
import jax.numpy as jnp


class Halves(NamedTuple):
  """Rounded columns of numbers: a sign for each number, two means a column.

  Attributes:
    positive: bool, whether a number is >= 0.
    means: float32, of the numbers that are, and of those that are not.
  """

  positive: jax.Array
  means: jax.Array


def _columns(shape) -> tuple[int, int]:
  """(rows, columns): a column fixes the last index; a vector is one."""
  columns = shape[-1] if len(shape) > 1 else 1
  return math.prod(shape) // columns, columns


def halves(
  x: jax.Array, axis: int, valid: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Rounds the numbers along an axis: a sign for each, and two means.

  Args:
    x: float32 array.
    axis: the numbers along it share their means.
    valid: bool array like x, the numbers that enter the means; None is all.

  Returns:
    (bool array like x: x >= 0; float32, the mean of those that are, without
    the axis; float32, the mean of those that are not). The mean of none is 0.
  """
  positive = x >= 0
  if valid is None:
    own, number, counted = x, jnp.int32(x.shape[axis]), positive
  else:
    own = jnp.where(valid, x, 0.0)
    number, counted = folding.counts(valid, axis), positive & valid
  held = folding.counts(counted, axis)
  # Scaled by a power of two, no sum overflows and no digit changes.
  small = 0.5 ** x.shape[axis].bit_length()
  scales = jnp.asarray([small, -small], jnp.float32)
  scales = scales.reshape(2, *(1,) * x.ndim)
  # Numbers of the other half enter a sum as zeros. Two sums by themselves take
  # XLA on CPUs six times as long: it writes out the constants that they share.
  above, below = jnp.sum(jnp.maximum(own * scales, 0.0), axis + 1)

  def mean(total, held):
    return total / jnp.maximum(held, 1) / small

  return positive, mean(above, held), mean(-below, number - held)


def of_leaves() -> Code:
  """The sign of each element, decoded as the mean of its half of the column.

  A column fixes the last index (an output unit of a Flax kernel). The
  threshold is 0, and 0 counts as positive.

  References:
    Seide et al., Interspeech 2014.
  """

  def round(selected, ctx):
    del ctx
    bits, means = [], []
    for leaf in selected.arrays:
      positive, above, below = halves(leaf.reshape(_columns(leaf.shape)), 0)
      means.append((above, below))
      bits.append(positive.reshape(-1))
    # Few numbers, and all columns lead to them.
    means = opaque.computed_once(means, len(means))
    return Halves(folding.joined(bits), jnp.concatenate([*chain(*means)]))

  def pack(rounded, ctx):
    del ctx
    return {'means': rounded.means, 'signs': bitmap.pack(rounded.positive)}

  def unpack(words, like, ctx):
    del ctx
    positive = bitmap.unpack(words['signs'], like.positive.shape[0])
    return Halves(positive, words['means'])

  def decode(rounded, ctx, summands):
    del summands
    columns = [_columns(shape) for shape in ctx.shapes]
    means = opaque.computed_once(rounded.means, len(columns))
    means = opaque.cut(means, [(2, width) for _, width in columns])
    positive = opaque.cut(rounded.positive, columns)

    def one(positive, means, shape):
      return jnp.where(positive, means[0], means[1]).reshape(shape)

    return Leaves(list(map(one, positive, means, ctx.shapes)))

  return Code(pack, unpack, round, decode, name='1-bit', takes=Leaves)


def of_parts(bucket_size: int = 512) -> Code:
  """The same of `Parts`: d consecutive elements take the place of a column.

  A part of n elements takes 2 n / d words of means (of the elements >= 0,
  then of the others) and ceil(n / 32) words of signs. Padding does not enter
  the means. What is lost is orthogonal to what is kept, so it is smaller than
  the part was.

  Args:
    bucket_size: d, consecutive elements that share their means.

  Raises:
    TypeError: bucket_size is not a whole number.
    ValueError: bucket_size is not positive.

  References:
    Seide et al., Interspeech 2014; there a bucket is a matrix column.
  """
  bucket_size = arguments.whole_number('bucket_size', bucket_size, 1)

  def shaped(rows):
    return rows.reshape(rows.shape[0], -1, bucket_size)

  def round(parts, ctx):
    del ctx
    positive, above, below = halves(
      shaped(parts.rows), 2, valid=shaped(parts.valid)
    )
    means = jnp.concatenate([above, below], axis=1)
    return Halves(positive.reshape(parts.rows.shape), means)

  def pack(rounded, ctx):
    del ctx
    signs = jax.vmap(bitmap.pack)(rounded.positive)
    means = floats.pack(rounded.means)
    return jnp.concatenate([means, signs], axis=1)

  def unpack(words, like, ctx):
    del ctx
    length, held = like.positive.shape[1], like.means.shape[1]
    means = floats.unpack(words[:, :held])
    positive = jax.vmap(lambda row: bitmap.unpack(row, length))(words[:, held:])
    return Halves(positive, means)

  def decode(rounded, ctx, summands):
    del summands
    above, below = jnp.split(rounded.means[:, :, None], 2, axis=1)
    rows = jnp.where(shaped(rounded.positive), above, below)
    return Parts.of(rows.reshape(rounded.positive.shape), ctx.shapes)

  return Code(
    pack,
    unpack,
    round,
    decode,
    name='1-bit',
    takes=Leaves,
    unit=bucket_size,
    contracts=True,
  )
