"""States say themselves which of them is a worker's own."""

from typing import Any, NamedTuple

import gradsparse as gs
from gradsparse import extend
from gradsparse.sockets import ownership
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

AXIS = gs.workers.AXIS
PARAMS = {'w': jnp.zeros((6, 5))}


class Plain(NamedTuple):
  a: Any
  b: Any


@extend.shared('b')
class Sharing(NamedTuple):
  a: Any
  b: Any


@extend.local('a')
class Keeping(NamedTuple):
  a: Any
  b: Any


def test_all_is_a_workers_own_unless_the_state_says_otherwise():
  assert ownership.local_fields(Plain(1, 2)) == ('a', 'b')
  for cls in (Sharing, Keeping):
    assert ownership.local_fields(cls(1, 2)) == ('a',)


def test_what_a_state_does_not_say_is_as_what_holds_it_says():
  inner = Sharing(1, Plain(2, 3))
  assert ownership.is_local(inner) == Sharing(True, Plain(False, False))
  assert ownership.is_local({'x': inner, 'y': 4}) == {
    'x': Sharing(True, Plain(False, False)),
    'y': False,
  }
  held = Keeping(Plain(1, Sharing(2, 3)), Sharing(4, 5))
  assert ownership.is_local(held) == Keeping(
    Plain(True, Sharing(True, False)), Sharing(True, False)
  )


def test_a_field_that_does_not_exist_is_refused():
  for decorator in (extend.shared, extend.local):
    with pytest.raises(ValueError, match="Plain has no field 'c', only a, b"):
      decorator('c')(Plain)


@extend.resized(b='squares')
class Squared(NamedTuple):
  a: Any
  b: Any


def test_states_say_how_they_go_to_other_workers():
  """A rule is for all that a field holds, unless a class there says more."""
  inner = Squared(1, Plain(2, 3))
  rules = Squared('share', Plain('squares', 'squares'))
  assert ownership.resize_rules(inner) == rules
  assert ownership.resize_rules([4, inner]) == ['share', rules]
  assert ownership.resize_rules(Squared(1, Squared(2, 3))) == Squared(
    'share', Squared('squares', 'squares')
  )
  state = gs.variance_based(1.0, axis_name=None).init(PARAMS)
  said = ownership.resize_rules(state)
  assert said.memory.residual == {'w': 'share'}
  assert said.memory.variance == {'w': 'squares'}
  assert set(said.stats) == {'copy'}


def test_a_rule_that_does_not_exist_is_refused():
  with pytest.raises(ValueError, match="Plain has no field 'c', only a, b"):
    extend.resized(c='copy')(Plain)
  with pytest.raises(ValueError, match="'copy'.*, got 'mean'"):
    extend.resized(a='mean')


def test_specs_and_init_read_it():
  tx = optax.chain(gs.ef21(0.1, axis_name=AXIS), optax.sgd(0.1, momentum=0.9))
  specs = gs.workers.specs(tx, PARAMS, 2)
  memory = specs[0].memory
  assert memory.mean == {'w': P()}
  assert memory.estimate == memory.residual == {'w': P(AXIS)}
  assert specs[1][0].trace == {'w': P()}
  state = gs.workers.init(tx, PARAMS, 2)[0].memory
  assert state.mean['w'].shape == (6, 5)
  assert state.estimate['w'].shape == (2, 6, 5)


class Learnt(NamedTuple):
  """A compressor's state of which a part is the worker's."""

  seen: jax.Array
  agreed: jax.Array


@pytest.mark.parametrize('runner', ['simulate', 'shard_map'])
def test_a_compressor_can_keep_something_of_each_workers_own(runner):
  """Learnt by all of the sum, and by each of its own message."""
  own = extend.local('seen')(Learnt)
  own_state = extend.CompressorState(
    init=lambda shapes: own(jnp.float32(0), jnp.float32(0)),
    update=lambda total, ctx: own(
      ctx.state.seen + jax.random.uniform(ctx.key),
      ctx.state.agreed + jnp.sum(total.arrays[0]),
    ),
  )
  plain = extend.compressors.identity(
    'learning', extend.codes.plain.of_leaves()
  )
  tx = gs.compressed_mean(
    extend.memories.no_memory(),
    plain._replace(state=own_state),
    extend.exchanges.all_reduce(),
    axis_name=AXIS,
  )
  specs = gs.workers.specs(tx, PARAMS, 2)
  assert specs.compressor == own(P(AXIS), P())
  fn = gs.workers.parallel(
    lambda state, grads: tx.update(grads, state),
    runner=runner,
    num_workers=2,
    in_specs=(specs, P(AXIS)),
    out_specs=(P(), specs),
  )
  grads = {'w': np.ones((2, 6, 5), np.float32)}
  _, state = fn(gs.workers.init(tx, PARAMS, 2), grads)
  assert state.compressor.agreed == 60
  seen = np.asarray(state.compressor.seen)
  assert seen.shape == (2,) and seen[0] != seen[1]


def test_switching_keeps_estimates_where_they_mean_the_same():
  """And refuses to take a sum of gradients for the residual of one."""
  leaf, chunk, dropping = (
    gs.ef21(0.1, axis_name=None),
    gs.ef21(0.1, scope='chunk', chunk_size=7, axis_name=None),
    gs.gradient_dropping(0.1, axis_name=None),
  )
  grads = {'w': jnp.arange(30.0).reshape(6, 5)}
  _, state = jax.jit(leaf.update)(grads, leaf.init(PARAMS))
  after = gs.switch(leaf, chunk, state)
  jax.tree.map(np.testing.assert_array_equal, after.memory, state.memory)
  # What an estimate lacks is no debt: gradient dropping begins with none.
  assert np.any(gs.pending(state)['w'])
  assert not np.any(gs.pending(gs.switch(leaf, dropping, state))['w'])
  _, state = jax.jit(dropping.update)(grads, dropping.init(PARAMS))
  with pytest.raises(ValueError, match='keeps no sum of gradients'):
    gs.switch(dropping, leaf, state)
