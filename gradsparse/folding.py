"""Vectors side by side, reduced in a way that XLA does fast on CPUs.

There XLA reduces a mask, or floating-point numbers, with few vector
instructions. Integers in rows of `LANES` it sums at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradsparse import opaque
import jax
import jax.numpy as jnp
import numpy as np

LANES = 32
_HALVED_TO = 4
# Rows of fewer are not worth it.
_FEWEST = 5
# Leaves of fewer elements are joined.
_SMALL = 1 << 14
# XLA on CPUs joins more vectors than this by copying them.
_COPIED = 8


def in_rows(x: jax.Array) -> jax.Array:
  """A vector as rows of `LANES`, filled up with zeros."""
  missing = -x.shape[0] % LANES
  if missing:
    x = jnp.pad(x, (0, missing))
  return x.reshape(-1, LANES)


def row_tops(rows: jax.Array) -> jax.Array:
  """The largest of each row of `LANES` numbers.

  Args:
    rows: int32[..., LANES].

  Returns:
    int32[...].
  """
  # XLA on CPUs takes the larger of two halves with vector instructions, the
  # largest along an axis without: twice as fast down to 4 numbers.
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
    leaves: of each leaf the arrays that are its arguments, equally many.
  """
  wrong = _counts(lambda *arrays: ~test(*arrays), leaves)
  return jnp.max(jnp.max(in_rows(wrong), axis=1), initial=0) == 0


def count(masks: Iterable[jax.Array]) -> jax.Array:
  """How many are True of masks of fewer than 2**31 elements, int32 scalar."""
  rows = in_rows(_counts(lambda mask: mask, [(mask,) for mask in masks]))
  return jnp.sum(jnp.sum(rows, axis=1, dtype=jnp.int32), dtype=jnp.int32)


def top(x: jax.Array) -> jax.Array:
  """The largest number, or 0 if that is negative or not finite; a scalar.

  Args:
    x: float32 or int32, of any shape.
  """
  # The bits of numbers that are not negative order as the numbers do. Those of
  # others are negative too, and integers are compared faster than floats.
  bits = jax.lax.bitcast_convert_type(x.reshape(-1), jnp.int32)
  bits = jnp.maximum(bits, 0)
  if bits.shape[0] > LANES**2:
    # As another type, or XLA makes one reduction of the two, which is slow.
    tops = row_tops(in_rows(bits))
    bits = jax.lax.bitcast_convert_type(tops, jnp.uint32)
  largest = jax.lax.bitcast_convert_type(jnp.max(bits, initial=0), x.dtype)
  return jnp.where(jnp.isfinite(largest), largest, 0)


def total(x: jax.Array) -> jax.Array:
  """The sum of the numbers of a vector, a scalar; of none 0.

  Args:
    x: float32; infinities may become finite.
  """
  block = LANES**2
  whole = x.shape[0] // block * block
  sums = _added(x[:whole].reshape(-1, LANES, LANES), 1)
  return jnp.sum(sums) + jnp.sum(x[whole:])


def sums(x: jax.Array, axis: int) -> jax.Array:
  """The sums along an axis.

  Args:
    x: float32, of any shape; infinities may become finite.
    axis: of x, not negative.
  """
  if x.shape[axis] == 1:
    return jnp.squeeze(x, axis)
  if axis < x.ndim - 1:
    return _added(x, axis)
  folded = _folded(x)
  return jnp.sum(x if folded is None else _added(folded, axis), axis=axis)


def _added(x: jax.Array, axis: int) -> jax.Array:
  """Like `jnp.sum`, but without a place in memory for what it adds up.

  To XLA on CPUs a plain sum is a call of a library that reads arrays, so what
  is computed for it (masked, scaled) would be written out first.
  """
  # Not a plain sum in XLA's eyes, but the same for all numbers.
  least = jnp.finfo(x.dtype).min
  return jax.lax.reduce(
    x, jnp.zeros((), x.dtype), lambda a, b: a + jnp.maximum(b, least), (axis,)
  )


def largest(x: jax.Array, axis: int) -> jax.Array:
  """The largest number along an axis; fast for int32.

  Args:
    x: of any shape, at least one number along the axis.
    axis: of x.
  """
  folded = _folded(x) if axis == x.ndim - 1 else None
  if folded is not None:
    x = jnp.max(folded, axis=axis)
  return jnp.max(x, axis=axis)


