"""All-gather of messages: every worker reads all of them, in rank order."""

from __future__ import annotations

from typing import Any

from gradsparse import health
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Message
from gradsparse.sockets import OfParts
from gradsparse.sockets import Sparse
from gradsparse.sockets import sum_in_rows
from gradsparse.traffic import counting
import jax


def all_gather() -> Exchange:
  """Each worker's message goes to all others, a word for its verdict before it.

  A sparse message travels in a dense all-reduce of the whole space, and is
  reported as dense, if that sends fewer bytes. A message of all elements does
  so if packing made it larger than float32 (of very small leaves). Selection,
  masking and memory do not change; rounded values stay rounded.
  """

  def run(message: Message, comm: Comm) -> Exchanged:
    own = message.own
    if _cheaper_dense(message, comm.size):
      return common.as_dense(message, comm)
    code, ctx = message.code, message.ctx
    messages, ok, nbytes = common.gather(
      message.words, message.ok, _bytes_of(message.dense), comm
    )

    def read(vector):
      words = common.from_words(vector, message.words)
      return code.unpack(words, message.rounded, ctx)

    def decode(vector):
      return code.decode(read(vector), ctx, 1)

    # In rank order: a single scatter-add would have duplicates, which GPUs add
    # in any order, and all workers must agree to the bit. And P decoded copies
    # of the model might not fit in memory.
    def add(total, vector):
      return decode(vector).add_to(total)

    if common.sums_rows(own, comm.size, ctx):
      every = jax.lax.map(decode, messages)
      space = own.space.merged(ctx.leaves.buckets)
      total: Any = sum_in_rows(every.values, every.indices, space)
    else:
      start, rest = comm.typed_like(own.zeros(), messages), messages
      dense = isinstance(own, Leaves)
      if dense:
        # The first message is written where the others are added, and not
        # added to zeros.
        start, rest = decode(messages[0]).add_to(start), messages[1:]
      total = common.add_up(add, start, rest, sparse=not dense)
    bounds_of = code.bounds
    if bounds_of is not None:
      bounds = jax.vmap(lambda vector: bounds_of(read(vector), ctx))(messages)
      ok &= health.can_send(bounds.reshape(-1), comm.size)
    return Exchanged(
      total=total,
      dense=common.sum_dense(message.dense, comm),
      weight=comm.size,
      ok=ok,
      delivered=own,
      extras=Extras(nbytes, 'all-gather', judged=bounds_of is not None),
    )

  def refuses(compressor):
    if isinstance(compressor.code.combines, OfParts):
      return 'its code is of the parts of a reduce-scatter'
    return None

  return Exchange('all-gather', run, refuses)


def _bytes_of(leaves: list[jax.Array]) -> int:
  return sum(x.nbytes for x in leaves)


def _cheaper_dense(message: Message, workers: int) -> bool:
  """Whether a dense all-reduce takes the place of the messages."""
  words, dense_bytes = common.count_words(message.words), message.dense_bytes
  nbytes = common.message_bytes(words)
  if not isinstance(message.own, Sparse | Marked):
    return nbytes > dense_bytes
  # One worker sends nothing either way. It reports what each of two would, so
  # that its payload never exceeds the dense gradient.
  workers = max(workers, 2)
  as_messages, *_ = counting.sent_bytes('all_gather', nbytes, workers)
  as_dense, *_ = counting.sent_bytes('all_reduce', dense_bytes, workers)
  return as_dense < as_messages
