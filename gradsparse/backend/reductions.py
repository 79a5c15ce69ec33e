"""Reductions in forms that XLA for CPUs compiles to fast loops.

XLA for CPUs reduces masks and floating-point numbers with few vector
instructions. It sums integers in rows of `ROW` at the speed of memory, and
finds the largest of integers faster than of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import functools

from gradsparse.backend import barriers
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import storage
import jax
import jax.numpy as jnp
import numpy as np

# Numbers of a row in which integers are added up.
ROW = 32
_HALVED_TO = 4
# Rows of fewer numbers are not worth a reshape.
_FEWEST = 5
# So many slices are compared one by one.
_FEW_SLICES = 32


def row_length() -> int:
  """The row length with the fastest `row_max`, a multiple of `ROW`."""
  return storage.LANES if platforms.stores_tiles() else ROW


def in_rows(x: jax.Array, length: int = ROW) -> jax.Array:
  """Reshapes a vector to rows of this length, padded with zeros."""
  missing = -x.shape[0] % length
  if missing:
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, length)


@platforms.elsewhere(lambda rows: jnp.max(rows, axis=-1))
def row_max(rows: jax.Array) -> jax.Array:
  """The largest number of each row of length `row_length()`.

  Args:
    rows: int32[..., n], n a power of two.

  Returns:
    int32[...].
  """
  # XLA for CPUs compares two halves with vector instructions, but reduces an
  # axis without them: halving is twice as fast, down to 4 numbers.
  while rows.shape[-1] > _HALVED_TO:
    half = rows.shape[-1] // 2
    rows = jnp.maximum(rows[..., :half], rows[..., half:])
  return jnp.max(rows, axis=-1)


def all_true(
  test: Callable[..., jax.Array], leaves: Iterable[tuple[jax.Array, ...]]
) -> jax.Array:
  """Whether an elementwise test holds everywhere, bool scalar.

  Args:
    test: arrays of one shape -> bool, of that shape.
    leaves: for each leaf, the arguments of `test`.
  """

  def leaf_by_leaf(*leaves):
    ok = jnp.bool_(True)
    for arrays in _small_joined(leaves) if joining.can_concat() else leaves:
      ok &= jnp.all(test(*arrays))
    return ok

  @platforms.elsewhere(leaf_by_leaf)
  def in_counts(*leaves):
    wrong = _counts(lambda *arrays: ~test(*arrays), leaves)
    return jnp.max(jnp.max(in_rows(wrong), axis=1), initial=0) == 0

  return in_counts(*leaves)


def count(masks: Iterable[jax.Array]) -> jax.Array:
  """The number of True elements of masks, less than 2**31 in all, int32."""
  return _count(*masks)


def _sums(*masks):
  """The form for other chips: a sum for each leaf."""
  counts = [jnp.sum(mask, dtype=jnp.int32) for mask in masks]
  return sum(counts, jnp.int32(0))


@platforms.elsewhere(_sums)
def _count(*masks):
  rows = in_rows(_counts(lambda mask: mask, [(mask,) for mask in masks]))
  return jnp.sum(jnp.sum(rows, axis=1, dtype=jnp.int32), dtype=jnp.int32)


def top(x: jax.Array) -> jax.Array:
  """The largest number, or 0 if it is negative or not finite; a scalar.

  Args:
    x: float32 or int32, of any shape.
  """
  if not platforms.is_cpu():
    largest = jnp.max(x, initial=0)
    return jnp.where(jnp.isfinite(largest), largest, 0)
  # The bits of nonnegative numbers order as the numbers do, and those of
  # negative numbers are negative. Integers are compared faster than floats.
  bits = jax.lax.bitcast_convert_type(x.reshape(-1), jnp.int32)
  bits = _largest_bits(jnp.maximum(bits, 0))
  largest = jax.lax.bitcast_convert_type(bits, x.dtype)
  return jnp.where(jnp.isfinite(largest), largest, 0)


@platforms.elsewhere(lambda bits: jnp.max(bits, initial=0))
def _largest_bits(bits: jax.Array) -> jax.Array:
  if bits.shape[0] > ROW**2:
    # As another type, or XLA merges the two reductions, which is slow.
    tops = row_max(in_rows(bits))
    unsigned = jax.lax.bitcast_convert_type(tops, jnp.uint32)
    return jnp.max(unsigned, initial=0).astype(jnp.int32)
  return jnp.max(bits, initial=0)


def total(x: jax.Array) -> jax.Array:
  """The sum of all numbers, a scalar.

  Args:
    x: float32, of any shape; infinities may become finite.
  """
  if not platforms.is_cpu():
    return jnp.sum(x)
  x = x.reshape(-1)
  block = ROW**2
  whole = x.shape[0] // block * block
  sums = _added(x[:whole].reshape(-1, ROW, ROW), 1)
  return jnp.sum(sums) + jnp.sum(x[whole:])


def sum_along(x: jax.Array, axis: int) -> jax.Array:
  """The sums along an axis.

  Args:
    x: float32, of any shape; infinities may become finite.
    axis: an axis of x, not negative.
  """
  if x.shape[axis] == 1:
    return jnp.squeeze(x, axis)
  if not platforms.is_cpu():
    return jnp.sum(x, axis)
  if axis < x.ndim - 1:
    return _added(x, axis)
  folded = _folded(x)
  return jnp.sum(x if folded is None else _added(folded, axis), axis=axis)


def _added(x: jax.Array, axis: int) -> jax.Array:
  """`jnp.sum`, but its operand need not be written to memory.

  XLA for CPUs compiles a plain sum to a library call that reads arrays, so an
  operand that is computed (masked, scaled) would be written out first.
  """
  # XLA does not recognise this as a sum; the results are equal.
  least = jnp.finfo(x.dtype).min
  return jax.lax.reduce(
    x, jnp.zeros((), x.dtype), lambda a, b: a + jnp.maximum(b, least), (axis,)
  )


def largest_along(x: jax.Array, axis: int) -> jax.Array:
  """The largest magnitude along an axis.

  Args:
    x: float32, of any shape, at least one number along the axis.
    axis: an axis of x, not negative.
  """
  if platforms.name() == 'tpu':
    if axis >= x.ndim - 2 or x.shape[axis] > _FEW_SLICES:
      return jnp.max(jnp.abs(x), axis)
    # XLA for TPUs takes nearly twice as long for a reduction.
    slices = [
      jnp.abs(jax.lax.index_in_dim(x, i, axis, keepdims=False))
      for i in range(x.shape[axis])
    ]
    return functools.reduce(jnp.maximum, slices)
  # Without their signs, the bits of numbers order as the magnitudes do.
  bits = jax.lax.bitcast_convert_type(x, jnp.int32) & np.int32(2**31 - 1)
  return jax.lax.bitcast_convert_type(max_along(bits, axis), jnp.float32)


def max_along(x: jax.Array, axis: int) -> jax.Array:
  """The largest number along an axis; fast for int32.

  Args:
    x: of any shape, at least one number along the axis.
    axis: an axis of x.
  """
  inner = axis == x.ndim - 1 and platforms.is_cpu()
  folded = _folded(x) if inner else None
  if folded is not None:
    x = jnp.max(folded, axis=axis)
  return jnp.max(x, axis=axis)


def _folded(x: jax.Array) -> jax.Array | None:
  """Reshapes the last axis to rows; None if the rows would be too short."""
  *rows, length = x.shape
  lanes = _divisor(length)
  if lanes < _FEWEST:
    return None
  return x.reshape(*rows, length // lanes, lanes)


def _divisor(length: int) -> int:
  """The largest divisor that is not above `ROW`."""
  return next(d for d in range(ROW, 0, -1) if length % d == 0)


def count_along(masks: Sequence[jax.Array], axis: int) -> list[jax.Array]:
  """The number of True elements along an axis of each mask, int32.

  Args:
    masks: bool, of any shapes.
    axis: an axis of all masks, not negative.
  """
  if not platforms.is_cpu():
    return [jnp.sum(mask, axis, dtype=jnp.int32) for mask in masks]
  sums, rests = [], []
  for mask in masks:
    shape = mask.shape
    whole, last = jnp.split(mask, [shape[axis] // ROW * ROW], axis=axis)
    folded = (*shape[:axis], -1, ROW, *shape[axis + 1 :])
    # XLA would write out the operand of an int32 sum.
    sums.append(jnp.sum(whole.reshape(folded), axis=axis + 1, dtype=jnp.uint32))
    rests.append(jnp.sum(last, axis=axis, dtype=jnp.int32))
  # The barrier keeps XLA from merging the two sums.
  sums = barriers.barrier_if_shared(sums, len(sums))
  return [
    jnp.sum(x.astype(jnp.int32), axis=axis) + rest
    for x, rest in zip(sums, rests, strict=True)
  ]


def _counts(test, leaves) -> jax.Array:
  """int32[rows], how often a test holds in each row of all leaves.

  Small leaves are concatenated before the test, the counts of large leaves
  after it: otherwise XLA would compile several loops for each leaf.
  """
  if not joining.can_concat():
    counts = [jnp.sum(test(*x), dtype=jnp.int32).reshape(1) for x in leaves]
    return joining.concat(counts) if counts else jnp.zeros(0, jnp.int32)
  counts = [
    jnp.sum(
      in_rows(test(*[x.reshape(-1) for x in arrays])), axis=1, dtype=jnp.int32
    )
    for arrays in _small_joined(leaves)
  ]
  return joining.concat(counts) if counts else jnp.zeros(0, jnp.int32)


def _small_joined(leaves):
  """The large leaves, and then all small ones as one vector."""
  large = [arrays for arrays in leaves if arrays[0].size >= joining.SMALL]
  small = [
    [x.reshape(-1) for x in arrays]
    for arrays in leaves
    if arrays[0].size < joining.SMALL
  ]
  if small:
    large.append([joining.concat(x) for x in zip(*small, strict=True)])
  return large
