"""All-reduce of payloads that may be added up: dense, TernGrad, PowerSGD."""

from __future__ import annotations

from gradsparse.collectives import Comm
from gradsparse.delivery import Sparse
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
import jax


def all_reduce() -> Exchange:
  """Sums linear payloads; the dense leaves ride in the same reduction."""

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    compressor, ctx = encoded.compressor, encoded.ctx
    nbytes = sum(x.nbytes for x in jax.tree.leaves(encoded.payload))
    total, dense, unhealthy = comm.sum(
      (
        encoded.payload,
        encoded.dense,
        common.count_unhealthy(encoded.healthy),
      )
    )
    healthy = unhealthy == 0
    decoded = compressor.decode(total, encoded.shared, ctx, comm.size)
    if isinstance(decoded, Sparse):
      decoded = decoded.dense()
    return Exchanged(
      mean=[x / comm.size for x in decoded],
      delivered=common.own_delivery(encoded),
      dense=[x / comm.size for x in dense],
      healthy=healthy,
      message_bytes=nbytes,
      transport='all-reduce',
      total=total,
    )

  def refuses(compressor):
    if not compressor.linear:
      return f'payloads of {compressor.name} cannot be added up'
    return None

  return Exchange('all-reduce', run, refuses)
