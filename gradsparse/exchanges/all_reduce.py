"""All-reduce of summable words: dense, TernGrad, PowerSGD."""

from __future__ import annotations

from gradsparse import health
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Message
import jax


def all_reduce() -> Exchange:
  """Sums words and the leaves that stay dense in one reduction.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> top_k = extend.compressors.top_k(0.01, extend.codes.sparse())
  >>> exchange = extend.exchanges.all_reduce()
  >>> exchange.refuses(extend.compressors.terngrad())
  >>> exchange.refuses(top_k)
  'words of top_k cannot be summed'
  """

  def run(message: Message, comm: Comm) -> Exchanged:
    code, ctx = message.code, message.ctx
    words, dense, failed = comm.sum(
      (message.words, message.dense, common.count_failed(message.ok))
    )
    roundings = code.unpack(words, message.rounded, ctx)
    ok = failed == 0
    if code.shortcuts.bounds is not None:
      ok &= health.can_send(code.shortcuts.bounds(roundings, ctx), comm.size)
    return Exchanged(
      total=common.total_of(code.decode(roundings, ctx, comm.size), ctx),
      dense=dense,
      weight=comm.size,
      ok=ok,
      delivered=message.own,
      extras=Extras(
        sum(x.nbytes for x in jax.tree.leaves(message.words)),
        'all-reduce',
        roundings=roundings,
        judged=code.shortcuts.bounds is not None,
      ),
    )

  def refuses(compressor):
    if compressor.code.combines != 'sums':
      return f'words of {compressor.name} cannot be summed'
    return None

  return Exchange('all-reduce', run, refuses, adds=True)
