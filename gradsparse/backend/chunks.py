"""The few largest of each chunk, and sums of such messages: TPUs and GPUs.

CPUs search a chunk like every other vector (selection/candidates.py). TPUs
gather one number at a time, so their kernels do not gather. One kernel finds
the largest: it reads the chunks once and takes one round for each entry of a
chunk. The other adds messages: it compares the place of each element with the
places of the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

from gradsparse.backend import joining
from gradsparse.backend import platforms
import jax
import jax.numpy as jnp
import numpy as np

# Lanes and rows of a TPU's vector register. A chunk must fill whole rows of
# lanes, and a kernel works on a multiple of _CHUNKS chunks.
_LANES, _CHUNKS = 128, 8
# Elements that the search reads at a time: more do not fit with its ranks.
_BLOCK = 1 << 17
# A block must hold _CHUNKS chunks. Small leaves are padded to a chunk.
_LONGEST = _BLOCK // _CHUNKS
# Each entry of a chunk is one more round of the search, and one more comparison
# of each message that is added. Up to _UNROLLED rounds are compiled one by one.
_MOST_FOUND, _MOST_ADDED, _UNROLLED = 64, 32, 32
# XLA for GPUs has a top-k kernel up to this k, from this row length on. Else it
# sorts.
_MOST_ON_GPUS, _SHORTEST_ON_GPUS = 16, 1024
# This kernel takes many times as long as reading the numbers
# (docs/accelerators.md). So in a long chunk it searches the maxima of rows of
# this length, and then the rows with the largest maxima.
_ROW, _LONG = 16, 4096

# The bits of padding, which ranks below all numbers. (A NaN has these bits too,
# but a step with a NaN delivers nothing.)
_FILLED = np.int32(-1)
# Added to a place that is not wanted, which then comes last.
_LAST = np.int32(1 << 30)
_MAGNITUDE = np.int32(2**31 - 1)


def has_kernels(chunk_size: int, k: int) -> bool:
  """Whether the program that is traced now can use both kernels.

  Args:
    chunk_size: elements of a chunk.
    k: entries of a chunk.
  """
  return _can_run(chunk_size) and k <= _MOST_ADDED


def can_search(chunk_size: int, k: int) -> bool:
  """Whether the program that is traced now can use `largest`."""
  if platforms.name() in ('cpu', 'tpu'):
    return _can_run(chunk_size) and k <= _MOST_FOUND
  return k <= _MOST_ON_GPUS and _SHORTEST_ON_GPUS <= chunk_size <= _LONGEST


def _can_run(chunk_size: int) -> bool:
  """Whether kernels for such chunks can be used."""
  # A kernel runs on one device: JAX cannot shard it.
  by_device = bool(jax.sharding.get_abstract_mesh().manual_axes)
  return (
    platforms.name() == 'tpu'
    and by_device
    and joining.can_concat()
    and chunk_size <= _LONGEST
    and chunk_size % _LANES == 0
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
    k values of each chunk, float32[C] each, and their places in the chunk,
    int32[C] each: the largest first; of equal ones, the lower place first.
  """
  rows = [
    jnp.pad(
      x, (0, -x.shape[0] % chunk_size), constant_values=_FILLED.view(np.float32)
    ).reshape(-1, chunk_size)
    for x in leaves
  ]
  find = _by_kernel if platforms.name() == 'tpu' else _by_top_k
  found, places = find(joining.concat(rows), k)
  values = jax.lax.bitcast_convert_type(found, jnp.float32)
  # Vectors, as TPUs would pad a minor axis of length k to a register's lanes.
  return [values[:, j] for j in range(k)], [places[:, j] for j in range(k)]


