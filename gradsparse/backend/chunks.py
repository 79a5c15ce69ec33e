"""The few largest of each chunk, and sums of such messages: TPUs and GPUs.

CPUs search a chunk like every other vector (selection/candidates.py). TPUs have
kernels of their own (chunk_kernels.py), which read a leaf as it is stored where
they can. Other leaves are written out in rows of one chunk each. GPUs have one
that accumulates, too (chunk_kernels_gpu.py); else they search by XLA's own.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import NamedTuple

from gradsparse.backend import chunk_blocks
from gradsparse.backend import chunk_kernels
from gradsparse.backend import chunk_kernels_gpu
from gradsparse.backend import chunk_sums
from gradsparse.backend import joining
from gradsparse.backend import platforms
from gradsparse.backend import storage
from gradsparse.backend.chunk_search import FILLED
from gradsparse.backend.chunk_search import Pass
from gradsparse.backend.storage import LANES
import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np

# A chunk must fill whole rows of lanes, and eight of them a block.
_LONGEST = 1 << 14
# Each entry of a chunk is one more round of the search, and one more comparison
# of each message that is added.
_MOST_FOUND, _MOST_ADDED = 64, 32
# XLA for GPUs has a top-k kernel up to this k, from this row length on. Else it
# sorts.
_MOST_ON_GPUS, _SHORTEST_ON_GPUS = 16, 1024
# This kernel takes many times as long as reading the numbers
# (docs/accelerators.md). So in a long chunk it searches the maxima of rows of
# this length, and then the rows with the largest maxima.
_ROW, _LONG = 16, 4096

_SEARCH = Pass(lambda ok, x, fields: ([], x), lambda fields, x, there: [], ())
# Added to a place that is not wanted, which then comes last.
_LAST = np.int32(1 << 30)


def can_add(chunk_size: int, k: int) -> bool:
  """Whether the program that is traced now can `add` by kernels.

  Args:
    chunk_size: elements of a chunk.
    k: entries of a chunk.
  """
  return _is_tpu() and can_take(chunk_size, k) and k <= _MOST_ADDED


def can_search(chunk_size: int, k: int) -> bool:
  """Whether the program that is traced now can use `largest`."""
  if _is_tpu():
    return can_take(chunk_size, k)
  return not platforms.is_cpu() and _suits_gpus(chunk_size, k)


def can_take(chunk_size: int, k: int) -> bool:
  """Whether the program that is traced now can use `take`."""
  # A kernel runs on one device: JAX cannot shard it.
  by_device = bool(jax.sharding.get_abstract_mesh().manual_axes)
  if platforms.is_cpu() or not by_device or not joining.can_concat():
    return False
  if _is_tpu():
    fits = chunk_size <= _LONGEST and chunk_size % LANES == 0
    return fits and k <= _MOST_FOUND
  return platforms.has_triton() and _suits_gpus(chunk_size, k)


def _suits_gpus(chunk_size: int, k: int) -> bool:
  return k <= _MOST_ON_GPUS and _SHORTEST_ON_GPUS <= chunk_size <= _LONGEST


def _is_tpu() -> bool:
  return platforms.name() == 'tpu'


def fits(shape: Sequence[int], chunk_size: int, arrays: int) -> bool:
  """Whether `take` can read arrays of this shape, a leaf or several joined.

  Args:
    shape: of the array.
    chunk_size: elements of a chunk.
    arrays: how many arrays of this shape it reads and writes.
  """
  return not _is_tpu() or chunk_blocks.fits(shape, chunk_size, arrays)


def can_compute(*functions: jex_core.Jaxpr) -> bool:
  """Whether `take` can compute what functions of a `Pass` do."""
  return _is_tpu() or all(map(chunk_kernels_gpu.can_compute, functions))


class Chunks(NamedTuple):
  """The chunks of an array, one after the other.

  Attributes:
    size: elements of a whole chunk.
    k: entries of a whole chunk.
    lengths: int[C], elements of each.
    wanted: int[C], entries of each.
  """

  size: int
  k: int
  lengths: np.ndarray
  wanted: np.ndarray


def take(
  work: Pass,
  ok: jax.Array,
  gradient: jax.Array,
  fields: Sequence[jax.Array],
  own: Chunks,
) -> tuple[list[jax.Array], jax.Array]:
  """Accumulates, finds the k largest of each chunk, and removes them.

  Args:
    work: what is computed for each element.
    ok: bool scalar, of which the mask for `work.accumulate` is made.
    gradient: float32 array, of a shape that `fits`.
    fields: float32 arrays of its shape, the memory. They are overwritten.
    own: its chunks.

  Returns:
    (the fields; int32[C, .], see `chunk_search.search`).
  """
  if _is_tpu():
    return chunk_kernels.take(
      work, ok, gradient, fields, own.size, own.k, own.wanted
    )
  return chunk_kernels_gpu.take(
    work, ok, gradient, fields, own.k, own.lengths, own.wanted
  )


def put_back(
  work: Pass,
  taken: Sequence[tuple[list[jax.Array], jax.Array, Chunks]],
  wanted: jax.Array | bool,
) -> list[list[jax.Array]]:
  """The fields as they were before anything was removed, if wanted.

  Args:
    work: what was computed for each element.
    taken: of each array the results of `take`, and its chunks.
    wanted: bool scalar.
  """
  left = [fields for fields, _, _ in taken]
  if not work.changed or wanted is False:
    return left
  if not _is_tpu():
    return [
      chunk_kernels_gpu.put_back(
        work, fields, entries, own.k, own.lengths, wanted
      )
      for fields, entries, own in taken
    ]

  def back(left):
    return [
      chunk_kernels.put_back(work, fields, entries, own.size, own.k)
      for fields, (_, entries, own) in zip(left, taken, strict=True)
    ]

  return (
    back(left)
    if wanted is True
    else jax.lax.cond(wanted, back, lambda x: x, left)
  )


def largest(
  leaves: Sequence[jax.Array], chunk_size: int, k: int
) -> tuple[list[jax.Array], list[jax.Array]]:
  """The k elements of largest magnitude of each chunk of vectors.

  Args:
    leaves: float32 vectors, none empty; the last chunk of each may be short.
    chunk_size: n, elements of a chunk.
    k: how many. Places beyond the end of a short chunk come last.

  Returns:
    As `vectors`: the largest first; of equal ones, the lower place first.
  """
  rows = in_rows(leaves, chunk_size, float(FILLED.view(np.float32)))
  find = _by_kernel if platforms.name() == 'tpu' else _by_top_k
  chunks = sum(number(x.shape[0], chunk_size) for x in leaves)
  return vectors(find(rows, k)[:chunks], k)


def vectors(
  entries: jax.Array, k: int
) -> tuple[list[jax.Array], list[jax.Array]]:
  """k values of each chunk, float32[C] each, and their k places, int32[C] each.

  TPUs would pad a minor axis of length k to the lanes of a register.

  Args:
    entries: int32[C, 2 k or more], as `take` finds them.
    k: entries of a chunk.
  """
  rows = [*entries[:, : 2 * k].T]
  values = [jax.lax.bitcast_convert_type(x, jnp.float32) for x in rows[:k]]
  return values, rows[k:]


def number(size: int, chunk_size: int) -> int:
  """How many chunks a leaf of this many elements has."""
  return -(-size // chunk_size)


def in_rows(
  leaves: Sequence[jax.Array], chunk_size: int, fill: float
) -> jax.Array:
  """The chunks of vectors, a row each; at least as many as a kernel's block.

  Args:
    leaves: vectors.
    chunk_size: n.
    fill: what is beyond their ends.
  """
  rows = [
    jnp.pad(x, (0, -x.shape[0] % chunk_size), constant_values=fill).reshape(
      -1, chunk_size
    )
    for x in leaves
  ]
  missing = max(0, storage.SUBLANES - sum(x.shape[0] for x in rows))
  whole = joining.concat(rows)
  return jnp.pad(whole, ((0, missing), (0, 0)), constant_values=fill)


def of_rows(
  rows: jax.Array, shapes: Sequence[tuple[int, ...]], chunk_size: int
) -> list[jax.Array]:
  """The leaves of `in_rows`."""
  out, begin = [], 0
  for shape in shapes:
    size = math.prod(shape)
    end = begin + number(size, chunk_size)
    out.append(rows[begin:end].reshape(-1)[:size].reshape(tuple(shape)))
    begin = end
  return out


def _by_top_k(rows: jax.Array, k: int) -> jax.Array:
  """The bits and the places of the largest, int32[C, 2 k], by XLA's search."""
  bits = jax.lax.bitcast_convert_type(rows, jnp.int32)
  x = jnp.where(bits == FILLED, -1.0, jnp.abs(rows))
  chunks, size = x.shape
  if size < _LONG or size % _ROW:
    places = jax.lax.top_k(x, k)[1]
    found = jnp.take_along_axis(bits, places, axis=1)
    return jnp.concatenate([found, places], axis=1)
  x = x.reshape(chunks, -1, _ROW)
  tops = [*_top_k_places(jnp.max(x, axis=2), k).T]
  # Rows by place, so that of equal elements the first is found first.
  winners = jnp.stack(ascending(tops, tops, np.full(chunks, k))[1], axis=1)
  x = jnp.take_along_axis(x, winners[:, :, None], axis=1)
  place = _top_k_places(x.reshape(chunks, -1), k)
  row = jnp.take_along_axis(winners, place // _ROW, axis=1)
  places = row * _ROW + place % _ROW
  found = jnp.take_along_axis(bits, places, axis=1)
  return jnp.concatenate([found, places], axis=1)


def _top_k_places(x: jax.Array, k: int) -> jax.Array:
  """int32[C, k]: places of each row's largest; pads rows to use the kernel."""
  missing = max(0, _SHORTEST_ON_GPUS - x.shape[1])
  return jax.lax.top_k(
    jnp.pad(x, ((0, 0), (0, missing)), constant_values=-2.0), k
  )[1]


def _by_kernel(rows: jax.Array, k: int) -> jax.Array:
  """As `_by_top_k`, in rows of 128 lanes, by a kernel for TPUs."""
  return chunk_kernels.take(
    _SEARCH, jnp.bool_(True), rows, [], rows.shape[1], k
  )[1]


def ascending(
  values: Sequence[jax.Array], places: Sequence[jax.Array], wanted: np.ndarray
) -> tuple[list[jax.Array], list[jax.Array]]:
  """Sorts the first `wanted` entries of each chunk by place, others after them.

  Args:
    values: k vectors float32[C].
    places: k vectors int32[C], distinct in a chunk.
    wanted: int[C], how many entries are wanted of each chunk.

  Returns:
    (values, places).
  """
  keys = [jnp.where(j >= wanted, x | _LAST, x) for j, x in enumerate(places)]
  if len(keys) > _MOST_ADDED:  # comparisons would take long to compile
    key, value = jax.lax.sort(
      (jnp.stack(keys, axis=1), jnp.stack(values, axis=1)), num_keys=1
    )
    return [*value.T], [*(key & ~_LAST).T]
  numbers = [sum((x < key).astype(jnp.int32) for x in keys) for key in keys]

  def moved(entries):
    def at(to):
      out = entries[0]
      for x, number in zip(entries[1:], numbers[1:], strict=True):
        out = jnp.where(number == to, x, out)
      return out

    return [at(to) for to in range(len(entries))]

  return moved(values), moved(places)


def add(
  values: jax.Array,
  places: jax.Array,
  shapes: Sequence[tuple[int, ...]],
  chunk_size: int,
) -> list[jax.Array]:
  """The sums of messages that have a few entries of each chunk, by leaf.

  Messages are added in order, so all workers get the same bits.

  Args:
    values: float32[P, k, C], the chunks of all leaves.
    places: int32[P, k, C], distinct in the chunk of a message. A place >= n
      marks an empty entry.
    shapes: of the leaves.
    chunk_size: n.
  """
  columns = (
    chunk_sums.columns(values, 0),
    chunk_sums.columns(places, chunk_size),
  )
  workers, k, _ = values.shape
  count = k * chunk_sums.workers_in_row(workers, k)
  numbers = [number(math.prod(shape), chunk_size) for shape in shapes]
  begins = joining.offsets(numbers).tolist()

  def rows(i):
    own = slice(begins[i], begins[i] + numbers[i])
    return columns[0][own], columns[1][own]

  out: dict[int, jax.Array] = {}
  rest = []
  for i, shape in enumerate(shapes):
    if chunk_blocks.fits(shape, chunk_size):
      own_values, own_places = rows(i)
      out[i] = chunk_sums.add(own_values, own_places, count, shape, chunk_size)
    else:
      rest.append(i)
  if rest:
    first, second = (
      joining.concat(own) for own in zip(*map(rows, rest), strict=True)
    )
    matrix = max(storage.SUBLANES, first.shape[0]), chunk_size
    total = chunk_sums.add(first, second, count, matrix, chunk_size)
    own = of_rows(total, [shapes[i] for i in rest], chunk_size)
    out |= zip(rest, own, strict=True)
  return [out[i] for i in range(len(shapes))]
