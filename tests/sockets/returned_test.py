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


def halves(params):
  return Half(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params))


def floats(signals, ctx):
  found = COMPRESSOR.select(signals, ctx)
  indices = found.indices.astype(jnp.float32)
  return extend.Sparse(found.values, indices, found.space)


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
