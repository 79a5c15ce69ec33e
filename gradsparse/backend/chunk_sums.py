"""A kernel for TPUs that adds up messages with a few entries of each chunk.

A TPU gathers one number at a time. So the kernel compares the place of each
element with the places of the entries.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math

from gradsparse.backend import chunk_blocks
from gradsparse.backend import chunk_search
from gradsparse.backend.storage import LANES
import jax
import jax.numpy as jnp


def workers_in_row(workers: int, k: int) -> int:
  """How many workers' entries of a chunk are in one row of 128 lanes."""
  return min(workers, LANES // k)


def columns(x: jax.Array, fill: float) -> jax.Array:
  """The entries of each chunk in rows of 128 lanes, as `add` wants them.

  Args:
    x: [P, k, C], of the messages of P workers.
    fill: an empty entry.

  Returns:
    [C, groups x 128], the first workers first.
  """
  workers, k, chunks = x.shape
  each = workers_in_row(workers, k)
  groups = -(-workers // each)
  missing = ((0, groups * each - workers), (0, 0), (0, 0))
  x = jnp.pad(x, missing, constant_values=fill)
  x = x.reshape(groups, each * k, chunks)
  missing = ((0, 0), (0, LANES - each * k), (0, 0))
  x = jnp.pad(x, missing, constant_values=fill)
  return x.reshape(groups * LANES, chunks).T


def add(
  values: jax.Array,
  places: jax.Array,
  count: int,
  shape: Sequence[int],
  chunk_size: int,
) -> jax.Array:
  """The sum of messages that have a few entries of each chunk of a leaf.

  Messages are added in order, so all workers get the same bits.

  Args:
    values: float32[C, groups x 128], see `columns`.
    places: int32, as the values; distinct in the chunk of a message. A place >=
      n marks an empty entry.
    count: how many entries there are in 128 lanes, the first ones.
    shape: of the leaf; `fits` is true of it.
    chunk_size: n.

  Returns:
    float32 array of this shape.
  """
  pl = chunk_search.pallas()
  view = chunk_blocks.view_of(shape, chunk_size)
  groups = values.shape[1] // LANES

  def by_block(x, fill):
    missing = view.grid * view.chunks - x.shape[0]
    x = jnp.pad(x, ((0, missing), (0, 0)), constant_values=fill)
    return x.reshape(view.grid, view.chunks, groups * LANES)

  total = chunk_search.call(
    functools.partial(_add, view=view, count=count),
    by_block(values, 0),
    by_block(places, chunk_size),
    grid=(view.grid, groups),
    in_specs=[view.lanes(), view.lanes()],
    out_specs=view.whole(),
    out_shape=chunk_search.like((view.rows, view.columns), values),
    scratch_shapes=[view.room(), view.room()],
    cost_estimate=pl.CostEstimate(
      flops=3 * count * groups * math.prod(shape),
      bytes_accessed=4 * math.prod(shape) + 2 * values.nbytes,
      transcendentals=0,
    ),
    name='add_up_chunks',
  )
  # Otherwise XLA would compute with the matrix, and then with the leaf.
  return jax.lax.optimization_barrier(total.reshape(tuple(shape)))


def _add(values_ref, places_ref, out_ref, total_ref, room, *, view, count):
  """The kernel: adds the entries at their places, one after the other."""
  pl = chunk_search.pallas()
  shape = (view.chunks, view.chunk_size // LANES, LANES)

  @pl.when(pl.program_id(1) == 0)
  def _():
    total_ref[...] = jnp.zeros(total_ref.shape, total_ref.dtype)

  start = jax.lax.bitcast_convert_type(total_ref[...], jnp.float32)
  place = chunk_blocks.places(shape)

  def add_one(_, carry):
    total, values, places = carry
    here = place == chunk_blocks.column(places, 0, shape)
    total = jnp.where(
      here, total + chunk_blocks.column(values, 0, shape), total
    )
    return total, chunk_blocks.rolled(values), chunk_blocks.rolled(places)

  values, places = (
    ref[...].reshape(view.chunks, LANES) for ref in (values_ref, places_ref)
  )
  total, *_ = jax.lax.fori_loop(
    0, count, add_one, (start.reshape(shape), values, places)
  )
  bits = jax.lax.bitcast_convert_type(total, jnp.int32)
  total_ref[...] = bits.reshape(total_ref.shape)

  @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
  def _():
    rows = view.in_rows(bits, room)
    out_ref[...] = jax.lax.bitcast_convert_type(rows, jnp.float32)
