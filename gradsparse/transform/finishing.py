"""What comes of the messages: the update, and the new state.

The same for every size of the messages. round_trip.py sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gradsparse import health
from gradsparse.backend import barriers
from gradsparse.collectives import Comm
from gradsparse.sockets import Delivered
from gradsparse.sockets import Full
from gradsparse.sockets import ownership
from gradsparse.state.scheme import Stats
from gradsparse.traffic import counting
from gradsparse.transform.nodes import Nodes
from gradsparse.transform.round_trip import Back
from gradsparse.transform.round_trip import Before
from gradsparse.transform.round_trip import Scheme
import jax
import jax.numpy as jnp


class After(NamedTuple):
  """What comes of the messages; the same shapes at every rung.

  Attributes:
    updates: the tree for the optimizer, NaN if the step was rejected.
    delivered: float32 tree, this worker's part of the mean; None if nobody
      asked.
    memory: new state.
    compressor: new state.
    stats: of the step.
    exchange: new state.
    accepted: bool scalar, the same everywhere.
  """

  updates: Any
  delivered: Any
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any
  accepted: jax.Array


def finish(
  scheme: Scheme,
  comm: Comm,
  before: Before,
  backs: Sequence[Back],
  tell: bool,
) -> After:
  """Brings update and state up to date with what came back.

  Args:
    scheme: the sockets.
    comm: the workers.
    before: what does not depend on the size of the messages.
    backs: what came of them.
    tell: whether to return what was delivered.
  """
  nodes = before.nodes
  whole = nodes.whole()
  means = nodes.tree(_merged(_means(nodes, back) for back in backs))
  flat = _updates(scheme, comm, before, means)
  accepted, sent, overflow = _verdict(comm, before, backs, flat)

  def moved(new, old):
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  memory, told = before.kept, None
  if comm.recorder is None or comm.recorder.computes:
    delivered, released = _deliveries(before, backs, accepted)
    memory = scheme.memory.sent(memory, released)
    memory = scheme.memory.arrived(memory, means, whole, accepted)
    if tell:
      told = nodes.cut(comm.local(_dense(nodes, delivered)))
  stats = Stats(
    payload_bytes=counting.total(
      count for back in backs for count in _payload(before, back)
    ),
    sent_bytes=jnp.uint32(0),  # the caller knows
    sent_elements=jnp.where(accepted, sent, 0),
    overflow_elements=jnp.where(accepted, overflow, 0),
    rejected_steps=jnp.int32(0),  # likewise
    worker=jnp.int32(0),  # likewise
  )
  return After(
    updates=nodes.cut(
      nodes.tree([jnp.where(accepted, u, jnp.nan) for u in flat])
    ),
    delivered=told,
    memory=typed(memory, comm, local=True),
    compressor=typed(_learnt(scheme, backs, moved), comm, local=False),
    stats=comm.local(stats),
    exchange=comm.local(_owed(before, backs, moved)),
    accepted=accepted,
  )


def _means(nodes: Nodes, back: Back) -> dict[int, jax.Array]:
  """The means of the nodes of a part, by their numbers."""
  group, exchanged = back.part.group, back.exchanged
  means = nodes.join_means(exchanged.mean, group)
  by_number = dict(zip(nodes.numbers(group.compressed), means, strict=True))
  dense = zip(nodes.numbers(group.dense), exchanged.dense, strict=True)
  return by_number | dict(dense)


def _deliveries(
  before: Before, backs: Sequence[Back], accepted: jax.Array
) -> tuple[Any, Any]:
  """Trees of what was delivered and of what the memory lets go of."""
  nodes = before.nodes

  def tree(sent):
    by_node: dict[int, Delivered] = {}
    for back, own in zip(backs, sent, strict=True):
      group = back.part.group
      there = own.only_if(accepted).deliveries(back.part.ctx.runs)
      by_node |= zip(nodes.numbers(group.compressed), there, strict=True)
      for n in nodes.numbers(group.dense):
        x = jnp.where(accepted, before.values[n], 0.0)
        by_node[n] = Full(x, whole=True)
    return nodes.tree(by_node)

  exchanged = [back.exchanged for back in backs]
  delivered = tree([e.delivered for e in exchanged])
  if all(e.released is None for e in exchanged):
    return delivered, delivered
  return delivered, tree([e.released or e.delivered for e in exchanged])


def _dense(nodes: Nodes, delivered: Any) -> Any:
  """What was delivered as a float32 tree of nodes."""
  arrived = nodes.treedef.flatten_up_to(delivered)
  return nodes.tree(
    [d.dense(shape) for d, shape in zip(arrived, nodes.shapes, strict=True)]
  )


def _merged(dicts) -> dict[int, Any]:
  return {i: x for one in dicts for i, x in one.items()}


def typed(state: Any, comm: Comm, local: bool) -> Any:
  """A state, what is a worker's own in it typed so.

  Args:
    state: of a scheme, a memory or a compressor.
    comm: the workers.
    local: what it is, unless it says otherwise.
  """
  return jax.tree.map(
    lambda x, own: comm.local(x) if own else x,
    state,
    ownership.is_local(state, default=local),
  )


def _updates(
  scheme: Scheme, comm: Comm, before: Before, means: Any
) -> list[jax.Array]:
  """The nodes of the update."""
  nodes = before.nodes
  updates = scheme.memory.update(before.kept, means, nodes.whole())
  # The momentum of dense leaves is kept in this worker's memory, and so typed
  # as its own, but it is made of means alone.
  flat = nodes.treedef.flatten_up_to(updates)
  for n in nodes.numbers(nodes.layout.dense):
    flat[n] = comm.replicated(flat[n])
  return [
    u.astype(before.dtypes[own[0]])
    for u, own in zip(flat, nodes.members, strict=True)
  ]


def _verdict(
  comm: Comm, before: Before, backs: Sequence[Back], updates: list[jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Whether all accept the step, and what this worker sent in all.

  Returns:
    (bool scalar, the same everywhere; how many elements were sent; how many
    found no room): of all devices of this worker, float32 where int32 could
    not count them.
  """
  nodes = before.nodes
  layout = nodes.layout
  adds = bool(ownership.shared_fields(before.kept))

  def unsure(back):
    # What the shared fields of a memory add to what was judged need not be
    # finite.
    for n in nodes.numbers(back.part.group.compressed):
      if adds or not back.judged or health.is_narrow(updates[n].dtype):
        yield updates[n]
    for n in nodes.numbers(back.part.group.dense):
      yield updates[n]

  totals = [jnp.int32(0), *jnp.zeros(2, layout.count_type)]
  for back in backs:
    # Updates are equal on all workers, so all judge them alike.
    fine = back.exchanged.healthy & health.all_finite(unsure(back))
    elements = back.exchanged.delivered.count()
    shards = back.part.comm.shards
    own = (
      jnp.where(fine, 0, 1),
      jnp.asarray(elements, layout.count_type),
      back.overflow.astype(layout.count_type),
    )
    totals = [t + shards.sum(x) for t, x in zip(totals, own, strict=True)]
  failed, sent, overflow = totals
  accepted = (failed == 0) & comm.intact()
  # All that is written reads it.
  accepted = barriers.barrier_if_shared(accepted, len(updates))
  return accepted, sent, overflow


