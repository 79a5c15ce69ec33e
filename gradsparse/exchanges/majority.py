"""Majority vote over signs, by counting bits."""

from __future__ import annotations

from gradsparse.collectives import Comm
from gradsparse.delivery import Full
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


def majority(scatter: bool = False) -> Exchange:
  """Every worker gets the sign that most workers have; ties are positive.

  Not a mean. Each worker is credited with the vote, so that error feedback
  works: what a worker owes is its gradient less what was decided.

  Args:
    scatter: each worker counts the votes of one part of the elements and
      sends back what was decided, a bit each: 2 (P - 1) / P of the packed
      signs leave each worker instead of (P - 1) times all of them, for one
      exchange more. The result is the same to the bit.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 3.
  """

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    compressor, ctx = encoded.compressor, encoded.ctx
    count = _by_parts if scatter else _by_all
    ayes, healthy, nbytes = count(encoded, comm)
    # The same words as a worker's own, for the same decoder.
    decided = compressor.decode(ayes, encoded.shared, ctx, 1)
    return Exchanged(
      mean=decided,
      delivered=[Full(x) for x in decided],
      dense=common.reduce_dense(encoded.dense, comm),
      healthy=healthy,
      message_bytes=nbytes,
      transport=name,
    )

  def refuses(compressor):
    if compressor.name != 'sign_majority':
      return 'only signs can be put to the vote'
    return None

  name = 'majority vote' + (', reduce-scatter' if scatter else '')
  return Exchange(name, run, refuses)


def _by_all(encoded: Encoded, comm: Comm) -> tuple[jax.Array, jax.Array, int]:
  """Everybody counts all votes: (majority's words, healthy, bytes sent)."""
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
  ayes = jnp.concatenate([(2 * v >= comm.size).reshape(-1) for v in votes])
  return common.pack_bits(ayes), healthy, nbytes


def _by_parts(encoded: Encoded, comm: Comm) -> tuple[jax.Array, jax.Array, int]:
  """Each counts whole words of its own; results as those of `_by_all`.

  The bits after the last sign are put to the vote too; nobody reads them.
  """
  words = encoded.payload
  part = -(-words.size // comm.size)
  rows = jnp.pad(words, (0, part * comm.size - words.size))
  received, healthy, nbytes = common.scatter(
    rows.reshape(comm.size, part), encoded.healthy, comm
  )
  bits = jax.vmap(lambda row: fixed_width.unpack(row, 32 * part, 1))(received)
  ayes = 2 * jnp.sum(bits, axis=0, dtype=jnp.int32) >= comm.size
  decided = comm.gather(common.pack_bits(ayes))
  return decided.reshape(-1)[: words.size], healthy, nbytes
