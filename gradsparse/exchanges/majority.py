"""Majority vote over signs, by counting bits."""

from __future__ import annotations

from gradsparse.collectives import Comm
from gradsparse.delivery import Full
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
import jax
import jax.numpy as jnp


def majority() -> Exchange:
  """Every worker gets the sign that most workers have; ties are positive.

  Not a mean. Each worker is credited with the vote, so that error feedback
  works: what a worker owes is its gradient less what was decided.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 1.
  """

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    compressor, ctx = encoded.compressor, encoded.ctx
    messages, healthy, nbytes = common.gather(
      encoded.payload, encoded.healthy, comm
    )

    def count(votes, words):
      decoded = compressor.decode(words, encoded.shared, ctx, 1)
      return [v + (x > 0) for v, x in zip(votes, decoded, strict=True)], None

    start = comm.typed_like(
      [jnp.zeros(shape, jnp.int32) for shape in ctx.shapes], messages
    )
    votes, _ = jax.lax.scan(count, start, messages)
    # The same words as a worker's own, for the same decoder.
    ayes = jnp.concatenate([(2 * v >= comm.size).reshape(-1) for v in votes])
    decided = compressor.decode(common.pack_bits(ayes), encoded.shared, ctx, 1)
    return Exchanged(
      mean=decided,
      delivered=[Full(jnp.where(healthy, x, 0.0)) for x in decided],
      dense=common.reduce_dense(encoded.dense, comm),
      healthy=healthy,
      message_bytes=nbytes,
      transport='majority vote',
    )

  def refuses(compressor):
    if compressor.name != 'sign_majority':
      return 'only signs can be put to the vote'
    return None

  return Exchange('majority vote', run, refuses)
