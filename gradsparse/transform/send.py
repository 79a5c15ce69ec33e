"""Sends the messages of a step, in the smallest size that is enough.

A message may have several sizes. Then packing and exchange (messages.py) are
compiled once for each size; what a worker does before (step.py) and after
(receive.py) is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.sockets import Context
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Ladder
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Sparse
from gradsparse.traffic import counting
from gradsparse.transform import planning
from gradsparse.transform.messages import Outgoing
from gradsparse.transform.messages import Received
from gradsparse.transform.messages import Scheme
from gradsparse.transform.messages import exchange
from gradsparse.transform.messages import pack
import jax
import jax.numpy as jnp


def send(scheme: Scheme, comm: Comm, outgoing: Outgoing) -> list[Received]:
  """Chooses the size of the messages, and sends them.

  Args:
    scheme: the sockets.
    comm: the workers.
    outgoing: what this worker has.
  """
  ladder, groups = scheme.compressor.ladder, outgoing.buckets.groups
  seen, rungs = _looked(scheme, outgoing)
  longest = max(rungs, key=len)

  def at_rung(number):
    return exchange(
      scheme, comm, pack(scheme, comm, outgoing, _at_rung(seen, rungs, number))
    )

  if ladder is None or len(longest) == 1:
    return _recorded(comm, at_rung(0))
  if comm.recorder is not None:
    if not ladder.agreed:
      comm.agree(jnp.int32(0))  # workers agree on the rung, as below
    return planning.count_rungs(
      at_rung, longest, ladder, scheme.axis_name, comm.recorder
    )
  # Only what depends on the size of the messages is written out for each.
  wanted = [
    ladder.choose(ctx)
    for group, ctx in zip(groups, seen, strict=True)
    if group.compressed
  ]
  number = wanted[0]
  for other in wanted[1:]:
    number = jnp.maximum(number, other)
  if not ladder.agreed:
    number = comm.agree(number)
  # (weight, judged) of each message: not arrays, and the same at every size.
  known: list[tuple[int, bool]] = []

  def branch(n):
    received = at_rung(n)
    known[:] = [
      (r.exchanged.weight, r.exchanged.extras.judged) for r in received
    ]
    return [_of_any_size(ladder, comm, r) for r in received]

  out = comm.switch(
    number, [lambda n=n: branch(n) for n in range(len(longest))]
  )
  return [
    Received(group, ctx, *_from_any_size(ladder, ctx, facts, *own))
    for group, ctx, facts, own in zip(groups, seen, known, out, strict=True)
  ]


def largest(scheme: Scheme, outgoing: Outgoing) -> list[Context]:
  """The contexts of messages that have room for all that is ever sent."""
  return _at_rung(*_looked(scheme, outgoing), -1)


def _looked(
  scheme: Scheme, outgoing: Outgoing
) -> tuple[list[Context], list[tuple[Any, ...]]]:
  """Of each group the context, and the sizes that its message can have."""
  ladder = scheme.compressor.ladder
  seen, rungs = [], []
  for group, ctx in zip(
    outgoing.buckets.groups, outgoing.contexts, strict=True
  ):
    signals = [outgoing.signals[i] for i in group.compressed]
    own: tuple[Any, ...] = (None,)
    if ladder is not None and signals:
      own = ladder.rungs(ctx.shapes)
      if ladder.look is not None:
        ctx = ctx._replace(prepared=ladder.look(signals, ctx))
    rungs.append(own)
    seen.append(ctx)
  return seen, rungs


def _at_rung(
  contexts: Sequence[Context], rungs: Sequence[tuple[Any, ...]], number: int
) -> list[Context]:
  """All groups take the rung of the same number, or their last one."""
  return [
    ctx._replace(rung=own[min(number, len(own) - 1)])
    for ctx, own in zip(contexts, rungs, strict=True)
  ]


def _of_any_size(ladder: Ladder, comm: Comm, received: Received) -> Any:
  """What came back, as arrays whose shapes do not depend on the size.

  Returns:
    (total, dense, ok, delivered, message_bytes, removed, owed, roundings,
    overflow). What was delivered is None where that is known without a message.
  """
  group, ctx, back, overflow, own = received
  total: Any = back.total
  if group.compressed and isinstance(total, list):
    total = Leaves(total).joined()

  def of_one_size(sent):
    if isinstance(sent, Sparse | Marked):
      sent = sent.joined()
    return comm.local(sent)

  # The exchange may have delivered something else.
  all_of_it = group.compressed and back.delivered is own
  by_ladder = all_of_it and ladder.delivered is not None
  extras = back.extras
  return (
    total,
    back.dense,
    back.ok,
    None if by_ladder else of_one_size(back.delivered),
    counting.total([extras.message_bytes]),
    of_one_size(extras.removed),
    comm.local(extras.owed),
    extras.roundings,
    comm.local(overflow),
  )


def _from_any_size(
  ladder: Ladder, ctx: Context, known: tuple[int, bool], *arrays: Any
) -> tuple[Exchanged, jax.Array]:
  """The inverse of `_of_any_size`, with what was known before it."""
  total, dense, ok, delivered, nbytes, removed, owed, roundings, overflow = (
    arrays
  )
  if delivered is None:
    assert ladder.delivered is not None
    delivered = ladder.delivered(ctx)
  weight, judged = known
  extras = Extras(nbytes, None, removed, owed, roundings, judged)
  return Exchanged(total, dense, weight, ok, delivered, extras), overflow


def _recorded(comm: Comm, received: list[Received]) -> list[Received]:
  """Adds the rows of the messages that were just sent to the plan, if any."""
  if comm.recorder is not None:
    comm.recorder.rows.extend(comm.recorder.message)
  return received
