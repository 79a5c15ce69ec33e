"""All-gather of messages: every worker reads all of them, in rank order."""

from __future__ import annotations

from gradsparse import traffic
from gradsparse.collectives import Comm
from gradsparse.delivery import Sparse
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
from gradsparse.interfaces import Stream
import jax
import jax.numpy as jnp


def all_gather() -> Exchange:
  """Each worker's message goes to all others; one word of it is its health.

  Where the values of a sparse message would cost fewer bytes in a dense
  all-reduce of the whole space, they travel in that, and are reported as
  dense. Selection, masking and memory do not change; rounded values stay
  rounded.
  """

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    payload = encoded.payload
    if isinstance(payload, Sparse):
      if _cheaper_dense(encoded, payload, comm.size):
        return _as_dense(encoded, payload, comm)
      return _gather_sparse(encoded, payload, comm)
    return _gather_words(encoded, comm)

  return Exchange('all-gather', run)


def _cheaper_dense(encoded: Encoded, own: Sparse, workers: int) -> bool:
  """Whether a dense all-reduce sends fewer bytes than the messages."""
  codec = encoded.compressor.codec
  assert codec is not None
  words = codec.words(own.indices.shape[0], own.space)
  # One worker sends nothing either way. It reports what each of two would, so
  # that its payload never exceeds the dense gradient.
  workers = max(workers, 2)
  as_messages, *_ = traffic.sent_bytes(
    'all_gather', common.message_bytes(words), workers
  )
  as_dense, *_ = traffic.sent_bytes('all_reduce', _dense_bytes(own), workers)
  return as_dense < as_messages


def _dense_bytes(own: Sparse) -> int:
  return 4 * own.space.size


def _gather_sparse(encoded: Encoded, own: Sparse, comm: Comm) -> Exchanged:
  codec, space = encoded.compressor.codec, own.space
  assert codec is not None
  messages, healthy, nbytes = common.gather(
    codec.pack(own), encoded.healthy, comm
  )
  count = own.indices.shape[0]

  # One worker at a time, in rank order. Added, because a scatter-add with
  # duplicates need not be deterministic on GPUs, and all workers must agree to
  # the bit. Decoded, because P decoded messages of every element need not fit.
  def add(total, message):
    return codec.unpack(message, count, space).add_to(total), None

  start = comm.typed_like(jnp.zeros(space.size, jnp.float32), messages)
  total, _ = jax.lax.scan(add, start, messages)
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
    message_bytes=_dense_bytes(own),
    transport='dense all-reduce',
  )


def _gather_words(encoded: Encoded, comm: Comm) -> Exchanged:
  compressor, ctx, own = encoded.compressor, encoded.ctx, encoded.payload
  nbytes: int | jax.Array
  if isinstance(own, Stream):
    dense_bytes = sum(x.nbytes for x in encoded.dense)
    messages, healthy, nbytes = common.gather_stream(
      own, encoded.healthy, dense_bytes, comm
    )
  else:
    messages, healthy, nbytes = common.gather(
      common.to_words(own), encoded.healthy, comm
    )

  def payload_of(message):
    if not isinstance(own, Stream):
      return common.from_words(message, own)
    head, words = common.from_words(message, (own.head, own.words))
    return own._replace(head=head, words=words)

  # One worker at a time: P decoded copies of the model need not fit.
  def add(total, message):
    payload = payload_of(message)
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
