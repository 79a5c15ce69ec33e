"""A kernel for GPUs that selects by chunks while it accumulates.

A GPU stores a leaf in row-major order, so a chunk is a run of a vector. Each
block of threads has one chunk, in registers, and reads and writes it once. The
kernel is written in Pallas, for Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

from gradsparse.backend import chunk_search
from gradsparse.backend import joining
from gradsparse.backend.chunk_search import FILLED
from gradsparse.backend.chunk_search import REMOVED
from gradsparse.backend.chunk_search import Pass
import jax
from jax.extend import core as jex_core
import jax.numpy as jnp
import numpy as np

# Elements of a chunk that a warp of 32 threads holds in registers.
_OF_WARP = 512
# What a block of threads is told of its chunk: where it begins, how many
# elements it has, and how many are removed.
_TOLD = 3
_BEFORE = 3  # arguments before the fields
# What Triton knows, of what a memory may compute.
_KNOWN = frozenset(
  'abs add and clamp convert_element_type broadcast_in_dim div eq exp ge gt '
  'integer_pow is_finite jit le log lt max min mul ne neg not or pow reshape '
  'rsqrt select_n sign sqrt square sub tanh xor'.split()
)


def can_compute(jaxpr: jex_core.Jaxpr) -> bool:
  """Whether a kernel can compute what a memory's function does."""
  return all(
    str(equation.primitive) in _KNOWN
    and all(map(can_compute, jex_core.jaxprs_in_params(equation.params)))
    for equation in jaxpr.eqns
  )


def take(
  work: Pass,
  ok: jax.Array,
  gradient: jax.Array,
  fields: Sequence[jax.Array],
  k: int,
  lengths: np.ndarray,
  wanted: np.ndarray,
) -> tuple[list[jax.Array], jax.Array]:
  """Accumulates, finds the k largest of each chunk, and removes them.

  Args:
    work: what is computed for each element.
    ok: bool scalar, of which the mask for `work.accumulate` is made.
    gradient: float32 array, in which all chunks lie one after the other.
    fields: float32 arrays of its shape, the memory. They are overwritten.
    k: how many.
    lengths: int[C], elements of each chunk.
    wanted: int[C], how many are removed from each chunk.

  Returns:
    (the fields; int32[C, .]: of each chunk k values' bits, the largest first;
    their k places in the chunk; and for each field of `work.kept` the bits of
    its k elements before they were removed).
  """
  from jax.experimental.pallas import triton

  chunks, lanes = len(lengths), _power(work.lanes(k))
  told = np.stack([joining.offsets(lengths), lengths, wanted], axis=1)
  # There are as many places as rounds, also in a shorter leaf.
  n = _power(max(k, *lengths))
  *new, entries = chunk_search.call(
    functools.partial(_take, work=work, n=n, k=k, lanes=lanes),
    ok.astype(jnp.int32).reshape(1),
    jnp.asarray(told.reshape(-1), jnp.int32),
    gradient.reshape(-1),
    *[x.reshape(-1) for x in fields],
    grid=(chunks,),
    out_shape=[
      *[chunk_search.like((x.size,), x) for x in fields],
      chunk_search.like((chunks * lanes,), gradient, jnp.int32),
    ],
    input_output_aliases={_BEFORE + i: i for i in range(len(fields))},
    compiler_params=triton.CompilerParams(
      num_warps=max(1, n // _OF_WARP), num_stages=1
    ),
    name='take_chunks',
  )
  shaped = [x.reshape(gradient.shape) for x in new]
  return shaped, entries.reshape(chunks, lanes)


def _take(ok_ref, told_ref, gradient_ref, *refs, work, n, k, lanes) -> None:
  """The kernel: of one chunk. Arrays have a power of two as many elements."""
  from jax.experimental.pallas import triton

  pl = chunk_search.pallas()
  *both, entries_ref = refs
  old, new = both[: len(both) // 2], both[len(both) // 2 :]
  chunk = pl.program_id(0)
  begin, length, wanted = (told_ref[_TOLD * chunk + i] for i in range(_TOLD))
  place = jax.lax.iota(jnp.int32, n)
  inside = place < length
  at = pl.ds(begin, n)

  def read(ref):
    return triton.load(ref.at[at], mask=inside, other=0.0)

  ok = jnp.broadcast_to(ok_ref[0] != 0, (n,))
  fields, values = work.accumulate(ok, read(gradient_ref), [*map(read, old)])

  def bits(x):
    return jax.lax.bitcast_convert_type(x, jnp.int32)

  rank, entries = chunk_search.search(
    jnp.where(inside, bits(values), FILLED),
    [(work.first_lane(i, k), bits(fields[i])) for i in work.kept],
    k,
    wanted,
    place=place,
    lane=jax.lax.iota(jnp.int32, lanes),
    fold=lambda fold, x: fold(x),
  )
  if work.changed:
    fields = work.remove(fields, values, rank == REMOVED)
  for ref, x in zip(new, fields, strict=True):
    triton.store(ref.at[at], x, mask=inside)
  triton.store(entries_ref.at[pl.ds(chunk * lanes, lanes)], entries)


def put_back(
  work: Pass,
  fields: Sequence[jax.Array],
  entries: jax.Array,
  k: int,
  lengths: np.ndarray,
  wanted: jax.Array | bool,
) -> list[jax.Array]:
  """The fields of `take` as they were before it removed anything, if wanted.

  Entries are written in any case, or else beyond the end: for a condition a
  GPU would wait for its host.

  Args:
    work: as in `take`.
    fields: of the result of `take`.
    entries: the other result of `take`.
    k: as in `take`.
    lengths: as in `take`.
    wanted: bool scalar.
  """
  begins = jnp.asarray(joining.offsets(lengths), jnp.int32)[:, None]
  place = entries[:, k : 2 * k]
  there = (place < jnp.asarray(lengths, jnp.int32)[:, None]) & wanted
  # Distinct also where nothing is written, and unsigned: JAX would add the size
  # to a negative index, so one beyond 2^31 would write.
  beyond = jnp.arange(place.size, dtype=jnp.uint32).reshape(place.shape)
  inside = (begins + place).astype(jnp.uint32)
  at = jnp.where(there, inside, jnp.uint32(fields[0].size) + beyond)
  out = list(fields)
  for i in work.changed:
    first = work.first_lane(i, k)
    before = jax.lax.bitcast_convert_type(
      entries[:, first : first + k], jnp.float32
    )
    x = out[i].reshape(-1).at[at].set(before, mode='drop', unique_indices=True)
    out[i] = x.reshape(out[i].shape)
  return out


def _power(number: Any) -> int:
  """The least power of two that is not less."""
  return 1 << (int(number) - 1).bit_length()
