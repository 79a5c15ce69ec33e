"""One update, receive(send(accumulate)), on one device's part of the leaves.

Its three stages:

  accumulate  step.py     adds the gradient to the memory, pre-reduces
  send        send.py     chooses the size of the messages; messages.py selects,
                          rounds, packs and exchanges, which decodes
  receive     receive.py  divides, checks, subtracts the delivered values
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradsparse import health
from gradsparse.backend import barriers
from gradsparse.collectives import Comm
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Memory
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import Signal
from gradsparse.sockets import checked_state
from gradsparse.sockets.ownership import local_fields
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.transform import one_pass
from gradsparse.transform.buckets import Buckets
from gradsparse.transform.buckets import make_buckets
from gradsparse.transform.layout import Layout
from gradsparse.transform.messages import Outgoing
from gradsparse.transform.messages import Scheme
from gradsparse.transform.receive import receive
from gradsparse.transform.send import send
import jax
import jax.numpy as jnp

# No worker has this number, so keys folded with it differ from all workers'.
_APART = 2**31 - 1
# What `PreReduce.reduce` names: (comm, operands) -> the reduced operands.
REDUCTIONS: dict[str, Callable[[Comm, Any], Any]] = {
  'max': lambda comm, operands: comm.max(operands),
  'mean': lambda comm, operands: comm.mean(operands),
}


def one_step(
  scheme: Scheme,
  comm: Comm,
  layout: Layout,
  grads: Any,
  state: CompressedMeanState,
  extra: dict[str, Any],
  *,
  return_delivered: bool,
) -> tuple[Any, CompressedMeanState, Any]:
  """Turns local gradients into the mean over workers.

  Args:
    scheme: the scheme.
    comm: the workers; its shards are the other devices of this worker.
    layout: the leaves, as this device has them.
    grads: gradients, as this device has them.
    state: state, as this device has it.
    extra: keyword arguments of the update.
    return_delivered: whether to return the delivered values.

  Returns:
    (tree for the optimizer, NaN if the step was rejected; new state; None, or
    this worker's delivered values: a float32 tree, float64 for leaves that are
    sent as float64).
  """
  outgoing = accumulate(scheme, comm, layout, grads, state, extra)
  exchanged = send(scheme, comm, outgoing)
  return receive(
    scheme, comm, outgoing, exchanged, state, return_delivered=return_delivered
  )


def accumulate(
  scheme: Scheme,
  comm: Comm,
  layout: Layout,
  grads: Any,
  state: CompressedMeanState,
  extra: dict[str, Any],
) -> Outgoing:
  """Adds the gradient to the memory, and runs the workers' pre-reductions.

  A worker that refuses its gradient keeps its memory and continues with a
  gradient of zeros. Its message tells the others to reject the step.
  """
  memory, compressor = scheme.memory, scheme.compressor
  buckets = make_buckets(layout, memory, grads, state.steps)
  wide = buckets.join(_widened(scheme, layout, grads))
  old = buckets.join_state(state.memory)
  is_dense = buckets.is_dense()
  moments = None
  if memory.facts.moments:
    moments = buckets.join(extra['second_moment'])
    extra = {**extra, 'second_moment': moments}

  def take_in(kept):
    return checked_state(
      'memory.accumulate', memory.accumulate(wide, kept, extra, is_dense), kept
    )

  # Without a check of gradients here, a worker's devices need not agree.
  ok = _in_range(moments, memory, compressor, state.steps)
  if not scheme.judged_on_arrival:
    ok &= health.can_add(jax.tree.leaves(wide))
    ok = comm.shards.all(ok)
  kept = _in_own_place(ok, take_in, old)
  kernels = one_pass.of(memory, compressor, buckets, old, extra)
  by_kernel = None if kernels is None else kernels.take(ok, wide, old)
  accepted = jax.tree.map(lambda g: jnp.where(ok, g, 0.0), wide)
  by_bucket = buckets.treedef.flatten_up_to(
    memory.signals(accepted, kept, is_dense)
  )
  signals = buckets.signals(by_bucket)
  if by_kernel is not None:
    for i, entries in by_kernel.by_leaf().items():
      signals[i] = signals[i]._replace(found=entries)
  contexts, nbytes = _contexts(scheme, comm, buckets, signals, state)
  return Outgoing(
    buckets,
    kept,
    ok,
    values=[signal.value for signal in by_bucket],
    signals=signals,
    server_residual=layout.collect(state.exchange),
    contexts=contexts,
    pre_reduced_bytes=nbytes,
    one_pass=by_kernel,
  )


def _widened(scheme: Scheme, layout: Layout, grads: Any) -> Any:
  """The gradients as float32; uncompressed float64 leaves stay float64."""
  leaves, treedef = jax.tree.flatten(grads)
  own = range(len(leaves)) if scheme.adds_leaves else set(layout.dense)
  return jax.tree.unflatten(
    treedef,
    [
      g.astype(health.wide(g.dtype) if i in own else jnp.float32)
      for i, g in enumerate(leaves)
    ],
  )


def _in_range(
  moments: Any, memory: Memory, compressor: Compressor, step: Any
) -> jax.Array:
  """bool scalar: whether second moments and traced arguments are in range."""
  fits = health.can_add_moments(moments) & memory.facts.usable()
  ladder = compressor.ladder
  if ladder is not None and ladder.usable is not None:
    fits &= ladder.usable(step)
  return fits


def _in_own_place(
  wanted: jax.Array, accumulate: Callable[[Any], Any], memory: Any
) -> Any:
  """The memory after `accumulate` if `wanted`; shared fields do not change."""

  def own(memory):
    return {name: getattr(memory, name) for name in local_fields(memory)}

  return memory._replace(
    **barriers.in_place_if(
      wanted,
      lambda fields: own(accumulate(memory._replace(**fields))),
      own(memory),
    )
  )


def _contexts(
  scheme: Scheme,
  comm: Comm,
  buckets: Buckets,
  signals: Mapping[int, Signal],
  state: CompressedMeanState,
) -> tuple[list[Context], list[int]]:
  """The context of each message, with the results of `PreReduce` and `look`.

  Returns:
    (the context of each group, without a size; for each group, the bytes of
    this worker's operands of `PreReduce`).
  """
  layout, groups = buckets.layout, buckets.groups
  ladder = scheme.compressor.ladder
  key = jax.random.fold_in(jax.random.key(scheme.seed), state.steps)
  compressed = [group for group in groups if group.compressed]
  contexts, reduced_bytes = [], []
  for number, group in enumerate(groups):
    shards = comm.shards.over(group.axes)
    own = key
    if number or shards.axes:
      # Groups, and shards of a worker, have independent draws.
      for part in (_APART, number, shards.index()):
        own = jax.random.fold_in(own, part)
    ctx = Context(
      MessageLeaves(
        shapes=layout.shapes_of(group.compressed),
        cuts=tuple(layout.cuts[i] for i in group.compressed),
        buckets=buckets.lengths(group),
        shards=shards,
      ),
      workers=comm.size,
      step=state.steps,
      key=jax.random.fold_in(own, 1 + comm.index()),
      shared_key=jax.random.fold_in(own, 0),
      state=state.compressor,
    )
    if state.compressor and len(compressed) > 1:
      places = [layout.compressed.index(i) for i in group.compressed]
      ctx = ctx._replace(state=tuple(state.compressor[i] for i in places))
    nbytes = 0
    if group.compressed:
      of_group = [signals[i] for i in group.compressed]
      reduced, nbytes = _pre_reduced(scheme.compressor, of_group, ctx, comm)
      ctx = ctx._replace(prepared=reduced)
      if ladder is not None and ladder.look is not None:
        ctx = ctx._replace(prepared=ladder.look(of_group, ctx))
    contexts.append(ctx)
    reduced_bytes.append(nbytes)
  return contexts, reduced_bytes


def _pre_reduced(
  compressor: Compressor, signals: Sequence[Signal], ctx: Context, comm: Comm
) -> tuple[Any, int]:
  """The result of `PreReduce`, and the bytes of this worker's operands."""
  if compressor.pre_reduce is None:
    return None, 0
  operands = compressor.pre_reduce.operands(list(signals), ctx)
  nbytes = sum(x.nbytes for x in jax.tree.leaves(operands))
  reduced = REDUCTIONS[compressor.pre_reduce.reduce](comm, operands)
  return compressor.pre_reduce.finish(reduced, ctx), nbytes
