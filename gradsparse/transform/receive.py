"""Computes the update and the new state from the totals of a step.

The code is the same for every size of the messages. Only here, totals are
divided by their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradsparse import health
from gradsparse.backend import barriers
from gradsparse.collectives import Comm
from gradsparse.sockets import Delivered
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Full
from gradsparse.sockets import Sent
from gradsparse.sockets import checked_state
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import Stats
from gradsparse.traffic import counting
from gradsparse.transform.layout import Group
from gradsparse.transform.messages import Outgoing
from gradsparse.transform.messages import Scheme
import jax
import jax.numpy as jnp


def receive(
  scheme: Scheme,
  comm: Comm,
  outgoing: Outgoing,
  exchanged: Sequence[Exchanged],
  state: CompressedMeanState,
  *,
  return_delivered: bool,
) -> tuple[Any, CompressedMeanState, Any]:
  """Computes the update and the new state.

  Args:
    scheme: the scheme.
    comm: the workers.
    outgoing: this worker's data before it sent.
    exchanged: the result of each group's exchange.
    state: the state before the step.
    return_delivered: whether to return the delivered values.

  Returns:
    See `one_step`.
  """
  buckets, memory, delivered = outgoing.buckets, outgoing.kept, None
  means = means_of(outgoing, exchanged, comm.size)
  updates = _updates(scheme, comm, outgoing, means)
  accepted, sent, overflow = _verdict(comm, outgoing, exchanged, updates)
  if comm.recorder is None or comm.recorder.computes:
    credited = deliveries(outgoing, [e.delivered for e in exchanged], accepted)
    let_go = credited
    if any(e.extras.removed is not None for e in exchanged):
      parts = [e.extras.removed or e.delivered for e in exchanged]
      let_go = deliveries(outgoing, parts, accepted)
    memory, let_go = _removed_before(outgoing, exchanged, accepted, let_go)
    memory = checked_state(
      'memory.sent', scheme.memory.sent(memory, let_go), memory
    )
    memory = checked_state(
      'memory.arrived',
      scheme.memory.arrived(memory, means, buckets.is_dense(), accepted),
      memory,
    )
    if return_delivered:
      delivered = buckets.cut(comm.local(_dense(outgoing, credited)))

  def moved(new, old):
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  stats = Stats(
    payload_bytes=counting.total(
      nbytes
      for group, own in zip(buckets.groups, exchanged, strict=True)
      for nbytes in (
        own.extras.message_bytes,
        sum(x.nbytes for x in outgoing.dense(group)),
      )
    ),
    sent_bytes=counting.total([comm.tally.most_sent]),
    sent_elements=jnp.where(accepted, sent, 0),
    overflow_elements=jnp.where(accepted, overflow, 0),
    rejected_steps=state.stats.rejected_steps + jnp.where(accepted, 0, 1),
    worker=_whose(state.stats.worker, comm),
  )
  new_state = CompressedMeanState(
    steps=state.steps + 1,
    memory=buckets.cut_state(memory),
    compressor=_compressor_state(scheme, outgoing, exchanged, moved),
    stats=stats,
    exchange=_server_residual(outgoing, exchanged, moved),
    dense_leaves=state.dense_leaves,
  )
  updates = [jnp.where(accepted, u, jnp.nan) for u in updates]
  return buckets.cut(buckets.tree(updates)), new_state.typed(comm), delivered


def _whose(worker: jax.Array, comm: Comm) -> jax.Array:
  """`Stats.worker`: the first update sets it, and later ones keep it.

  So the memory of another worker is detectable.
  """
  if comm.size == 1:
    return worker
  return jnp.where(worker == 0, 1 + comm.index(), worker)


def means_of(
  outgoing: Outgoing, exchanged: Sequence[Exchanged], workers: int
) -> Any:
  """The means over the workers, a tree of buckets.

  Args:
    outgoing: this worker's data before it sent.
    exchanged: the result of each group's exchange.
    workers: P.
  """
  buckets = outgoing.buckets
  by_bucket: dict[int, jax.Array] = {}
  for group, own in zip(buckets.groups, exchanged, strict=True):
    means = buckets.join_total(own.total, group)
    if own.weight != 1:
      means = [x / own.weight for x in means]
    by_bucket |= zip(buckets.of_leaves(group.compressed), means, strict=True)
    dense = [x / workers for x in own.dense]
    by_bucket |= zip(buckets.of_leaves(group.dense), dense, strict=True)
  return buckets.tree(by_bucket)


def deliveries(
  outgoing: Outgoing, sent: Sequence[Sent], accepted: jax.Array
) -> Any:
  """This worker's delivered values, a tree of buckets, for the memory.

  Args:
    outgoing: this worker's data before it sent.
    sent: the delivered values of each message.
    accepted: bool scalar; a rejected step delivers nothing.
  """
  buckets = outgoing.buckets
  by_bucket: dict[int, Delivered] = {}
  for group, ctx, own in zip(
    buckets.groups, outgoing.contexts, sent, strict=True
  ):
    there = own.only_if(accepted).deliveries(ctx.leaves.buckets)
    by_bucket |= zip(buckets.of_leaves(group.compressed), there, strict=True)
    for n in buckets.of_leaves(group.dense):
      x = jnp.where(accepted, outgoing.values[n], 0.0)
      by_bucket[n] = Full(x, is_dense=True)
  return buckets.tree(by_bucket)


def _removed_before(
  outgoing: Outgoing,
  exchanged: Sequence[Exchanged],
  accepted: jax.Array,
  delivered: Any,
) -> tuple[Any, Any]:
  """The memory, and what must still be subtracted from it.

  Args:
    outgoing: this worker's data before it sent.
    exchanged: the result of each group's exchange.
    accepted: bool scalar.
    delivered: a tree of buckets.
  """
  buckets, kept, by_kernel = outgoing.buckets, outgoing.kept, outgoing.one_pass
  if by_kernel is None:
    return kept, delivered
  if not all(own.extras.lossless for own in exchanged):
    return by_kernel.memory(kept, None), delivered
  left = buckets.treedef.flatten_up_to(delivered)
  for n in by_kernel.numbers:
    left[n] = Full.nothing(buckets.shapes[n])
  return by_kernel.memory(kept, accepted), buckets.tree(left)


def _dense(outgoing: Outgoing, delivered: Any) -> Any:
  """Delivered values as a float32 tree of buckets."""
  buckets = outgoing.buckets
  arrived = buckets.treedef.flatten_up_to(delivered)
  return buckets.tree(
    [d.dense(shape) for d, shape in zip(arrived, buckets.shapes, strict=True)]
  )


def _updates(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, means: Any
) -> list[jax.Array]:
  """The buckets of the update."""
  buckets = outgoing.buckets
  updates = scheme.memory.update(outgoing.kept, means, buckets.is_dense())
  # The momentum of dense leaves is in this worker's memory, and so typed
  # varying, but it depends on means alone.
  flat = buckets.treedef.flatten_up_to(updates)
  for n in buckets.of_leaves(buckets.layout.dense):
    flat[n] = comm.replicated(flat[n])
  return [
    u.astype(buckets.dtypes[own[0]])
    for u, own in zip(flat, buckets.members, strict=True)
  ]


def _verdict(
  comm: Comm,
  outgoing: Outgoing,
  exchanged: Sequence[Exchanged],
  updates: list[jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Whether all workers accept the step, and this worker's counts.

  Returns:
    (bool scalar, equal everywhere; how many elements were sent; how many found
    no room). Counts are of all devices of this worker, float32 if int32 cannot
    hold them.
  """
  buckets = outgoing.buckets
  layout = buckets.layout

  def unsure(group, judged):
    for n in buckets.of_leaves(group.compressed):
      if not judged or health.is_narrow(updates[n].dtype):
        yield updates[n]
    for n in buckets.of_leaves(group.dense):
      yield updates[n]

  totals = [jnp.int32(0), *jnp.zeros(2, layout.count_type)]
  for group, own in zip(buckets.groups, exchanged, strict=True):
    # Updates are equal on all workers, so the checks are too.
    fine = own.ok & health.all_finite(unsure(group, own.extras.judged))
    elements = own.delivered.count()
    shards = comm.within(group.axes).shards
    counts = (
      jnp.where(fine, 0, 1),
      jnp.asarray(elements, layout.count_type),
      jnp.asarray(own.extras.overflow, layout.count_type),
    )
    totals = [t + shards.sum(x) for t, x in zip(totals, counts, strict=True)]
  failed, sent, overflow = totals
  accepted = (failed == 0) & comm.intact()
  # Every output reads `accepted`.
  accepted = barriers.barrier_if_shared(accepted, len(updates))
  return accepted, sent, overflow