def _by_top_k(rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
  """The bits and places of the largest, int32[C, k], by XLA's own search."""
  bits = jax.lax.bitcast_convert_type(rows, jnp.int32)
  x = jnp.where(bits == _FILLED, -1.0, jnp.abs(rows))
  chunks, size = x.shape
  if size < _LONG or size % _ROW:
    places = jax.lax.top_k(x, k)[1]
    return jnp.take_along_axis(bits, places, axis=1), places
  x = x.reshape(chunks, -1, _ROW)
  tops = [*_top_k_places(jnp.max(x, axis=2), k).T]
  # Rows by place, so that of equal elements the first is found first.
  winners = jnp.stack(ascending(tops, tops, np.full(chunks, k))[1], axis=1)
  x = jnp.take_along_axis(x, winners[:, :, None], axis=1)
  place = _top_k_places(x.reshape(chunks, -1), k)
  row = jnp.take_along_axis(winners, place // _ROW, axis=1)
  places = row * _ROW + place % _ROW
  return jnp.take_along_axis(bits, places, axis=1), places


def _top_k_places(x: jax.Array, k: int) -> jax.Array:
  """int32[C, k]: places of each row's largest; pads rows to use the kernel."""
  missing = max(0, _SHORTEST_ON_GPUS - x.shape[1])
  return jax.lax.top_k(
    jnp.pad(x, ((0, 0), (0, missing)), constant_values=-2.0), k
  )[1]


def _by_kernel(rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
  """As `_by_top_k`, by a kernel for TPUs that reads each element once."""
  # Pallas takes a second to import, so it is imported where it is needed.
  from jax.experimental import pallas as pl

  chunks, size = rows.shape
  block = _BLOCK // size // _CHUNKS * _CHUNKS
  out = _like((chunks, _LANES), jax.lax.bitcast_convert_type(rows, jnp.int32))
  found, places = pl.pallas_call(
    functools.partial(_rounds, k=k),
    grid=(-(-chunks // block),),
    in_specs=[pl.BlockSpec((block, size), lambda i: (i, 0))],
    out_specs=[pl.BlockSpec((block, _LANES), lambda i: (i, 0))] * 2,
    out_shape=[out, out],
    cost_estimate=pl.CostEstimate(
      flops=8 * k * rows.size,
      bytes_accessed=rows.nbytes + 2 * 4 * _LANES * chunks,
      transcendentals=0,
    ),
    name='top_k_of_chunks',
  )(rows)
  return found[:, :k], places[:, :k]


def _rounds(rows_ref, found_ref, places_ref, *, k: int) -> None:
  """The kernel: each of k rounds takes the largest left of each chunk."""
  bits = jax.lax.bitcast_convert_type(rows_ref[...], jnp.int32)
  rank = jnp.where(bits == _FILLED, -1, bits & _MAGNITUDE)
  place = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 1)
  # One reduction finds the first of equal magnitudes, and its sign.
  signed = 2 * place + (bits < 0).astype(jnp.int32)
  lane = jax.lax.broadcasted_iota(jnp.int32, found_ref.shape, 1)

  def take(j, left):
    rank, found, places = left
    top = jnp.max(rank, axis=1, keepdims=True)
    equal = jnp.where(rank == top, signed, _MAGNITUDE)
    first = jnp.min(equal, axis=1, keepdims=True)
    return (
      jnp.where(signed == first, -2, rank),
      jnp.where(lane == j, top | (first << 31), found),
      jnp.where(lane == j, first >> 1, places),
    )

  none = jnp.zeros(found_ref.shape, jnp.int32)
  _, found_ref[...], places_ref[...] = jax.lax.fori_loop(
    0, k, take, (rank, none, none), unroll=k if k <= _UNROLLED else 1
  )


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


def add(values: jax.Array, places: jax.Array, chunk_size: int) -> jax.Array:
  """The sums of messages that have a few entries of each chunk.

  Messages are added in order, so all workers get the same bits.

  Args:
    values: float32[P, C, k].
    places: int32[P, C, k], distinct in the chunk of a message. A place >= n
      marks an empty entry.
    chunk_size: n.

  Returns:
    float32[C, n].
  """
  from jax.experimental import pallas as pl

  workers, chunks, k = values.shape
  # The entries of a group of workers fill the lanes of a register.
  each = min(workers, _LANES // k)
  groups = -(-workers // each)

  def columns(x, fill):
    missing = ((0, groups * each - workers), (0, 0), (0, 0))
    x = jnp.pad(x, missing, constant_values=fill)
    x = x.reshape(groups, each, chunks, k).transpose(2, 0, 1, 3)
    x = x.reshape(chunks, groups, each * k)
    missing = ((0, 0), (0, 0), (0, _LANES - each * k))
    x = jnp.pad(x, missing, constant_values=fill)
    return x.reshape(chunks, groups * _LANES)

  entries = pl.BlockSpec((_CHUNKS, _LANES), lambda i, group: (i, group))
  return pl.pallas_call(
    functools.partial(_comparisons, count=each * k),
    grid=(-(-chunks // _CHUNKS), groups),
    in_specs=[entries, entries],
    out_specs=pl.BlockSpec((_CHUNKS, chunk_size), lambda i, group: (i, 0)),
    out_shape=_like((chunks, chunk_size), values),
    cost_estimate=pl.CostEstimate(
      flops=3 * workers * k * chunks * chunk_size,
      bytes_accessed=4 * chunks * (chunk_size + 2 * groups * _LANES),
      transcendentals=0,
    ),
    name='add_up_chunks',
  )(columns(values, 0), columns(places, chunk_size))


def _comparisons(values_ref, places_ref, out_ref, *, count: int) -> None:
  """The kernel: adds the entries at their places, one after the other."""
  from jax.experimental import pallas as pl

  @pl.when(pl.program_id(1) == 0)
  def _():
    out_ref[...] = jnp.zeros(out_ref.shape, out_ref.dtype)

  total = out_ref[...]
  place = jax.lax.broadcasted_iota(jnp.int32, total.shape, 1)
  for j in range(count):
    here = place == places_ref[:, j : j + 1]
    total = jnp.where(here, total + values_ref[:, j : j + 1], total)
  out_ref[...] = total


def _like(shape: tuple[int, ...], x: jax.Array) -> Any:
  """A ShapeDtypeStruct of this shape, with x's dtype and manual axes."""
  own = jax.typeof(x).manual_axis_type
  return jax.ShapeDtypeStruct(shape, x.dtype, manual_axis_type=own)
