"""All-gather of messages: every worker reads all of them, in rank order."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from gradsparse import arguments
from gradsparse import health
from gradsparse.backend import barriers
from gradsparse.backend import chunks
from gradsparse.backend import platforms
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Context
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Message
from gradsparse.sockets import OfParts
from gradsparse.sockets import Sparse
from gradsparse.sockets import sum_by_leaf
from gradsparse.traffic import counting
from gradsparse.wire import planar
import jax
import jax.numpy as jnp
import numpy as np

MEANS = ('workers', 'senders')


def all_gather(mean: str = 'workers') -> Exchange:
  """Sends each worker's message, with its verdict, to all other workers.

  If a dense all-reduce of the decoded messages sends fewer bytes, it replaces
  sparse messages, and is reported as dense. It also replaces quantised messages
  that are larger than float32, as those of very small leaves. Selection,
  masking and memory do not change; rounded values stay rounded.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> top_k = extend.compressors.top_k(0.01, extend.codes.sparse())
  >>> exchange = extend.exchanges.all_gather('senders')
  >>> exchange.name, exchange.refuses(top_k)
  ('all-gather', None)

  Args:
    mean: 'workers' divides the sum of the messages by the number of workers.
      'senders' divides each coordinate by the number of workers that sent it.
      It is for sparse messages, and no all-reduce replaces these.

  Raises:
    TypeError: mean is not text.
    ValueError: mean is unknown.
  """
  arguments.one_of('mean', mean, MEANS)

  def run(message: Message, comm: Comm) -> Exchanged:
    own = message.own
    if mean == 'senders' and not isinstance(own, Sparse | Marked):
      raise TypeError(
        f"mean='senders' needs messages of Sparse or Marked, but code.decode "
        f'(or code.round, without a decode) returned {type(own).__name__}'
      )
    if mean == 'workers' and _cheaper_dense(message, comm.size):
      return common.as_dense(message, comm)
    code, ctx = message.code, message.ctx
    beside_bytes = sum(x.nbytes for x in message.dense)
    messages, ok, nbytes = common.gather(
      message.words, message.ok, beside_bytes, comm
    )

    def read(vector):
      # A TPU would copy all of a message into a vector.
      keep_rows = code.shortcuts.reads_rows and platforms.stores_tiles()
      words = common.from_words(vector, message.words, keep_rows=keep_rows)
      return code.unpack(words, message.rounded, ctx)

    def decode(vector):
      decoded = code.decode(read(vector), ctx, 1)
      if isinstance(own, Sparse):  # all messages have the same layout
        decoded = dataclasses.replace(decoded, per_chunk=own.per_chunk)
      return decoded

    adder = code.shortcuts.adder(message.rounded)
    if mean == 'senders':
      total = _mean_of_senders(decode, messages, own, ctx, comm)
    elif adder is None or not platforms.stores_tiles():
      total = _sum(decode, messages, own, ctx, comm)
    else:
      total = adder.finish(
        common.add_up(
          lambda total, vector: adder.add(total, read(vector)),
          comm.typed_like(adder.start(message.rounded), messages),
          messages,
          sparse=False,
        ),
        message.rounded,
      )
    bounds_of = code.shortcuts.bounds
    if bounds_of is not None:
      bounds = _each(lambda x: bounds_of(read(x), ctx), messages)
      ok &= health.can_send(bounds.reshape(-1), comm.size)
    return Exchanged(
      total=total,
      dense=comm.sum(message.dense),
      weight=comm.size if mean == 'workers' else 1,
      ok=ok,
      delivered=own,
      extras=Extras(nbytes, 'all-gather', judged=bounds_of is not None),
    )

  def refuses(compressor):
    code = compressor.code
    if isinstance(code.combines, OfParts):
      return 'its code works only on the parts of a reduce-scatter'
    if mean == 'senders' and code.takes is Leaves:
      return "it sends all elements, but mean='senders' needs sparse messages"
    return None

  return Exchange('all-gather', run, refuses)


def _each(
  fn: Callable[[jax.Array], jax.Array], messages: jax.Array
) -> jax.Array:
  """fn of each message, stacked."""
  if platforms.stores_tiles() and messages.shape[0] <= common.IN_ONE_PASS:
    # Under vmap, a TPU would copy all messages into another tiling.
    return jnp.stack([fn(message) for message in messages])
  return jax.vmap(fn)(messages)


def _sum(
  decode: Callable[[jax.Array], Any],
  messages: jax.Array,
  own: Any,
  ctx: Context,
  comm: Comm,
) -> Any:
  """The sum of all messages, as `Exchanged.total`.

  Messages are added in rank order: one scatter-add of all messages would have
  duplicate indices, which GPUs add in any order, and all workers must agree to
  the bit. Also, P decoded copies of the model might not fit in memory.

  Args:
    decode: a message -> its payload, a `Sent`.
    messages: uint32[P, ...].
    own: this worker's payload, a `Sent`.
    ctx: the context of the messages.
    comm: the workers.
  """
  if _adds_chunks(own):
    return _add_chunks(jax.vmap(decode)(messages))
  if common.sums_leaves(own, comm.size, ctx):
    every = jax.lax.map(decode, messages)
    space = own.space.merged(ctx.leaves.buckets)
    return sum_by_leaf(every.values, every.indices, space)
  if isinstance(own, Leaves) and platforms.launches_each():
    # XLA fuses decoding into the sum. On TPUs, however, a sum over a leading
    # axis takes twice as long as additions, by XLA's estimate.
    every = jax.vmap(decode)(messages)
    return [jnp.sum(x, axis=0) for x in every.arrays]
  if _are_few(own, comm.size) and platforms.launches_each():
    # In a loop each message would be decoded by launches of its own.
    every = jax.vmap(decode)(messages)
    start = comm.typed_like(own.zeros(), messages)
    total, _ = jax.lax.scan(
      lambda total, sent: (sent.add_to(total), None),
      start,
      every,
      unroll=common.IN_ONE_PASS,
    )
    return total

  def add(total, vector):
    return decode(vector).add_to(total)

  if not isinstance(own, Leaves):
    start = comm.typed_like(own.zeros(), messages)
    return common.add_up(add, start, messages, sparse=True)
  # The total begins with the first message, which saves adding zeros.
  first = decode(messages[0])
  start = first.add_to(comm.typed_like(first.zeros(), messages))
  total = common.add_up(add, start, messages[1:], sparse=False)
  return [
    x.joined(leaf.shape) if isinstance(x, planar.Slabs) else x
    for x, leaf in zip(total, own.arrays, strict=True)
  ]


def _mean_of_senders(
  decode: Callable[[jax.Array], Any],
  messages: jax.Array,
  own: Any,
  ctx: Context,
  comm: Comm,
) -> Any:
  """The sum of all messages, divided by the number of senders of each element.

  Args: as for `_sum`.
  """
  if common.sums_leaves(own, comm.size, ctx) or _adds_chunks(own):
    both = [
      _sum(of, messages, own, ctx, comm)
      for of in (decode, lambda vector: decode(vector).senders(comm.size))
    ]
    return jax.tree.map(_quotient, *both)

  def add(both, sent):
    total, number = both
    return [sent.add_to(total), sent.senders(comm.size).add_to(number)]

  def decode_and_add(both, message):
    return add(both, decode(message))

  start = [own.zeros(), own.senders(comm.size).zeros()]
  start = comm.typed_like(start, messages)
  # Else it takes less time to divide all elements than a few.
  if not platforms.reads_singly() or not _are_few(own, comm.size):
    both = common.add_up(decode_and_add, start, messages, sparse=True)
    return _quotient(*both)
  every = barriers.fusion_barrier(jax.lax.map(decode, messages))
  both = common.add_up(add, start, every, sparse=True)
  at = every.indices
  found = [x.at[at].get(mode='fill', fill_value=0) for x in both]
  # Where two messages have an element, both write the same.
  return both[0].at[at].set(_quotient(*found), mode='drop')


def _quotient(total: jax.Array, number: jax.Array) -> jax.Array:
  """Sums over the numbers of their summands; zero where there are none."""
  return total / jnp.maximum(number, 1).astype(total.dtype)


def _are_few(own: Any, workers: int) -> bool:
  """Whether the entries of all messages are few, compared with all elements."""
  if not isinstance(own, Sparse):
    return False
  return 4 * workers * own.slots <= own.space.size


def _adds_chunks(own: Any) -> bool:
  """Whether messages like this one are summed chunk by chunk."""
  if not isinstance(own, Sparse) or own.per_chunk is None:
    return False
  return chunks.can_add(*own.per_chunk)


def _add_chunks(messages: Sparse) -> list[jax.Array]:
  """The sum, by leaf, of messages with k entries of each chunk.

  Args:
    messages: arrays with an axis of workers before that of the slots.
  """
  assert messages.per_chunk is not None
  size, k = messages.per_chunk
  space = messages.space
  numbers = [-(-n // size) for n in space.sizes]

  def by_chunk(x, fill):
    """[P, k, C], with the missing slots at the end of leaves filled."""
    parts, begin = [], 0
    ends = np.cumsum(space.limits).tolist()
    for number, limit, end in zip(numbers, space.limits, ends, strict=True):
      missing = number * k - limit
      if missing:
        filled = jnp.full_like(x, fill, shape=(x.shape[0], missing))
        parts += [x[:, begin:end], filled]
        begin = end
    whole = jnp.concatenate([*parts, x[:, begin:]], axis=1)
    # Cut into vectors: a TPU would pad a minor axis of length k.
    return jnp.stack([whole[:, j::k] for j in range(k)], axis=1)

  first = np.concatenate(
    [
      offset + size * np.arange(number)
      for offset, number in zip(space.offsets, numbers, strict=False)
    ]
  )
  return chunks.add(
    by_chunk(messages.values, 0),
    by_chunk(messages.indices, space.size) - jnp.asarray(first, jnp.int32),
    space.shapes,
    size,
  )


def _cheaper_dense(message: Message, workers: int) -> bool:
  """Whether a dense all-reduce replaces the messages."""
  nbytes = common.message_bytes(message.words)
  dense_bytes = message.dense_bytes
  if not isinstance(message.own, Sparse | Marked):
    return nbytes > dense_bytes
  # One worker sends nothing either way. It decides as each of two would, so
  # that its reported payload never exceeds the dense gradient.
  workers = max(workers, 2)
  as_messages, *_ = counting.sent_bytes('all_gather', nbytes, workers)
  as_dense, *_ = counting.sent_bytes('all_reduce', dense_bytes, workers)
  return as_dense < as_messages