def _compressor_state(
  scheme: Scheme,
  outgoing: Outgoing,
  exchanged: Sequence[Exchanged],
  moved: Callable[..., Any],
) -> Any:
  """The compressor's new state, of all leaves."""
  state = scheme.compressor.state
  if state is None:
    return ()
  states = [
    (group, moved(state.update(own.extras.roundings, ctx), ctx.state))
    for group, ctx, own in zip(
      outgoing.buckets.groups, outgoing.contexts, exchanged, strict=True
    )
    if group.compressed
  ]
  if len(states) == 1:
    return states[0][1]
  return tuple(_by_leaf(states))


def _server_residual(
  outgoing: Outgoing, exchanged: Sequence[Exchanged], moved: Callable[..., Any]
) -> Any:
  """The exchange's new state, of all leaves."""
  before = outgoing.server_residual
  if not before:
    return ()
  new = [
    (
      group,
      moved(
        list(own.extras.server_residual), [before[i] for i in group.compressed]
      ),
    )
    for group, own in zip(outgoing.buckets.groups, exchanged, strict=True)
  ]
  return outgoing.buckets.layout.spread(_by_leaf(new))


def _by_leaf(by_group: Sequence[tuple[Group, Sequence[Any]]]) -> list[Any]:
  """Sorts groups' values by leaf, in the order of all leaves."""
  by_leaf = {
    i: x
    for group, own in by_group
    for i, x in zip(group.compressed, own, strict=True)
  }
  return [by_leaf[i] for i in sorted(by_leaf)]
