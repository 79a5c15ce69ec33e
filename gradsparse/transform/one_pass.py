"""Accumulates, selects and removes in one pass over the leaves, by kernels.

A step reads and writes the memory to accumulate, reads it to select, and reads
and writes it to subtract what was sent. With selection by chunks a kernel does
all three while a block of the leaf is in fast memory or registers. It calls the
memory's own functions: those of an elementwise memory take blocks of a leaf as
they take a leaf.

Nothing is known yet of the other workers: they may reject the step. Then what
was removed is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

from gradsparse.backend import chunks
from gradsparse.backend.chunk_search import Pass
from gradsparse.backend.storage import LANES
from gradsparse.backend.storage import SUBLANES
from gradsparse.sockets import Compressor
from gradsparse.sockets import Full
from gradsparse.sockets import Memory
from gradsparse.transform.buckets import Buckets
from gradsparse.transform.buckets import joined
import jax
import jax.numpy as jnp
import numpy as np

# The matrices of joined leaves are copied on the way in and out. With more than
# this share of all elements in them, one pass takes longer than several.
_JOINED = 1 / 4


class OnePass(NamedTuple):
  """Kernels for all compressed leaves of a step.

  Attributes:
    work: what a kernel computes of an element.
    fields: the names of the memory's fields that it reads or writes.
    chunk_size: elements of a chunk.
    count: elements of a chunk -> its entries.
    alone: numbers of the buckets that a kernel reads as they are.
    joined: for each message the numbers of its other buckets, whose chunks are
      joined to one matrix.
    buckets: the leaves.
  """

  work: Pass
  fields: tuple[str, ...]
  chunk_size: int
  count: Callable[[int], int]
  alone: tuple[int, ...]
  joined: tuple[tuple[int, ...], ...]
  buckets: Buckets

  def take(self, ok: jax.Array, grads: Any, old: Any) -> Taken:
    """Finds the entries of all compressed leaves, and removes them.

    Args:
      ok: whether this worker accumulates its gradient.
      grads: tree of buckets.
      old: the memory's state, by bucket.
    """
    fields = [self._arrays(getattr(old, name)) for name in self.fields]
    own = self._chunks()
    done = [
      chunks.take(self.work, ok, gradient, arrays, its)
      for gradient, its, *arrays in zip(
        self._arrays(grads), own, *fields, strict=True
      )
    ]
    return Taken(self, [(*x, its) for x, its in zip(done, own, strict=True)])

  @property
  def k(self) -> int:
    """The entries of a whole chunk."""
    return self.count(self.chunk_size)

  def leaves(self) -> list[list[int]]:
    """The numbers of the leaves of each array that a kernel reads."""
    members = self.buckets.members
    return [
      [i for n in own for i in members[n]]
      for own in (*((n,) for n in self.alone), *self.joined)
    ]

  def chunks_of(self, leaf: int) -> int:
    """How many chunks a leaf has."""
    size = math.prod(self.buckets.layout.shapes[leaf])
    return chunks.number(size, self.chunk_size)

  def with_arrays(self, state: Any, left: Sequence[Sequence[jax.Array]]) -> Any:
    """The state with other arrays; of each array there are all fields."""
    buckets, new = self.buckets, {}
    for name, own in zip(self.fields, zip(*left, strict=True), strict=True):
      values = list(buckets.treedef.flatten_up_to(getattr(state, name)))
      matrices = own[len(self.alone) :]
      for n, x in zip(self.alone, own[: len(self.alone)], strict=True):
        values[n] = x
      for numbers, matrix in zip(self.joined, matrices, strict=True):
        each = [buckets.members[n] for n in numbers]
        shapes = buckets.layout.shapes_of([i for own in each for i in own])
        leaves = iter(chunks.of_rows(matrix, shapes, self.chunk_size))
        for n, members in zip(numbers, each, strict=True):
          values[n] = joined([next(leaves) for _ in members])
      new[name] = buckets.tree(values)
    return state._replace(**new)

  def _chunks(self) -> list[chunks.Chunks]:
    """The chunks of each array; the last one of a leaf may be shorter."""

    def of_leaf(i):
      size = math.prod(self.buckets.layout.shapes[i])
      whole, rest = divmod(size, self.chunk_size)
      return [self.chunk_size] * whole + [rest] * bool(rest)

    each = [[n for i in own for n in of_leaf(i)] for own in self.leaves()]
    return [
      chunks.Chunks(
        self.chunk_size,
        self.k,
        np.array(lengths),
        np.array([*map(self.count, lengths)]),
      )
      for lengths in each
    ]

  def _arrays(self, tree: Any) -> list[jax.Array]:
    """The buckets that kernels read as they are, and the others as matrices."""
    own = self.buckets.treedef.flatten_up_to(tree)
    out = [own[n] for n in self.alone]
    for numbers in self.joined:
      leaves = [x for n in numbers for x in self.buckets.leaves(n, own[n])]
      vectors = [x.reshape(-1) for x in leaves]
      out.append(chunks.in_rows(vectors, self.chunk_size, 0.0))
    return out


class Taken(NamedTuple):
  """What kernels have done.

  Attributes:
    plan: the kernels.
    arrays: for each array that they read, the memory's fields without entries,
      the entries, and the chunks.
  """

  plan: OnePass
  arrays: Sequence[tuple[list[jax.Array], jax.Array, chunks.Chunks]]

  @property
  def numbers(self) -> list[int]:
    """The buckets from whose memory the entries are removed already."""
    plan = self.plan
    if not plan.work.changed:
      return []
    return [*plan.alone, *(n for own in plan.joined for n in own)]

  def by_leaf(self) -> dict[int, jax.Array]:
    """Number of a leaf -> its entries, int32[chunks, .]."""
    out = {}
    arrays = zip(self.plan.leaves(), self.arrays, strict=True)
    for leaves, (_, found, _) in arrays:
      begin = 0
      for i in leaves:
        end = begin + self.plan.chunks_of(i)
        out[i], begin = found[begin:end], end
    return out

  def memory(self, state: Any, accepted: jax.Array | None) -> Any:
    """The memory without the entries, or with them in a rejected step.

    Args:
      state: after `Memory.accumulate`, for leaves that stay dense.
      accepted: bool scalar. None: with the entries.
    """
    plan, wanted = self.plan, True if accepted is None else ~accepted
    left = chunks.put_back(plan.work, self.arrays, wanted)
    return plan.with_arrays(state, left)


def of(
  memory: Memory,
  compressor: Compressor,
  buckets: Buckets,
  state: Any,
  extra: dict[str, Any],
) -> OnePass | None:
  """The kernels of this step; None if the scheme or platform has none.

  Args:
    memory: the memory of the scheme.
    compressor: its compressor.
    buckets: the leaves.
    state: the memory's state, by bucket.
    extra: keyword arguments of the update.
  """
  if compressor.per_chunk is None or not memory.facts.elementwise:
    return None
  size, count = compressor.per_chunk
  if memory.facts.moments or not chunks.can_take(size, count(size)):
    return None
  names = tuple(
    name
    for name, tree in state._asdict().items()
    if jax.tree.structure(tree) == buckets.treedef
  )
  compressed = [
    n
    for n, dense in enumerate(jax.tree.leaves(buckets.is_dense()))
    if not dense
  ]
  if not names or not compressed:
    return None
  removes = compressor.code.is_exact
  traced = _traced(memory, state, names, extra, removes=removes)
  if traced is None or traced[0].lanes(count(size)) > LANES:
    return None
  arrays = 1 + 2 * len(traced[1])
  alone = tuple(
    n for n in compressed if chunks.fits(buckets.shapes[n], size, arrays)
  )
  others = [
    tuple(n for n in buckets.of_leaves(group.compressed) if n not in alone)
    for group in buckets.groups
  ]
  sizes = [math.prod(shape) for shape in buckets.shapes]
  copied = sum(sizes[n] for own in others for n in own)
  if copied > _JOINED * sum(sizes[n] for n in compressed):
    return None
  return OnePass(
    *traced, size, count, alone, tuple(filter(None, others)), buckets
  )


def _traced(
  memory: Memory,
  state: Any,
  names: Sequence[str],
  extra: dict[str, Any],
  *,
  removes: bool,
) -> tuple[Pass, tuple[str, ...]] | None:
  """The work of a kernel, and the fields that it needs.

  None if the memory's functions read arrays of the program (a traced momentum,
  or keyword arguments of the update), or compute what kernels cannot.

  Args:
    memory: the memory of the scheme.
    state: its state.
    names: of the fields that are like the leaves.
    extra: keyword arguments of the update.
    removes: whether entries are removed.
  """

  def of_fields(fields, others):
    own = {name: [others] for name in names}
    own |= {name: [x] for name, x in zip(used, fields, strict=True)}
    return state._replace(**own)

  def to_fields(state):
    return [getattr(state, name)[0] for name in used]

  def accumulate(ok, gradient, fields):
    old = of_fields(fields, gradient)
    new = to_fields(memory.accumulate([gradient], old, extra, [False]))
    new = [
      n if n is o else jnp.where(ok, n, o)
      for n, o in zip(new, fields, strict=True)
    ]
    gradient = jnp.where(ok, gradient, 0.0)
    kept = of_fields(new, gradient)
    return new, memory.signals([gradient], kept, [False])[0].value

  def remove(fields, values, there):
    if not removes:
      return fields
    kept = of_fields(fields, values)
    sent = Full(jnp.where(there, values, 0.0), there)
    return to_fields(memory.sent(kept, [sent]))

  # The functions are traced twice: with all fields, and with those they use.
  used = tuple(names)
  block = jax.ShapeDtypeStruct((SUBLANES, LANES), jnp.float32)
  mask = jax.ShapeDtypeStruct(block.shape, jnp.bool_)
  fields = [block] * len(names)
  first = jax.make_jaxpr(accumulate)(mask, block, fields)
  second = jax.make_jaxpr(remove)(fields, block, mask)
  if first.consts or second.consts:
    return None
  if not chunks.can_compute(first.jaxpr, second.jaxpr):
    return None
  read = {
    id(x)
    for jaxpr in (first.jaxpr, second.jaxpr)
    for equation in jaxpr.eqns
    for x in equation.invars
  }
  *new, searched = first.jaxpr.outvars
  numbers = range(len(names))
  changed = [
    second.jaxpr.outvars[i] is not second.jaxpr.invars[i] for i in numbers
  ]
  olds = first.jaxpr.invars[2:]
  needed = [
    i
    for i in numbers
    if changed[i]
    or new[i] is not olds[i]
    or {id(olds[i]), id(second.jaxpr.invars[i])} & read
  ]
  used = tuple(names[i] for i in needed)
  work = Pass(
    accumulate,
    remove,
    tuple(at for at, i in enumerate(needed) if changed[i]),
    next((at for at, i in enumerate(needed) if new[i] is searched), None),
  )
  return work, used
