"""What a value is computed from says whether it differs between workers."""

from gradsparse.workers import differing
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import pytest


def _loop(x, limit):
  return jax.lax.while_loop(
    lambda c: jnp.sum(c) < jnp.sum(limit), lambda c: c + 1, x
  )


def _typed(x):
  return jax.lax.pcast(x, 'w', to='varying')


def _number():
  return jax.lax.axis_index('w')


# Of p, which is the same on all workers, and b, which is not.
SAME = {
  'zeros like': lambda p, b: p + jnp.zeros_like(b),
  'a mean': lambda p, b: jax.lax.pmean(b, 'w') + jnp.zeros_like(b),
  'typed': lambda p, b: _typed(p) * 2,
  'in a jit': lambda p, b: jax.jit(lambda p, b: (p + b * 0, _typed(p)))(p, b)[
    1
  ],
  'in a branch': lambda p, b: jax.lax.cond(
    p[0] > 0, lambda: (b, _typed(p)), lambda: (b, _typed(p * 2))
  )[1],
  'in a loop': lambda p, b: _loop(_typed(p), _typed(p) * 2),
  'behind a barrier': lambda p, b: jax.lax.optimization_barrier((_typed(p), b))[
    0
  ],
}
DIFFERENT = {
  'itself': lambda p, b: b,
  'times zero': lambda p, b: p + b * 0,
  'the number': lambda p, b: p + jax.lax.axis_index('w'),
  'sent': lambda p, b: jax.lax.ppermute(p, 'w', [(0, 1)]),
  'cut': lambda p, b: jax.lax.psum_scatter(p, 'w', tiled=True),
  'in a jit': lambda p, b: jax.jit(lambda p, b: (p, p + b))(p, b)[1],
  'a number in a jit': lambda p, b: p + jax.jit(_number)(),
  'which branch': lambda p, b: jax.lax.cond(
    b[0] > 0, lambda: _typed(p), lambda: _typed(p * 2)
  ),
  'how many turns': lambda p, b: _loop(_typed(p), b),
  'a number in a loop': lambda p, b: jax.lax.fori_loop(
    0, 2, lambda i, x: x + jax.lax.axis_index('w'), _typed(p)
  ),
  'behind a barrier': lambda p, b: jax.lax.optimization_barrier((p, b))[1],
  'in a scan': lambda p, b: jax.lax.scan(
    lambda c, x: (c + x, None), _typed(p[0]), b
  )[0],
}


def differs(fn):
  seen = []

  def step(p, b):
    seen.append(differing.differing(fn, (p, b), fn(p, b), 'w'))
    return b

  mesh = AbstractMesh((2,), ('w',), axis_types=(AxisType.Auto,))
  mapped = jax.shard_map(
    step, mesh=mesh, in_specs=(P(), P('w')), out_specs=P('w')
  )
  jax.eval_shape(mapped, jnp.ones(4), jnp.ones(8))
  return seen == [{0}]


@pytest.mark.parametrize('name', SAME)
def test_what_is_made_of_the_same_is_the_same(name):
  assert not differs(SAME[name])


@pytest.mark.parametrize('name', DIFFERENT)
def test_what_may_differ_is_said_to(name):
  assert differs(DIFFERENT[name])
