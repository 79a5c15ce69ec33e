"""Concatenates arrays to one vector, and splits it again."""

from __future__ import annotations

from collections.abc import Sequence
import math

from gradsparse.backend import barriers
import jax
import jax.numpy as jnp
import numpy as np

# Vectors with fewer elements are not worth a loop of their own.
SMALL = 1 << 14
# XLA for CPUs concatenates more vectors than this by copying them.
_COPIED = 8


def offsets(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
  """The offset of each of several concatenated vectors."""
  return np.cumsum([0, *sizes])[:-1]


def hidden_offsets(
  shapes: Sequence[tuple[int, ...]], beside: jax.Array
) -> list[jax.Array]:
  """The offsets of concatenated arrays, as `barriers.hidden_numbers`."""
  begins = offsets([math.prod(shape) for shape in shapes])
  return barriers.hidden_numbers(begins.tolist(), beside)


def split(
  joined: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  at: Sequence[jax.Array] | None = None,
) -> list[jax.Array]:
  """Splits a vector into arrays.

  Args:
    joined: a vector with at least as many elements as all arrays have, or such
      a vector in rows.
    shapes: shapes of the arrays.
    at: the `hidden_offsets` of the arrays, if several vectors are split in the
      same way.
  """
  if joined.ndim > 1:
    begins = offsets([math.prod(shape) for shape in shapes]).tolist()
    return [
      _of_rows(joined, begin, shape)
      for begin, shape in zip(begins, shapes, strict=True)
    ]
  if at is None:
    at = hidden_offsets(shapes, joined)
  return [
    jax.lax.dynamic_slice(
      joined, (begin,), (math.prod(shape),), allow_negative_indices=False
    ).reshape(shape)
    for begin, shape in zip(at, shapes, strict=True)
  ]


def _of_rows(rows: jax.Array, begin: int, shape: tuple[int, ...]) -> jax.Array:
  """An array that begins at an element of a vector in rows."""
  length, size = rows.shape[1], math.prod(shape)
  first, last = begin // length, -(-(begin + size) // length)
  own = rows[first:last].reshape(-1)
  if own.size != size:
    # Whole rows first: otherwise XLA for TPUs would cut leaves out of a matrix
    # with rows of two words, padded to 128.
    own = jax.lax.optimization_barrier(own)
    own = own[begin - first * length :][:size]
  return own.reshape(shape)


def can_concat() -> bool:
  """Whether each device has whole arrays, so that concatenation is local.

  On a mesh with axes over which JAX itself shards arrays, concatenation would
  gather them.
  """
  mesh = jax.sharding.get_abstract_mesh()
  others = set(mesh.axis_names) - set(mesh.manual_axes)
  return all(mesh.shape[name] == 1 for name in others)


def concat(vectors: Sequence[jax.Array]) -> jax.Array:
  """Concatenates vectors, or rows of equal length."""
  return vectors[0] if len(vectors) == 1 else jnp.concatenate(vectors)


def concat_shared(vectors: Sequence[jax.Array]) -> jax.Array:
  """Concatenates vectors that several loops read.

  XLA for CPUs would compute a few vectors again in each of these loops.
  """
  both = concat(vectors)
  return both if len(vectors) > _COPIED else barriers.fusion_barrier(both)


def concat_few(vectors: Sequence[jax.Array]) -> jax.Array:
  """Concatenates vectors of one type, without a slow loop on CPUs.

  XLA for CPUs computes up to eight vectors inside the loop that concatenates.
  That loop tests for every element which vector it is from, and is not
  vectorised. More vectors are computed before the loop and copied. So the
  second largest of a few vectors is cut into eight.
  """
  if len(vectors) > _COPIED:
    return concat(vectors)
  sizes = [x.shape[0] for x in vectors]
  second = int(np.argsort(sizes)[-2:][0])
  if sizes[second] < _COPIED or max(sizes) < SMALL:
    return concat(vectors)
  pieces: list[jax.Array] = []
  for number, x in enumerate(vectors):
    if number == second:
      cuts = np.diff(np.arange(_COPIED + 1) * sizes[number] // _COPIED).tolist()
      pieces += split(barriers.fusion_barrier(x), [(size,) for size in cuts])
    else:
      pieces.append(x)
  return jnp.concatenate(pieces)


# Arrays below this many elements are concatenated before an all-reduce, so that
# a tree with many biases pays few latencies. Larger ones are not worth a copy.
# XLA takes long to compile a concatenation of very many arrays.
_FUSE_BELOW = 1 << 16
_FUSE_AT_MOST = 64


def batches_of(leaves: Sequence[jax.Array], join: bool) -> list[list[int]]:
  """Groups the numbers of nonempty leaves that are summed as one array."""
  alone, small = [], []
  for i, x in enumerate(leaves):
    if join and x.size < _FUSE_BELOW and x.dtype == jnp.float32:
      small += [i] if x.size else []
    elif x.size:
      alone.append([i])
  batches: list[list[int]] = []
  room = 0
  for i in small:
    if leaves[i].size > room or len(batches[-1]) == _FUSE_AT_MOST:
      batches.append([])
      room = _FUSE_BELOW
    batches[-1].append(i)
    room -= leaves[i].size
  return alone + batches
