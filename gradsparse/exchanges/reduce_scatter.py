"""Reduce-scatter and all-gather of packed words: an all-reduce in two halves.

On some backends XLA widens small data types in collectives, so that they save
no bytes. Here each half sends packed uint32 words:

  all_to_all: worker d gets every worker's d-th part, decodes and averages it
  all_gather: the averaged parts, rounded and packed again

Each worker sends 2 (P - 1) / P times the packed vector, as in a ring
all-reduce; an all-gather of messages sends (P - 1) times the vector.
"""

from __future__ import annotations

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

# The server residual is clipped here. Added to the largest sum that workers may
# send (a quarter of float32's range), it cannot make every later mean overflow.
_MOST_RESIDUAL = float(jnp.finfo(jnp.float32).max) / 8


# Slices, as indexing with a traced index is a slower gather or scatter.
def _row(rows: jax.Array, index: jax.Array) -> jax.Array:
  return jax.lax.dynamic_index_in_dim(rows, index, keepdims=False)


def _with_row(rows: jax.Array, index: jax.Array, row: jax.Array) -> jax.Array:
  return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def reduce_scatter() -> Exchange:
  """The mean of all leaves, concatenated, through a lossy code of parts.

  The concatenated vector (N elements, leaves in order) is cut into P parts of
  whole buckets, padded at the end. The owner of a part, worker d, decodes that
  part of all messages and has their sum S. It rounds the mean once more, and
  keeps the error e for the next step (DoubleSqueeze):

    sent back   C = round((S + e) / P)
    kept        e <- S + e - P C

  Worker d is credited with its own decoded message plus P C - S in its part, so
  that all credits sum to P times the mean. Its memory subtracts only its own
  message. No e is kept if the code is not a contraction.

  Parts whose code would be larger than the leaves (very small ones) are decoded
  and summed by an all-reduce, without a second rounding.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> exchange, code = extend.exchanges.reduce_scatter(), extend.codes.qsgd
  >>> exchange.refuses(extend.compressors.identity('mine', code.of_parts(7)))
  >>> exchange.refuses(extend.compressors.identity('mine', code.of_leaves(7)))
  'its code does not work on parts of the joined vector'

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
    residual = message.server_residual
    if residual:
      earlier = Parts.cut(Leaves(list(residual)), workers, block).rows
      wanted = total + jnp.clip(
        _row(earlier, index), -_MOST_RESIDUAL, _MOST_RESIDUAL
      )
    # The two roundings must use different random numbers.
    again = ctx._replace(key=jax.random.fold_in(ctx.key, 1))
    mine = Parts((wanted / workers)[None], index, own.space)
    packed = code.pack(code.round(mine, again), again)
    decided = comm.gather(common.in_rows(packed[0])).reshape(workers, -1)
    mean = decode(decided[:, : packed.shape[1]], message.rounded)
    given = workers * _row(mean.rows, index)
    if residual:
      # Only a damaged message can make the residual overflow. A number that is
      # not finite would stay in it for ever.
      left = wanted - given
      left = jnp.where(jnp.isfinite(left), left, 0)
      residual = own.space.split(_with_row(earlier, index, left).reshape(-1))
    credited = _row(own.rows, index) + (given - total)
    credit = Parts.of(_with_row(own.rows, index, credited), ctx.shapes)
    return Exchanged(
      total=mean.leaves(),
      dense=comm.sum(message.dense),
      weight=1,
      ok=ok,
      delivered=credit,
      extras=Extras(
        nbytes, 'reduce-scatter', removed=own, server_residual=residual
      ),
    )

  def refuses(compressor):
    if not isinstance(compressor.code.combines, OfParts):
      return 'its code does not work on parts of the joined vector'
    return None

  return Exchange('reduce-scatter', run, refuses, arrange, init)


def _larger_than_dense(message: Message) -> bool:
  # Each worker gets a row and a word for the verdict.
  workers = message.words.shape[0]
  return 4 * (message.words.size + workers) > message.dense_bytes


def _as_dense(message: Message, comm: Comm) -> Exchanged:
  """The exact mean of the decoded messages and of the server residuals."""
  own = credit = message.own
  residual = message.server_residual
  if residual:
    earlier = Parts.cut(Leaves(list(residual)), *own.rows.shape)
    credit = Parts.of(own.rows + earlier.rows, message.ctx.shapes)
  leaves = Leaves(credit.leaves())  # without the padding of the parts
  out = common.as_dense(message._replace(own=leaves), comm)
  return out._replace(
    delivered=credit,
    extras=out.extras._replace(
      removed=own, server_residual=[jnp.zeros_like(x) for x in residual]
    ),
  )
