"""Sends the messages of a step, in the smallest size that is enough.

If a message has several sizes, packing and exchange (messages.py) are compiled
once for each size. The code before (step.py) and after (receive.py) is compiled
once.
"""

from __future__ import annotations

import functools
from typing import Any

from gradsparse.collectives import Comm
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Ladder
from gradsparse.sockets import Leaves
from gradsparse.sockets import Message
from gradsparse.sockets import Sparse
from gradsparse.traffic import counting
from gradsparse.transform.messages import Outgoing
from gradsparse.transform.messages import Scheme
from gradsparse.transform.messages import exchange
import jax
import jax.numpy as jnp


def send(scheme: Scheme, comm: Comm, outgoing: Outgoing) -> list[Exchanged]:
  """Chooses the size of the messages, and sends them.

  Args:
    scheme: the scheme.
    comm: the workers.
    outgoing: this worker's data.

  Returns:
    The result of each group's exchange.
  """
  ladder = scheme.compressor.ladder
  sizes = _rungs(scheme, outgoing)
  rungs = max(sizes, key=len)

  def sent(number):
    contexts = [
      ctx._replace(rung=own[min(number, len(own) - 1)])
      for ctx, own in zip(outgoing.contexts, sizes, strict=True)
    ]
    return exchange(scheme, comm, outgoing, contexts)

  if ladder is None or len(rungs) == 1:
    return sent(0)[1]
  if comm.recorder is not None:
    if not ladder.agreed:
      comm.agree(jnp.int32(0))  # workers agree on the rung, as below
    own = [lambda n=n: sent(n)[1] for n in range(len(rungs))]
    return comm.recorder.switch(own, rungs, scheme.axis_name, ladder.at_step)
  number = functools.reduce(
    jnp.maximum,
    [
      ladder.choose(ctx)
      for group, ctx in zip(
        outgoing.buckets.groups, outgoing.contexts, strict=True
      )
      if group.compressed
    ],
  )
  if not ladder.agreed:
    number = comm.agree(number)
  received: list[Any] = []

  def branch(number):
    messages, exchanged = sent(number)
    received[:] = [
      _of_any_size(ladder, comm, *own)
      for own in zip(messages, exchanged, strict=True)
    ]
    return [x for x in jax.tree.leaves(received) if isinstance(x, jax.Array)]

  branches = [functools.partial(branch, n) for n in range(len(rungs))]
  arrays = iter(comm.switch(number, branches))
  # The other fields are static, and equal at every size.
  received = jax.tree.map(
    lambda x: next(arrays) if isinstance(x, jax.Array) else x, received
  )
  for n, ctx in enumerate(outgoing.contexts):
    if received[n].delivered is None and ladder.delivered is not None:
      received[n] = received[n]._replace(delivered=ladder.delivered(ctx))
  return received


def _rungs(scheme: Scheme, outgoing: Outgoing) -> list[tuple[Any, ...]]:
  """The sizes that the message of each group can have."""
  ladder = scheme.compressor.ladder
  return [
    ladder.rungs(ctx.shapes) if ladder and group.compressed else (None,)
    for group, ctx in zip(
      outgoing.buckets.groups, outgoing.contexts, strict=True
    )
  ]


def _of_any_size(
  ladder: Ladder, comm: Comm, message: Message | None, exchanged: Exchanged
) -> Exchanged:
  """An exchange's result with shapes and types that do not depend on the size.

  `delivered` is None if the ladder computes it without a message.
  """
  total, extras = exchanged.total, exchanged.extras
  if isinstance(total, list) and total:
    total = Leaves(total).joined()

  def of_one_size(sent):
    if isinstance(sent, Sparse):
      sent = sent.as_marked()
    return comm.local(sent)

  # The exchange may have delivered something else.
  all_of_it = message is not None and exchanged.delivered is message.own
  by_ladder = all_of_it and ladder.delivered is not None
  delivered: Any = None if by_ladder else of_one_size(exchanged.delivered)
  return exchanged._replace(
    total=total,
    delivered=delivered,
    extras=extras._replace(
      message_bytes=counting.total([extras.message_bytes]),
      transport=None,
      removed=of_one_size(extras.removed),
      server_residual=comm.local(extras.server_residual),
      overflow=comm.local(jnp.int32(extras.overflow)),
    ),
  )