def _folded(x: jax.Array) -> jax.Array | None:
  """The last axis in rows, or None if it has too few numbers for that."""
  *rows, length = x.shape
  lanes = _divisor(length)
  if lanes < _FEWEST:
    return None
  return x.reshape(*rows, length // lanes, lanes)


def _divisor(length: int) -> int:
  """The largest divisor that is not above `LANES`."""
  return next(d for d in range(LANES, 0, -1) if length % d == 0)


def counts(masks: Sequence[jax.Array], axis: int) -> list[jax.Array]:
  """How many are True along an axis of each mask, int32.

  Args:
    masks: bool, of any shapes.
    axis: of all of them, not negative.
  """
  sums, rests = [], []
  for mask in masks:
    shape = mask.shape
    whole, last = jnp.split(mask, [shape[axis] // LANES * LANES], axis=axis)
    folded = (*shape[:axis], -1, LANES, *shape[axis + 1 :])
    # XLA writes out what it sums as int32.
    sums.append(jnp.sum(whole.reshape(folded), axis=axis + 1, dtype=jnp.uint32))
    rests.append(jnp.sum(last, axis=axis, dtype=jnp.int32))
  # And two sums, one of the other, would be one.
  sums = opaque.computed_once(sums, len(sums))
  return [
    jnp.sum(x.astype(jnp.int32), axis=axis) + rest
    for x, rest in zip(sums, rests, strict=True)
  ]


def joinable() -> bool:
  """Whether arrays are whole on a device here: JAX would gather parts to join.

  They are not where the mesh around has axes over which JAX divides arrays by
  itself.
  """
  mesh = jax.sharding.get_abstract_mesh()
  others = set(mesh.axis_names) - set(mesh.manual_axes)
  return all(mesh.shape[name] == 1 for name in others)


def _counts(test, leaves) -> jax.Array:
  """int32[rows], how often a test holds in the rows of all leaves.

  Small leaves are joined before they are tested, and what comes of large ones
  afterwards: otherwise XLA would compile several loops for each.
  """
  if not joinable():
    counts = [jnp.sum(test(*x), dtype=jnp.int32).reshape(1) for x in leaves]
    return joined(counts) if counts else jnp.zeros(0, jnp.int32)
  flat = [[x.reshape(-1) for x in arrays] for arrays in leaves]
  small = [arrays for arrays in flat if arrays[0].shape[0] < _SMALL]
  large = [arrays for arrays in flat if arrays[0].shape[0] >= _SMALL]
  if small:
    large.append([joined(x) for x in zip(*small, strict=True)])
  counts = [
    jnp.sum(in_rows(test(*arrays)), axis=1, dtype=jnp.int32) for arrays in large
  ]
  return joined(counts) if counts else jnp.zeros(0, jnp.int32)


def begins(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
  """Where each begins of things of these sizes, one after the other."""
  return np.cumsum([0, *sizes])[:-1]


def joined(vectors: Sequence[jax.Array]) -> jax.Array:
  """Vectors, or rows of equal length, one after the other."""
  return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors)


def joined_once(vectors: Sequence[jax.Array]) -> jax.Array:
  """Vectors one after the other, for several loops to read.

  Few of them XLA on CPUs would compute again in each of these loops.
  """
  both = joined(vectors)
  return both if len(vectors) > _COPIED else opaque.apart(both)


def side_by_side(vectors: Sequence[jax.Array]) -> jax.Array:
  """A few vectors of one type, the largest of which is computed here.

  XLA on CPUs computes what it joins in the loop that joins, and asks of every
  element where it is from; that loop is not vectorised. Of more than eight
  vectors it computes each before, and copies.
  """
  if len(vectors) > _COPIED:
    return joined(vectors)
  sizes = [x.shape[0] for x in vectors]
  second = int(np.argsort(sizes)[-2:][0])
  if sizes[second] < _COPIED or max(sizes) < _SMALL:
    return joined(vectors)
  pieces: list[jax.Array] = []
  for number, x in enumerate(vectors):
    if number == second:
      cuts = np.diff(np.arange(_COPIED + 1) * sizes[number] // _COPIED).tolist()
      pieces += opaque.cut(opaque.apart(x), [(size,) for size in cuts])
    else:
      pieces.append(x)
  return jnp.concatenate(pieces)
