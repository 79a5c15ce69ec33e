"""Reduce-scatter and all-gather of packed words: an all-reduce in two halves.

XLA widens small data types in collectives on some backends, so those would
save bytes on paper only. Here each half moves packed uint32 words:

  all_to_all: worker d gets everybody's d-th part, decodes and averages it
  all_gather: the averaged parts, rounded and packed again

2 (P - 1) / P times the packed vector leave each worker, as in a ring
all-reduce; an all-gather of messages sends (P - 1) times.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Message
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
import jax
import jax.numpy as jnp

# What is owed is cut off here. Beside the largest sum that workers may send (a
# quarter of the range of float32) it cannot make every later mean overflow.
_MOST_OWED = float(jnp.finfo(jnp.float32).max) / 8


# Brackets with a traced index are a gather or a scatter: slow on CPUs.
def _row(rows: jax.Array, index: jax.Array) -> jax.Array:
  return jax.lax.dynamic_index_in_dim(rows, index, keepdims=False)


def _with_row(rows: jax.Array, index: jax.Array, row: jax.Array) -> jax.Array:
  return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def reduce_scatter() -> Exchange:
  """Mean of all leaves, joined, through a lossy code of parts.

  The joined vector (N elements, leaves in order) is cut into P parts of whole
  buckets, padded at the end. The owner of a part, worker d, has the sum S of
  what its part decodes to in all messages. It rounds once more, and what that
  loses, e, stays with it for the next step (DoubleSqueeze):

    sent back   C = round((S + e) / P)
    kept        e <- S + e - P C

  Worker d is credited with what its own message decodes to, and with P C - S
  besides, so that the credits add up to P times the mean. Its memory lets go of
  its own message only. No e is kept if the code's loss cannot be fed back.

  Parts whose code would be larger than the leaves (very small ones) are added
  up by an all-reduce as they decode, and nothing is rounded again.

  References:
    Tang et al., "DoubleSqueeze", arXiv 1905.05957; Tang et al., "1-bit Adam",
    arXiv 2102.02888; Seide et al., Interspeech 2014 (the exchange in parts).
  """

  def arrange(selected: Leaves, code, workers):
    return Parts.cut(selected, workers, code.combines.block_size)

  def init(shapes, code):
    if not code.combines.is_contraction:
      return ()
    return [jnp.zeros(shape, jnp.float32) for shape in shapes]

  def run(message: Message, comm: Comm) -> Exchanged:
    code, ctx, workers = message.code, message.ctx, comm.size
    assert isinstance(code.combines, OfParts)
    block = code.combines.block_size
    if _larger_than_dense(message):
      return _as_dense(message, comm)
    index = comm.index()

    def decode(words: jax.Array, like) -> Parts:
      return code.decode(code.unpack(words, like, ctx), ctx, 1)

    own = message.own
    received, ok, nbytes = common.scatter(message.words, message.ok, comm)
    total = jnp.sum(decode(received, message.rounded).rows, axis=0)
    wanted = total
    if message.owed:
      earlier = Parts.cut(Leaves(list(message.owed)), workers, block).rows
      wanted = total + jnp.clip(_row(earlier, index), -_MOST_OWED, _MOST_OWED)
    # The two roundings must not share their dice.
    again = ctx._replace(key=jax.random.fold_in(ctx.key, 1))
    mine = Parts((wanted / workers)[None], index, own.space)
    packed = code.pack(code.round(mine, again), again)
    decided = comm.gather(common.in_rows(packed[0])).reshape(workers, -1)
    mean = decode(decided[:, : packed.shape[1]], message.rounded)
    given = workers * _row(mean.rows, index)
    owed: Sequence[jax.Array] = ()
    if message.owed:
      # Only a damaged message can make it overflow; then nobody knows what is
      # owed, and what is not finite would stay so for ever.
      left = wanted - given
      left = jnp.where(jnp.isfinite(left), left, 0)
      owed = own.space.split(_with_row(earlier, index, left).reshape(-1))
    credited = _row(own.rows, index) + (given - total)
    credit = Parts.of(_with_row(own.rows, index, credited), ctx.shapes)
    return Exchanged(
      total=mean.leaves(),
      dense=common.sum_dense(message.dense, comm),
      weight=1,
      ok=ok,
      delivered=credit,
      extras=Extras(nbytes, 'reduce-scatter', removed=own, owed=owed),
    )

  def refuses(compressor):
    if not isinstance(compressor.code.combines, OfParts):
      return 'its code does not work on parts of the joined vector'
    return None

  return Exchange('reduce-scatter', run, refuses, arrange, init)


def _larger_than_dense(message: Message) -> bool:
  # A row goes to each worker, with a word for the verdict.
  workers = message.words.shape[0]
  return 4 * (message.words.size + workers) > message.dense_bytes


def _as_dense(message: Message, comm: Comm) -> Exchanged:
  """The exact mean of what is decoded, and of what is still owed."""
  own = credit = message.own
  if message.owed:
    owed = Parts.cut(Leaves(list(message.owed)), *own.rows.shape)
    credit = Parts.of(own.rows + owed.rows, message.ctx.shapes)
  leaves = Leaves(credit.leaves())  # without the padding of the parts
  out = common.as_dense(message._replace(own=leaves), comm)
  return out._replace(
    delivered=credit,
    extras=out.extras._replace(
      removed=own, owed=[jnp.zeros_like(x) for x in message.owed]
    ),
  )
