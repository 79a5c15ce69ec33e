"""Majority vote over signs, by counting bits."""

from __future__ import annotations

from gradsparse import arguments
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Message
from gradsparse.wire import bitmap
from gradsparse.wire import fixed_width
from gradsparse.wire import planar
import jax
import jax.numpy as jnp


def majority(scatter: bool = False) -> Exchange:
  """Every worker gets the sign that most workers have; ties are positive.

  The result is not a mean. The vote counts as what each worker delivered, so
  that error feedback works: a worker's residual is its gradient less the vote.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> exchange = extend.exchanges.majority()
  >>> exchange.refuses(extend.compressors.terngrad())
  'a majority vote needs a code of signs'

  Args:
    scatter: whether each worker counts the votes of one part of the elements
      and sends the decided signs back. A worker then sends 2 (P - 1) / P times
      the packed signs instead of (P - 1) times, in one exchange more. The
      result is the same to the bit.

  Raises:
    TypeError: scatter is neither True nor False.

  References:
    Bernstein et al., arXiv 1802.04434, algorithm 3.
  """
  scatter = arguments.flag('scatter', scatter)

  def run(message: Message, comm: Comm) -> Exchanged:
    if getattr(message.words, 'ndim', None) != 1:
      got = getattr(message.words, 'shape', type(message.words).__name__)
      raise TypeError(
        f'code.pack must return a vector for a majority vote, got {got}'
      )
    # With very few elements, the words and verdicts may exceed the elements.
    words, size = message.words.size, _size(message)
    ayes: jax.Array
    nbytes: int | jax.Array
    if scatter and comm.size * (1 + -(-words // comm.size)) <= size:
      transport = name
      ayes, ok, nbytes = _by_parts(message, comm)
    elif 1 + words <= size:
      transport = 'majority vote'
      ayes, ok, nbytes = _by_all(message, comm)
    else:
      transport = 'majority vote, dense all-reduce'
      ayes, ok, nbytes = _by_sum(message, comm)
    # The same words as a worker's own, so the same code reads them.
    decided = message.code.decode(
      message.code.unpack(ayes, message.rounded, message.ctx), message.ctx, 1
    )
    return Exchanged(
      total=decided.arrays,
      dense=comm.sum(message.dense),
      weight=1,
      ok=ok,
      delivered=decided,
      extras=Extras(nbytes, transport),
    )

  def refuses(compressor):
    if compressor.code.combines != 'votes':
      return 'a majority vote needs a code of signs'
    return None

  name = 'majority vote' + (', reduce-scatter' if scatter else '')
  return Exchange(name, run, refuses)


# The padding bits after the last sign are counted too, but not used.


def _by_all(
  message: Message, comm: Comm
) -> tuple[jax.Array, jax.Array, int | jax.Array]:
  """Every worker counts all votes: (the majority's words, ok, bytes sent)."""
  messages, ok, nbytes = common.gather(message.words, message.ok, 0, comm)
  shape = 32, message.words.size
  counter = fixed_width.narrowest(0, comm.size)

  def count(votes, words):
    own = common.from_words(words, message.words)
    return votes + planar.unpack_each(own, [shape], 1)[0].astype(counter)

  start = comm.typed_like(jnp.zeros(shape, counter), messages)
  votes = common.add_up(count, start, messages, sparse=False)
  ayes = votes >= -(-comm.size // 2)
  return planar.pack_each([ayes], 1), ok, nbytes


def _by_sum(message: Message, comm: Comm) -> tuple[jax.Array, jax.Array, int]:
  """Sums votes as float32, where a message would be larger."""
  votes = fixed_width.unpack(message.words, _size(message), 1)
  total, failed = comm.sum(
    (votes.astype(jnp.float32), common.count_failed(message.ok))
  )
  decided = bitmap.pack(total >= -(-comm.size // 2))
  return decided, failed == 0, message.dense_bytes


def _size(message: Message) -> int:
  """The number of elements voted on."""
  return message.dense_bytes // 4


def _by_parts(message: Message, comm: Comm) -> tuple[jax.Array, jax.Array, int]:
  """Each worker counts its own part in whole words; results as `_by_all`'s."""
  words = message.words
  part = common.aligned(-(-words.size // comm.size))
  rows = jnp.pad(words, (0, part * comm.size - words.size))
  received, ok, nbytes = common.scatter(
    rows.reshape(comm.size, part), message.ok, comm
  )
  (bits,) = jax.vmap(lambda row: planar.unpack_each(row, [(32, part)], 1))(
    received
  )
  ayes = 2 * jnp.sum(bits, axis=0, dtype=jnp.int32) >= comm.size
  decided = comm.gather(common.in_rows(planar.pack_each([ayes], 1)))
  return decided.reshape(-1)[: words.size], ok, nbytes
