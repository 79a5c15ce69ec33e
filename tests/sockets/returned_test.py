"""A socket's function that returns the wrong thing is named, before any run."""

from typing import Any, NamedTuple

import gradsparse as gs
from gradsparse import extend
import jax
import jax.numpy as jnp
import pytest

PARAMS = {'w': jnp.zeros((6, 5))}
MEMORY = extend.memories.residual()
COMPRESSOR = extend.compressors.top_k(
  0.2, extend.codes.sparse(), scope='global', name='mine'
)
CODE = COMPRESSOR.code


class Half(NamedTuple):
  residual: Any

  def pending(self):
    return self.residual


class Owed(NamedTuple):
  pending: Any


def halves(params):
  return Half(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params))


def floats(signals, ctx):
  found = COMPRESSOR.select(signals, ctx)
  indices = found.indices.astype(jnp.float32)
  return extend.Sparse(found.values, indices, found.space)


def flattened(signals, ctx):
  found = COMPRESSOR.select(signals, ctx)
  whole = extend.Space.whole([(30,)])
  return extend.Sparse(found.values, found.indices, whole)


def moved(rounded, ctx, summands):
  whole = extend.Space.whole([(5, 6)])
  return extend.Sparse(rounded.values, rounded.indices, whole)


@pytest.mark.parametrize(
  'memory, compressor, code, says',
  [
    ({'sent': lambda s, d: None}, {}, {}, 'memory.sent must .* None'),
    (
      {'accumulate': lambda g, s, e, d: None},
      {},
      {},
      'memory.accumulate must return a ResidualState .* returned None',
    ),
    (
      {'arrived': lambda s, m, d, a: s.residual},
      {},
      {},
      'memory.arrived must return a ResidualState .* returned dict',
    ),
    (
      {
        'init': halves,
        'accumulate': lambda g, s, e, d: Half(g),
        'sent': lambda s, d: s,
      },
      {},
      {},
      r"memory.accumulate made float32 of bfloat16: state.residual\['w'\]",
    ),
    ({}, {'select': floats}, {}, 'Sparse.indices must be int32, got float32'),
    (
      {},
      {},
      {'decode': lambda rounded, ctx, summands: None},
      'code.decode .* must return one of Sparse, .* got NoneType',
    ),
    (
      {},
      {},
      {'pack': lambda s, ctx: {'low': s.values.astype(jnp.float16)}},
      r"code.pack: word \['low'\] .* uint32 or float32, got float16",
    ),
    (
      {'init': lambda params: params},
      {},
      {},
      r'memory.init must return .* method pending\(\).* got dict',
    ),
    (
      {'init': lambda params: Owed(params)},
      {},
      {},
      r'memory.init must return .* method pending\(\).* got Owed',
    ),
    (
      {},
      {'select': flattened},
      {},
      r'compressor.select must return Sparse .*\[\(6, 5\)\], got \[\(30,\)\]',
    ),
    (
      {},
      {},
      {'decode': moved},
      r'code.decode must return Sparse .*\[\(6, 5\)\], got \[\(5, 6\)\]',
    ),
    (
      {},
      {},
      {'decode': lambda s, ctx, n: extend.Leaves([jnp.zeros(30)])},
      r'code.decode must return Leaves .*\[\(6, 5\)\], got \[\(30,\)\]',
    ),
    ({}, {}, {'pack': lambda s, ctx: 3}, r'word \(the only one\) .* got int'),
  ],
)
def test_it_is_named(memory, compressor, code, says):
  tx = gs.compressed_mean(
    MEMORY._replace(**memory),
    COMPRESSOR._replace(**{'code': CODE._replace(**code), **compressor}),
    extend.exchanges.all_gather(),
    axis_name=None,
  )
  with pytest.raises(TypeError, match=says):
    jax.eval_shape(tx.update, PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize(
  'exchange, code, says',
  [
    (
      extend.exchanges.all_gather('senders'),
      extend.codes.plain.of_leaves()._replace(
        takes=object, combines='messages'
      ),
      r"mean='senders' needs .* Sparse or Marked.* returned Leaves",
    ),
    (
      extend.exchanges.majority(),
      extend.codes.signs(0.5)._replace(
        pack=lambda rounded, ctx: [jnp.zeros(1, jnp.uint32)]
      ),
      'code.pack must return a vector for a majority vote, got list',
    ),
  ],
)
def test_what_an_exchange_cannot_use_is_named(exchange, code, says):
  tx = gs.compressed_mean(
    MEMORY,
    extend.compressors.identity('mine', code),
    exchange,
    axis_name=None,
  )
  with pytest.raises(TypeError, match=says):
    jax.eval_shape(tx.update, PARAMS, tx.init(PARAMS))
