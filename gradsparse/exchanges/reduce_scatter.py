"""Reduce-scatter and all-gather of packed words: an all-reduce in two halves.

XLA widens small data types in collectives on some backends, so those would
save bytes on paper only. Here each half moves packed uint32 words:

  all_to_all: worker d gets everybody's d-th part, decodes and averages it
  all_gather: the averaged parts, encoded again

2 (P - 1) / P times the packed vector leave each worker, as in a ring
all-reduce; an all-gather of messages sends (P - 1) times.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradsparse.collectives import Comm
from gradsparse.delivery import Full
from gradsparse.delivery import Space
from gradsparse.exchanges import common
from gradsparse.exchanges.row_codes import RowCode
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
from gradsparse.interfaces import Shape
import jax
import jax.numpy as jnp

# What is owed saturates here: beside sums that workers may send (a quarter of
# the range of float32) it cannot make every later mean overflow.
_MOST_OWED = float(jnp.finfo(jnp.float32).max) / 8


# Brackets with a traced index are a gather or a scatter: slow on CPUs.
def _row(rows: jax.Array, index: jax.Array) -> jax.Array:
  return jax.lax.dynamic_index_in_dim(rows, index, keepdims=False)


def _with_row(rows: jax.Array, index: jax.Array, row: jax.Array) -> jax.Array:
  return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)


def reduce_scatter(code: RowCode) -> Exchange:
  """Mean of all leaves, joined, through a lossy code of rows.

  The joined vector (N elements, leaves in order) is cut into P parts of whole
  buckets, padded at the end. The owner of a part, worker d, has the sum S of
  what its part decodes to in all messages. It rounds once more, and what that
  loses, e, stays with it for the next step (DoubleSqueeze):

    sent back   C = decode(encode((S + e) / P))
    kept        e <- S + e - P C

  Worker d is credited with P C - S beside what its own message decodes to, so
  that the credits add up to P times the mean; a memory only hears of its own
  message. A code whose loss cannot be fed back keeps no e.

  References:
    Tang et al., "DoubleSqueeze", arXiv 1905.05957; Tang et al., "1-bit Adam",
    arXiv 2102.02888; Seide et al., Interspeech 2014 (the exchange in parts).

  Args:
    code: of the parts, both ways.
  """

  def init(shapes: Sequence[Shape]) -> Sequence[jax.Array]:
    if not code.feedback:
      return ()
    return [jnp.zeros(shape, jnp.float32) for shape in shapes]

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    leaves, workers = list(encoded.payload), comm.size
    shapes = tuple(x.shape for x in leaves)
    space = Space(shapes, tuple(x.size for x in leaves))
    size = space.size
    part = -(-size // (workers * code.unit)) * code.unit
    counts = jnp.clip(size - part * jnp.arange(workers), 0, part)
    index = comm.index()
    # The two roundings must not share their dice.
    first, second = (jax.random.fold_in(encoded.ctx.key, i) for i in (0, 1))

    def parted(leaves):
      joined = jnp.concatenate([x.reshape(-1) for x in leaves])
      padded = jnp.pad(joined, (0, part * workers - size))
      return padded.reshape(workers, part)

    def split(rows):
      return space.split(rows.reshape(-1))

    rows = code.encode(parted(leaves), counts, first)
    received, healthy, nbytes = common.scatter(rows, encoded.healthy, comm)
    total = jnp.sum(code.decode(received, part), axis=0)
    wanted = total
    if encoded.owed:
      earlier = parted(encoded.owed)
      wanted = total + jnp.clip(_row(earlier, index), -_MOST_OWED, _MOST_OWED)
    packed = code.encode((wanted / workers)[None], counts[index][None], second)
    mean = code.decode(comm.gather(packed[0]), part)
    given = workers * _row(mean, index)
    owed: Sequence[jax.Array] = ()
    if encoded.owed:
      owed = split(_with_row(earlier, index, wanted - given))
    own = code.decode(rows, part)
    credit = _with_row(own, index, _row(own, index) + (given - total))

    def delivery(rows):
      return [Full(x) for x in split(rows)]

    return Exchanged(
      mean=split(mean),
      delivered=delivery(credit),
      dense=common.reduce_dense(encoded.dense, comm),
      healthy=healthy,
      message_bytes=nbytes,
      transport=f'{code.name} reduce-scatter',
      released=delivery(own),
      owed=owed,
    )

  def refuses(compressor):
    if not compressor.raw:
      return 'it takes leaves as they are (compressors.identity)'
    return None

  return Exchange(f'{code.name} reduce-scatter', run, refuses, init)