def _payload(before: Before, back: Back) -> tuple[int | jax.Array, int]:
  """Bytes of the message of this device, and of its dense leaves."""
  numbers = before.nodes.numbers(back.part.group.dense)
  dense = sum(before.values[n].nbytes for n in numbers)
  return back.exchanged.message_bytes, dense


def _learnt(scheme: Scheme, backs: Sequence[Back], moved) -> Any:
  """The compressor's new state, of all leaves."""
  learning = scheme.compressor.learning
  if learning is None:
    return ()

  def of(back):
    part = back.part
    new = learning.learn(back.exchanged.total, part.ctx)
    return moved(new, part.ctx.state)

  learners = [back for back in backs if back.part.group.compressed]
  if len(learners) == 1:
    return of(learners[0])
  by_leaf: dict[int, Any] = {}
  for back in learners:
    by_leaf |= zip(back.part.group.compressed, of(back), strict=True)
  return tuple(by_leaf[i] for i in sorted(by_leaf))


def _owed(before: Before, backs: Sequence[Back], moved) -> Any:
  """The exchange's new state, of all leaves."""
  if not before.owed:
    return ()
  by_leaf: dict[int, jax.Array] = {}
  for back in backs:
    numbers, new = back.part.group.compressed, back.exchanged.owed
    old = [before.owed[i] for i in numbers]
    by_leaf |= zip(numbers, moved(list(new), old), strict=True)
  layout = before.nodes.layout
  return layout.spread([by_leaf[i] for i in layout.compressed])
