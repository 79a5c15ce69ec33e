"""All-reduce of words that may be added up: dense, TernGrad, PowerSGD."""

from __future__ import annotations

from gradsparse import health
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Message
import jax


def all_reduce() -> Exchange:
  """Adds up words, and the leaves that stay dense in the same reduction."""

  def run(message: Message, comm: Comm) -> Exchanged:
    code, ctx = message.code, message.ctx
    words, dense, unhealthy = comm.sum(
      (
        message.words,
        message.dense,
        common.count_unhealthy(message.healthy),
      )
    )
    total = code.unpack(words, message.rounded, ctx)
    stands_for = code.decode(total, ctx, comm.size)
    healthy = unhealthy == 0
    if code.bounds is not None:
      healthy &= health.can_send(code.bounds(total, ctx), comm.size)
    return Exchanged(
      mean=common.mean_of_sum(stands_for, comm.size, ctx),
      delivered=message.own,
      dense=[x / comm.size for x in dense],
      healthy=healthy,
      message_bytes=sum(x.nbytes for x in jax.tree.leaves(message.words)),
      transport='all-reduce',
      total=total,
      judged=code.bounds is not None,
    )

  def refuses(compressor):
    if not compressor.code.adds:
      return f'words of {compressor.name} cannot be added up'
    return None

  return Exchange('all-reduce', run, refuses, adds=True)
