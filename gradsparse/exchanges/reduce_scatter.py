"""Reduce-scatter and all-gather of packed words: an all-reduce in two halves.

XLA widens 16-bit collectives on some backends, so a smaller data type would
save bytes on paper only. Here each half moves packed uint32 words:

  all_to_all: worker d gets everybody's d-th part, decodes and averages it
  all_gather: the averaged parts, encoded again

2 (P - 1) / P words of the whole leave each worker, as in a ring all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import NamedTuple

from gradsparse.collectives import Comm
from gradsparse.delivery import Full
from gradsparse.exchanges import common
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Exchanged
from gradsparse.wire import fixed_width
import jax
import jax.numpy as jnp


class RowCode(NamedTuple):
  """A code of float32 rows.

  Attributes:
    name: for tables.
    encode: float32[rows, n] -> uint32[rows, words].
    decode: (uint32[rows, words], n) -> float32[rows, n].
  """

  name: str
  encode: Callable[[jax.Array], jax.Array]
  decode: Callable[[jax.Array, int], jax.Array]


def bfloat16_words() -> RowCode:
  """The upper half of each float32, rounded to nearest even; two a word."""

  def encode(rows):
    bits = jax.lax.bitcast_convert_type(
      rows.astype(jnp.bfloat16), jnp.uint16
    ).astype(jnp.uint32)
    return jax.vmap(lambda row: fixed_width.pack(row, 16))(bits)

  def decode(words, n):
    bits = jax.vmap(lambda row: fixed_width.unpack(row, n, 16))(words)
    return jax.lax.bitcast_convert_type(bits << 16, jnp.float32)

  return RowCode('bfloat16', encode, decode)


def reduce_scatter(code: RowCode) -> Exchange:
  """Mean of all leaves through a lossy row code (no memory: it is rounded)."""

  def run(encoded: Encoded, comm: Comm) -> Exchanged:
    leaves = list(encoded.payload)
    size = sum(x.size for x in leaves)
    part = -(-size // comm.size)
    joined = jnp.concatenate([x.reshape(-1) for x in leaves])
    joined = jnp.pad(joined, (0, part * comm.size - size))
    rows = code.encode(joined.reshape(comm.size, part))
    health = jnp.full((comm.size, 1), encoded.healthy, jnp.uint32)
    received = comm.all_to_all(jnp.concatenate([health, rows], axis=1))
    healthy = jnp.all(received[:, 0] == 1)
    mine = jnp.mean(code.decode(received[:, 1:], part), axis=0)
    parts = comm.gather(code.encode(mine[None])[0])
    mean = code.decode(parts, part).reshape(-1)[:size]
    own = code.decode(rows, part).reshape(-1)[:size]
    healthy = comm.replicated(healthy)

    def split(flat):
      out, start = [], 0
      for x in leaves:
        stop = start + math.prod(x.shape)
        out.append(flat[start:stop].reshape(x.shape))
        start = stop
      return out

    return Exchanged(
      mean=split(mean),
      delivered=[Full(jnp.where(healthy, x, 0.0)) for x in split(own)],
      dense=common.reduce_dense(encoded.dense, comm),
      healthy=healthy,
      message_bytes=rows.nbytes + health.nbytes,
      transport=f'{code.name} reduce-scatter',
    )

  def refuses(compressor):
    if compressor.name != 'dense':
      return 'it takes leaves as they are'
    return None

  return Exchange(f'{code.name} reduce-scatter', run, refuses)
