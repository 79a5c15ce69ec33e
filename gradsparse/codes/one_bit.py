"""One bit for each element, and one or two magnitudes for a column or bucket.

1-bit SGD has two: the means of the elements >= 0 and of the others. 1-bit Adam
has one. `signs` have one magnitude for all elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
import math
from typing import NamedTuple

from gradsparse import arguments
from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import reductions
from gradsparse.codes.rounding import Scaled
from gradsparse.sockets import Code
from gradsparse.sockets import Leaves
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
from gradsparse.sockets import Shortcuts
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
import jax
import jax.numpy as jnp
import numpy as np


def _columns(shape) -> tuple[int, int]:
  """(rows, columns): a column fixes the last index; a vector is one column."""
  columns = shape[-1] if len(shape) > 1 else 1
  return math.prod(shape) // columns, columns


class _Constants(NamedTuple):
  """Two numbers that `_means` needs.

  Attributes:
    unit: float32, a power of two so small that no sum of numbers times unit
      overflows. The product is exact.
    zero: float32, 0.
  """

  unit: jax.Array
  zero: jax.Array


def _unit(numbers: int) -> float:
  """The power of two that scales this many numbers before they are summed."""
  return 0.5 ** numbers.bit_length()


def _of_each(leaves: Sequence[jax.Array]) -> list[_Constants]:
  """Constants for the columns of each leaf.

  Leaves of one shape have constants of their own: XLA would write out arrays
  made of a shared constant, as large as two leaves.
  """
  values = np.asarray([_unit(x.shape[0]) for x in leaves] + [0] * len(leaves))
  bits = values.astype(np.float32).view(np.int32).tolist()
  numbers = [
    jax.lax.bitcast_convert_type(x, jnp.float32)
    for x in barriers.hidden_numbers(bits, leaves[0])
  ]
  units, zeros = numbers[: len(leaves)], numbers[len(leaves) :]
  return list(map(_Constants, units, zeros))


def _means(
  x: jax.Array,
  axis: int,
  held: jax.Array,
  others: jax.Array,
  constants: _Constants,
) -> tuple[jax.Array, jax.Array]:
  """The means along an axis of the numbers >= 0, and of the others.

  Args:
    x: float32 array.
    axis: the numbers along it share their means.
    held: int32, the divisor of the first mean: how many numbers are >= 0.
    others: int32, the divisor of the second mean: how many are negative.
    constants: see `_Constants`.

  Returns:
    (float32, the mean of the numbers >= 0, without the axis; float32, the mean
    of the others). The mean of no number is 0.
  """
  unit, zero = constants
  units = jnp.stack([unit, -unit]).reshape(2, *(1,) * x.ndim)
  # Numbers of the other half enter a sum as zeros. Two separate sums could take
  # six times as long: XLA would write out the constants that they share.
  above, below = jnp.sum(jnp.maximum(x[None] * units, zero), axis + 1)

  def mean(total, number):
    return total / jnp.maximum(number, 1).astype(jnp.float32) / unit

  return mean(above, held), mean(-below, others)


def of_leaves() -> Code:
  """The sign of each element, decoded as the mean of its half of the column.

  A column fixes the last index (an output unit of a Flax kernel). The
  threshold is 0, and 0 counts as positive.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> code = gs.extend.codes.one_bit.of_leaves()
  >>> leaves = gs.extend.Leaves([jnp.array([3.0, 1.0, -4.0])])
  >>> print(jax.jit(lambda: code.round(leaves, None))().scales)
  [ 2. -4.]

  References:
    Seide et al., Interspeech 2014.
  """

  def round(selected, ctx):
    del ctx
    leaves = [leaf.reshape(_columns(leaf.shape)) for leaf in selected.arrays]
    positive = [leaf >= 0 for leaf in leaves]
    held = reductions.count_along(positive, 0)
    means = [
      _means(leaf, 0, own, leaf.shape[0] - own, constants)
      for leaf, own, constants in zip(
        leaves, held, _of_each(leaves), strict=True
      )
    ]
    # A barrier: these few numbers depend on all columns.
    means = barriers.barrier_if_shared(means, len(means))
    return Scaled(positive, jnp.concatenate([*chain(*means)]))

  def pack(rounded, ctx):
    del ctx
    return planar.pack_each(rounded.codes, 1), rounded.scales

  def unpack(words, like, ctx):
    del ctx
    shapes = [x.shape for x in like.codes]
    signs, means = words
    bits = planar.unpack_each(signs, shapes, 1, in_slabs=True)
    return Scaled(jax.tree.map(lambda x: x != 0, bits), means)

  def decode(rounded, ctx, summands):
    del summands
    columns = [_columns(shape) for shape in ctx.shapes]
    # Two vectors, as TPUs would copy a matrix of two rows into another tiling.
    halves = [(width,) for _, width in columns for _ in range(2)]
    means = joining.split(rounded.scales, halves)
    means = barriers.barrier_if_shared(means, len(means))
    pairs = zip(means[::2], means[1::2], strict=True)

    def one(positive, means, shape):
      out = jax.tree.map(lambda x: jnp.where(x, *means), positive)
      return out if isinstance(out, planar.Slabs) else out.reshape(shape)

    return Leaves(list(map(one, rounded.codes, pairs, ctx.shapes)))

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    shortcuts=Shortcuts(
      bounds=lambda rounded, ctx: rounded.scales, reads_rows=True
    ),
  )


def of_parts(bucket_size: int = 512, *, magnitude: bool = False) -> Code:
  """`of_leaves` for `Parts`: d consecutive elements replace a column.

  A part of n elements takes 2 n / d words of means (of the elements >= 0,
  then of the others) and ceil(n / 32) words of signs. Padding does not enter
  the means. The rounding error is orthogonal to the rounded part, so it is
  smaller than the part.

  With one magnitude instead, a part takes n / d words of them. The magnitude is
  the bucket's 2-norm over the square root of its length, so that the decoded
  bucket has the norm of the bucket. The rounding error may be larger than the
  part; 1-bit Adam feeds it back all the same.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> code = gs.extend.codes.one_bit.of_parts(bucket_size=3)
  >>> parts = gs.extend.Parts.of(jnp.array([[3.0, 1.0, -4.0]]), [(3,)])
  >>> print(jax.jit(lambda: code.round(parts, None))().scales)
  [[ 2. -4.]]

  Args:
    bucket_size: d, consecutive elements that share their means.
    magnitude: whether they share one magnitude.

  Raises:
    TypeError: bucket_size is not a whole number.
    ValueError: bucket_size is not positive.

  References:
    Seide et al., Interspeech 2014; there a bucket is a matrix column. Tang et
    al., "1-bit Adam", arXiv 2102.02888; there a bucket is a tensor.
  """
  bucket_size = arguments.whole_number('bucket_size', bucket_size, 1)

  def shaped(rows):
    return rows.reshape(rows.shape[0], -1, bucket_size)

  def means_of(x, valid):
    positive = x >= 0
    held, others = reductions.count_along(
      [valid & positive, valid & ~positive], 2
    )
    unit, zero = jnp.float32(_unit(bucket_size)), jnp.float32(0)
    both = _means(
      jnp.where(valid, x, 0.0), 2, held, others, _Constants(unit, zero)
    )
    return jnp.concatenate(both, axis=1)

  def magnitudes_of(x, valid):
    x = jnp.where(valid, x, 0.0)
    # In units of the largest, as a plain sum of squares may overflow.
    top = jnp.max(jnp.abs(x), axis=2)
    unit = jnp.where(top > 0, top, 1.0)
    squares = jnp.sum(jnp.square(x / unit[:, :, None]), axis=2)
    return top * jnp.sqrt(squares / jnp.maximum(jnp.sum(valid, axis=2), 1))

  def round(parts, ctx):
    del ctx
    x, valid = shaped(parts.rows), shaped(parts.valid)
    means = magnitudes_of(x, valid) if magnitude else means_of(x, valid)
    return Scaled(parts.rows >= 0, means)

  def pack(rounded, ctx):
    del ctx
    signs = jax.vmap(bitmap.pack)(rounded.codes)
    means = fixed_width.of_floats(rounded.scales)
    return jnp.concatenate([means, signs], axis=1)

  def unpack(words, like, ctx):
    del ctx
    length, held = like.codes.shape[1], like.scales.shape[1]
    means = fixed_width.floats_of(words[:, :held])
    positive = jax.vmap(lambda row: bitmap.unpack(row, length))(words[:, held:])
    return Scaled(positive, means)

  def decode(rounded, ctx, summands):
    del summands
    means = rounded.scales[:, :, None]
    above, below = means, -means
    if not magnitude:
      above, below = jnp.split(means, 2, axis=1)
    rows = jnp.where(shaped(rounded.codes), above, below)
    return Parts.of(rows.reshape(rounded.codes.shape), ctx.shapes)

  return Code(
    pack,
    unpack,
    round,
    decode,
    takes=Leaves,
    combines=OfParts(bucket_size, is_contraction=True),
  )


def signs(scale: float) -> Code:
  """Rounds each element to +scale or -scale; zero counts as positive.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> code = gs.extend.codes.signs(0.5)
  >>> rounded = code.round(gs.extend.Leaves([jnp.array([3.0, -1.0])]), None)
  >>> print(*code.decode(rounded, None, 1).arrays)
  [ 0.5 -0.5]

  Args:
    scale: the magnitude, > 0, in units of the gradient.

  Raises:
    TypeError: scale is not a number.
    ValueError: scale is not positive and finite.

  References:
    Bernstein et al., arXiv 1802.04434 (signSGD with majority vote).
  """
  scale = arguments.number('scale', scale, arguments.POSITIVE)

  def round(selected, ctx):
    del ctx
    return [x >= 0 for x in selected.arrays]

  def pack(positive, ctx):
    del ctx
    return planar.pack_each(planar.matrices(positive), 1)

  def unpack(words, like, ctx):
    del ctx
    shapes = [planar.matrix(x.shape) for x in like]
    bits = planar.unpack_each(words, shapes, 1)
    return [x.reshape(y.shape) != 0 for x, y in zip(bits, like, strict=True)]

  def decode(positive, ctx, summands):
    del ctx, summands
    size = jnp.float32(scale)
    return Leaves([jnp.where(x, size, -size) for x in positive])

  return Code(pack, unpack, round, decode, takes=Leaves, combines='votes')
