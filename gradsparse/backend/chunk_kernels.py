"""Kernels for TPUs that select by chunks while they accumulate.

take      does all this in one pass over a leaf and the memory
put_back  undoes the removal
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

from gradsparse.backend import chunk_blocks
from gradsparse.backend import chunk_search
from gradsparse.backend.chunk_blocks import View
from gradsparse.backend.chunk_search import FILLED
from gradsparse.backend.chunk_search import REMOVED
from gradsparse.backend.chunk_search import Pass
from gradsparse.backend.storage import LANES
from gradsparse.backend.storage import SUBLANES
import jax
import jax.numpy as jnp
import numpy as np


def take(
  work: Pass,
  ok: jax.Array,
  gradient: jax.Array,
  fields: Sequence[jax.Array],
  chunk_size: int,
  k: int,
  wanted: np.ndarray | None = None,
) -> tuple[list[jax.Array], jax.Array]:
  """Accumulates, finds the k largest of each chunk, and removes them.

  Args:
    work: what is computed for each element.
    ok: bool scalar, of which the mask for `work.accumulate` is made.
    gradient: float32 leaf; `fits` is true of its shape.
    fields: float32 arrays of its shape, the memory. They are overwritten.
    chunk_size: n, elements of a chunk.
    k: how many; `work.lanes(k)` is at most 128.
    wanted: int[C], how many are removed from each chunk. None: all.

  Returns:
    (the fields; int32[C, 128]: of each chunk k values' bits, the largest first;
    their k places in the chunk; and for each field of `work.kept` the bits of
    its k elements before they were removed).
  """
  pl = chunk_search.pallas()
  arrays = 1 + 2 * len(fields)
  view = chunk_blocks.view_of(gradient.shape, chunk_size, arrays)
  matrix = (view.rows, view.columns)
  few = _few(view, k, wanted)
  # A register: of a scalar there would be no form under vmap.
  flag = jnp.broadcast_to(ok.astype(jnp.int32), (SUBLANES, LANES))
  whole = view.whole()
  *new, entries = chunk_search.call(
    functools.partial(_take, work=work, view=view, k=k, few=len(few)),
    flag,
    *few,
    gradient.reshape(matrix),
    *[x.reshape(matrix) for x in fields],
    grid=(view.grid,),
    in_specs=[
      pl.BlockSpec(flag.shape, lambda i: (0, 0)),
      *[view.lanes()] * len(few),
      *[whole] * (1 + len(fields)),
    ],
    out_specs=[*[whole] * len(fields), view.lanes()],
    out_shape=[
      *[chunk_search.like(matrix, x) for x in fields],
      chunk_search.like((view.grid, view.chunks, LANES), gradient, jnp.int32),
    ],
    scratch_shapes=[view.room()],
    input_output_aliases={2 + len(few) + i: i for i in range(len(fields))},
    cost_estimate=pl.CostEstimate(
      flops=8 * k * gradient.size,
      bytes_accessed=4 * arrays * gradient.size,
      transcendentals=0,
    ),
    name='take_chunks',
  )
  rows = entries.reshape(-1, LANES)[: view.all_chunks]
  return [x.reshape(gradient.shape) for x in new], rows


def _take(ok_ref, *refs, work: Pass, view, k, few) -> None:
  """The kernel: of a block of whole rows and whole chunks."""
  pl = chunk_search.pallas()
  few_refs, (gradient_ref, *both, entries_ref, room) = refs[:few], refs[few:]
  old, new = both[: len(both) // 2], both[len(both) // 2 :]
  gradient = gradient_ref[...]
  ok = jnp.broadcast_to(ok_ref[:1, :1], gradient.shape) != 0
  fields, values = work.accumulate(ok, gradient, [ref[...] for ref in old])
  bits = jax.lax.bitcast_convert_type(values, jnp.int32)
  if view.rows % view.high:
    row = jax.lax.broadcasted_iota(jnp.int32, bits.shape, 0)
    row += pl.program_id(0) * view.high
    bits = jnp.where(row < view.rows, bits, FILLED)
  bits = view.in_chunks(bits, room)
  kept = [
    (work.first_lane(i, k), view.in_chunks(fields[i], room)) for i in work.kept
  ]
  rank, entries = chunk_search.search(
    bits,
    kept,
    k,
    _wanted(few_refs, view, k),
    place=chunk_blocks.places(bits.shape),
    lane=jax.lax.broadcasted_iota(jnp.int32, (view.chunks, 1, LANES), 2),
    fold=chunk_blocks.reduced,
  )
  entries_ref[...] = entries.reshape(entries_ref.shape)
  removed = fields
  if work.changed:
    there = view.in_rows(rank, room) == REMOVED
    removed = work.remove(fields, values, there)
  for ref, x in zip(new, removed, strict=True):
    ref[...] = x


def put_back(
  work: Pass,
  fields: Sequence[jax.Array],
  entries: jax.Array,
  chunk_size: int,
  k: int,
) -> list[jax.Array]:
  """The fields of `take` as they were before it removed anything.

  Args:
    work: as in `take`.
    fields: of the result of `take`, or arrays like them.
    entries: the other result of `take`.
    chunk_size: as in `take`.
    k: as in `take`.
  """
  arrays = 2 * len(work.changed)
  view = chunk_blocks.view_of(fields[0].shape, chunk_size, arrays)
  missing = view.grid * view.chunks - view.all_chunks
  entries = jnp.pad(entries, ((0, missing), (0, 0)))
  entries = entries.reshape(view.grid, view.chunks, LANES)
  own = [fields[i].reshape(view.rows, view.columns) for i in work.changed]
  new = chunk_search.call(
    functools.partial(_put_back, work=work, view=view, k=k),
    entries,
    *own,
    grid=(view.grid,),
    in_specs=[view.lanes(), *[view.whole()] * len(own)],
    out_specs=[view.whole()] * len(own),
    out_shape=[chunk_search.like(x.shape, x) for x in own],
    scratch_shapes=[view.room()],
    input_output_aliases={1 + i: i for i in range(len(own))},
    name='put_chunks_back',
  )
  out = list(fields)
  for i, x in zip(work.changed, new, strict=True):
    out[i] = x.reshape(fields[i].shape)
  return out


def _put_back(entries_ref, *refs, work, view, k) -> None:
  """The kernel: writes the entries at their places, one after the other.

  Those that were found but not removed are in the memory, with the same bits.
  """
  *both, room = refs
  old, new = both[: len(both) // 2], both[len(both) // 2 :]
  shape = (view.chunks, view.chunk_size // LANES, LANES)
  place = chunk_blocks.places(shape)
  entries = entries_ref[...].reshape(view.chunks, LANES)
  for i, before, after in zip(work.changed, old, new, strict=True):
    first = work.first_lane(i, k)
    bits = view.in_chunks(before[...], room)

    def put_one(_, carry, first=first):
      bits, entries = carry
      here = place == chunk_blocks.column(entries, k, shape)
      new = chunk_blocks.column(entries, first, shape)
      return jnp.where(here, new, bits), chunk_blocks.rolled(entries)

    bits, _ = jax.lax.fori_loop(0, k, put_one, (bits, entries))
    bits = view.in_rows(bits, room)
    after[...] = jax.lax.bitcast_convert_type(bits, jnp.float32)


def _few(view: View, k: int, wanted: np.ndarray | None) -> list[jax.Array]:
  """For a kernel how many entries are wanted of a chunk; [] if always k."""
  if wanted is None or (wanted == k).all():
    return []
  missing = view.grid * view.chunks - len(wanted)
  rows = jnp.asarray(np.pad(wanted, (0, missing)), jnp.int32)[:, None]
  shape = (view.grid, view.chunks, LANES)
  return [jnp.broadcast_to(rows, (rows.shape[0], LANES)).reshape(shape)]


def _wanted(refs: Sequence[Any], view: View, k: int) -> Any:
  """k, or how many entries are wanted of each chunk, [chunks, 1, 128]."""
  return refs[0][...].reshape(view.chunks, 1, LANES) if refs else k
