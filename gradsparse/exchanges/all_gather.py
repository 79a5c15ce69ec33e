"""All-gather of messages: every worker reads all of them, in rank order."""

from __future__ import annotations

from gradsparse.collectives import Comm
from gradsparse.delivery import Sparse
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
import jax
import jax.numpy as jnp


def all_gather() -> Exchange:
  """Each worker's message goes to all others; one word of it is its health.

  A sparse message of k out of N elements with k P >= N would move more bytes
  than a dense ring: its values travel in the dense all-reduce instead, and
  are reported as dense. Selection, masking and memory do not change.
  """

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    payload = encoded.payload
    if isinstance(payload, Sparse):
      if payload.indices.shape[0] * comm.size >= payload.space.size:
        return _as_dense(encoded, payload, comm)
      return _gather_sparse(encoded, payload, comm)
    return _gather_words(encoded, comm)

  return Exchange('all-gather', run)


def _gather_sparse(encoded: Encoded, own: Sparse, comm: Comm) -> Exchanged:
  codec, space = encoded.compressor.codec, own.space
  assert codec is not None
  messages, healthy, nbytes = common.gather(
    codec.pack(own), encoded.healthy, comm
  )
  count = own.indices.shape[0]
  unpacked = jax.vmap(lambda w: codec.unpack(w, count, space))(messages)

  # One worker at a time, in rank order: a scatter-add with duplicates need
  # not be deterministic on GPUs, and all workers must agree to the bit.
  def add(total, one: Sparse):
    return one.add_to(total), None

  start = comm.typed_like(jnp.zeros(space.size, jnp.float32), messages)
  total, _ = jax.lax.scan(add, start, unpacked)
  return Exchanged(
    mean=[x / comm.size for x in space.split(total)],
    delivered=list(own.windows()),
    dense=common.reduce_dense(encoded.dense, comm),
    healthy=healthy,
    message_bytes=nbytes,
    transport='all-gather',
  )


def _as_dense(encoded: Encoded, own: Sparse, comm: Comm) -> Exchanged:
  leaves, dense, unhealthy = comm.sum(
    (
      own.dense(),
      encoded.dense,
      common.count_unhealthy(encoded.healthy),
    )
  )
  healthy = unhealthy == 0
  return Exchanged(
    mean=[x / comm.size for x in leaves],
    delivered=list(own.windows()),
    dense=[x / comm.size for x in dense],
    healthy=healthy,
    message_bytes=4 * own.space.size,
    transport='dense all-reduce',
  )


def _gather_words(encoded: Encoded, comm: Comm) -> Exchanged:
  compressor, ctx = encoded.compressor, encoded.ctx
  words = common.to_words(encoded.payload)
  messages, healthy, nbytes = common.gather(words, encoded.healthy, comm)

  # One worker at a time: P decoded copies of the model need not fit.
  def add(total, message):
    payload = common.from_words(message, encoded.payload)
    decoded = compressor.decode(payload, encoded.shared, ctx, 1)
    if isinstance(decoded, Sparse):
      decoded = decoded.dense()
    return [a + b for a, b in zip(total, decoded, strict=True)], None

  start = comm.typed_like(
    [jnp.zeros(shape, jnp.float32) for shape in ctx.shapes], messages
  )
  total, _ = jax.lax.scan(add, start, messages)
  return Exchanged(
    mean=[x / comm.size for x in total],
    delivered=common.own_delivery(encoded),
    dense=common.reduce_dense(encoded.dense, comm),
    healthy=healthy,
    message_bytes=nbytes,
    transport='all-gather',
  )
