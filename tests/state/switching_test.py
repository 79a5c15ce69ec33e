"""Another scheme in mid-training: what is pending stays pending."""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay

WORKERS = 3
PARAMS = {'kernel': jnp.ones((6, 5)), 'bias': jnp.ones(4)}


@functools.cache
def scheme(name, axis_name):
  """One object, so that its update is compiled once."""
  return {
    'dropping': lambda: gs.gradient_dropping(0.1, axis_name=axis_name),
    'dgc': lambda: gs.dgc(0.1, min_size=0, axis_name=axis_name),
    'nesterov': lambda: gs.dgc(
      0.1, min_size=0, nesterov=True, axis_name=axis_name
    ),
    'gtopk': lambda: gs.gtopk(0.1, axis_name=axis_name),
    'one_bit': lambda: gs.one_bit_sgd(axis_name=axis_name),
    'one_bit_scatter': lambda: gs.one_bit_sgd(
      exchange='reduce_scatter', bucket_size=4, axis_name=axis_name
    ),
    'power_sgd': lambda: gs.power_sgd(1, axis_name=axis_name, min_size=0),
    'variance': lambda: gs.variance_based(
      4.0, ladder=(1.0,), axis_name=axis_name
    ),
    'variance_strom': lambda: gs.variance_strom(
      1.0, threshold=0.1, ladder=(1.0,), axis_name=axis_name
    ),
    'qsgd': lambda: gs.qsgd(7, min_size=0, axis_name=axis_name),
    'qsgd_scatter': lambda: gs.qsgd(
      7,
      bucket_size=8,
      exchange='reduce_scatter',
      min_size=0,
      axis_name=axis_name,
    ),
    'sign': lambda: gs.sign_majority(axis_name=axis_name),
  }[name]()


@functools.cache
def specs_of(tx):
  return gs.workers.specs(tx, PARAMS, WORKERS)


@functools.cache
def simulated(tx):
  specs = specs_of(tx)
  fn = gs.workers.parallel(
    lambda g, s, p: tx.update(g, s, p, second_moment=g),
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(replay.OWN, specs, P()),
    out_specs=(P(), specs),
    check_vma=False,
  )
  args = gradients((WORKERS,), 0), Stacked.init(tx), PARAMS
  return fn.lower(*args).compile(replay.QUICKLY)


class Stacked:
  """Three simulated workers, whose states have worker axes."""

  axis_name = replay.AXIS

  @staticmethod
  def init(tx):
    return replay.stacked(tx.init(PARAMS), specs_of(tx), WORKERS)

  @staticmethod
  def update(tx, state, seed):
    grads = gradients((WORKERS,), seed)
    return grads, *simulated(tx)(grads, state, PARAMS)


class Alone:
  """One worker, no communication."""

  axis_name = None

  @staticmethod
  def init(tx):
    return tx.init(PARAMS)

  @staticmethod
  def update(tx, state, seed):
    grads = gradients((), seed)
    return grads, *of_one(tx)(grads, state, PARAMS)


@functools.cache
def of_one(tx):
  fn = jax.jit(lambda g, s, p: tx.update(g, s, p, second_moment=g))
  args = gradients((), 0), tx.init(PARAMS), PARAMS
  return fn.lower(*args).compile(replay.QUICKLY)


SURROUNDINGS, FAST_ALONE = (
  pytest.mark.parametrize('where', marks.few([Stacked, Alone], fast))
  for fast in (Stacked, Alone)
)


def gradients(axes, seed):
  """Positive, so that they serve as their own second moments too."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda p: np.float32(rng.uniform(0.1, 1, (*axes, *p.shape))), PARAMS
  )


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def form(tree):
  return jax.tree.map(lambda x: (jnp.shape(x), jnp.result_type(x)), tree)


def nonzero(tree):
  return any(np.any(x) for x in jax.tree.leaves(tree))


@pytest.mark.slow
@SURROUNDINGS
def test_a_chain_of_schemes_keeps_what_is_pending(where):
  names = (
    'power_sgd',
    'dropping',
    'dgc',
    'gtopk',
    'one_bit',
    'one_bit_scatter',
    'dropping',
  )
  tx = scheme(names[0], where.axis_name)
  _, _, state = where.update(tx, where.init(tx), seed=0)
  for number, name in enumerate(names[1:], start=1):
    old, new = tx, scheme(name, where.axis_name)
    pending, metrics = gs.pending(state), gs.metrics(state)
    assert nonzero(pending)
    state = gs.switch(old, new, state)
    same(gs.pending(state), pending)
    same(gs.metrics(state), metrics)
    assert int(state.steps) == number
    assert form(state) == form(where.init(new))
    # The new scheme runs from there, and nothing gets lost.
    grads, updates, state = where.update(new, state, seed=number)
    if name in ('dropping', 'gtopk') and where is Alone:
      left = jax.tree.map(lambda e, g, u: e + g - u, pending, grads, updates)
      jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
        gs.pending(state),
        left,
      )
    tx = new


@FAST_ALONE
@pytest.mark.parametrize(
  'old, new, field',
  [
    ('dgc', 'nesterov', 'momentum'),
    pytest.param(
      'variance', 'variance_strom', 'variance', marks=pytest.mark.slow
    ),
  ],
)
def test_what_belongs_to_the_pending_comes_with_it(where, old, new, field):
  tx_old, tx_new = (scheme(n, where.axis_name) for n in (old, new))
  _, _, state = where.update(tx_old, where.init(tx_old), seed=0)
  after = gs.switch(tx_old, tx_new, state)
  kept = getattr(state.memory, field)
  assert nonzero(kept)
  same(getattr(after.memory, field), kept)
  # And starts at zero where the old scheme has none.
  plain = scheme('dropping', where.axis_name)
  _, _, state = where.update(plain, where.init(plain), seed=0)
  after = gs.switch(plain, tx_new, state)
  assert not nonzero(getattr(after.memory, field))


@SURROUNDINGS
@pytest.mark.parametrize('name', marks.few(['qsgd', 'sign'], 'sign'))
def test_to_a_scheme_without_memory_is_an_error_and_from_one_is_not(
  where, name
):
  owing, free = (scheme(n, where.axis_name) for n in ('dropping', name))
  # Of a memory that is empty nothing is lost.
  empty = gs.switch(owing, free, where.init(owing))
  assert form(empty) == form(where.init(free))
  _, _, state = where.update(owing, where.init(owing), seed=0)
  with pytest.raises(ValueError, match='pending values would be lost'):
    gs.switch(owing, free, state)
  _, _, state = where.update(free, where.init(free), seed=0)
  after = gs.switch(free, owing, state)
  assert form(after) == form(where.init(owing))
  assert not nonzero(gs.pending(after))
  assert int(after.steps) == 1
  other = scheme('sign' if name == 'qsgd' else 'qsgd', where.axis_name)
  assert form(gs.switch(free, other, state)) == form(where.init(other))


@pytest.mark.slow
@SURROUNDINGS
def test_what_an_exchange_owes_needs_a_memory_to_go_to(where):
  names = 'qsgd_scatter', 'qsgd', 'one_bit_scatter', 'dropping'
  owing, free, both, memory = (scheme(n, where.axis_name) for n in names)
  _, _, state = where.update(owing, where.init(owing), seed=0)
  assert nonzero(state.exchange)
  for target in (free, owing):
    with pytest.raises(ValueError, match='pending values would be lost'):
      gs.switch(owing, target, state)
  # All of it goes to the memory; the new exchange has rounded nothing yet.
  after = gs.switch(owing, both, state)
  same(after.memory.pending(), state.exchange)
  assert form(after) == form(where.init(both)) and not nonzero(after.exchange)
  _, _, state = where.update(both, after, seed=1)
  same(gs.switch(both, memory, state).memory.pending(), gs.pending(state))
  # And to an exchange that rounds, from a scheme that owes nothing.
  fresh = gs.switch(free, owing, where.init(free))
  assert form(fresh) == form(where.init(owing)) and not nonzero(fresh)


@pytest.mark.slow
@SURROUNDINGS
def test_a_chain_keeps_the_optimizers_moments(where):
  def chain(name):
    return optax.chain(
      gs.clip_local_norm(1.0, axis_name=where.axis_name),
      scheme(name, where.axis_name),
      optax.adam(0.1),
    )

  old, new = chain('dropping'), chain('one_bit')
  _, _, state = where.update(old, where.init(old), seed=0)
  after = gs.switch(old, new, state)
  assert nonzero(optax.tree.get(state, 'mu'))
  same(after[2], state[2])
  same(gs.pending(after), gs.pending(state))
  where.update(new, after, seed=1)
  # Another optimizer starts from its own state; what is pending stays.
  sgd = optax.chain(scheme('one_bit', where.axis_name), optax.sgd(0.1, 0.9))
  after = gs.switch(old, sgd, state)
  assert not nonzero(optax.tree.get(after, 'trace'))
  same(gs.pending(after), gs.pending(state))


@FAST_ALONE
def test_leaves_that_become_dense_must_owe_nothing(where):
  """A dense leaf never looks at its memory."""
  axis_name = where.axis_name
  old = gs.gradient_dropping(0.1, axis_name=axis_name)
  new = gs.dgc(0.1, min_size=5, axis_name=axis_name)
  # Nothing is pending yet.
  assert form(gs.switch(old, new, where.init(old))) == form(where.init(new))
  _, _, state = where.update(old, where.init(old), seed=0)
  says = r"leaves \['bias'\] dense, so pending values would be lost"
  with pytest.raises(ValueError, match=says):
    gs.switch(old, new, state)
  # The way that the message names.
  everything = gs.gradient_dropping(1.0, min_size=0, axis_name=axis_name)
  state = gs.switch(old, everything, state)
  _, _, state = where.update(everything, state, seed=1)
  assert not nonzero(gs.pending(state))
  state = gs.switch(everything, new, state)
  where.update(new, state, seed=2)


@FAST_ALONE
def test_a_momentum_of_ones_own_does_not_go_to_a_dense_leaf(where):
  """Workers would move by it, each differently."""

  def dgc(**kwargs):
    return gs.dgc(
      1.0, factor_masking=False, axis_name=where.axis_name, **kwargs
    )

  old, new = dgc(min_size=0), dgc(min_size=5)
  _, _, state = where.update(old, where.init(old), seed=0)
  assert nonzero(state.memory.momentum['bias'])
  after = gs.switch(old, new, state)
  assert not nonzero(after.memory.momentum['bias'])
  same(after.memory.momentum['kernel'], state.memory.momentum['kernel'])
  # Back again it is that of the mean gradient, and goes on.
  _, _, state = where.update(new, after, seed=1)
  again = gs.switch(new, old, state)
  same(again.memory.momentum, state.memory.momentum)
  assert nonzero(again.memory.momentum['bias'])


def test_after_a_local_gradient_the_optimizer_stays():
  local = gs.local_gradient(scheme('dropping', Stacked.axis_name))
  sgd = optax.chain(local, optax.sgd(0.1, momentum=0.9))
  adam = optax.chain(local, optax.adam(0.1))
  with pytest.raises(
    ValueError, match='the optimizer after gs.local_gradient must'
  ):
    gs.switch(sgd, adam, Stacked.init(sgd))
  after = gs.switch(sgd, sgd, Stacked.init(sgd))
  assert form(after) == form(Stacked.init(sgd))


def test_local_gradients_and_their_scheme():
  """The state is found inside of local_gradient, too."""
  inner = scheme('dropping', None)
  local = gs.local_gradient(inner)
  _, _, state = Alone.update(local, Alone.init(local), seed=0)
  after = gs.switch(local, gs.local_gradient(scheme('gtopk', None)), state)
  same(gs.pending(after), gs.pending(state))
  assert isinstance(after, gs.LocalGradientState)


def test_a_state_of_something_else_is_an_error():
  dropping, dgc = scheme('dropping', None), scheme('dgc', None)
  chain = optax.chain(dropping, optax.adam(0.1))
  says = 'not belong to tx_old: the whole is tuple and not CompressedMeanState'
  with pytest.raises(ValueError, match=says + ', .* order is gs.switch'):
    gs.switch(dropping, dgc, chain.init(PARAMS))
  says = r'\.memory is ResidualState and not Momen.* belongs to tx_new\. The'
  with pytest.raises(ValueError, match=says):
    gs.switch(dgc, dropping, dropping.init(PARAMS))
  with pytest.raises(ValueError, match='exactly one.*found 0'):
    gs.switch(dropping, dgc, optax.adam(0.1).init(PARAMS))
  two = optax.partition(
    {'kernel': dropping, 'bias': dgc}, {'kernel': 'kernel', 'bias': 'bias'}
  )
  with pytest.raises(ValueError, match='exactly one.*found 2'):
    gs.switch(two, two, two.init(PARAMS))


def test_other_frozen_parameters_are_refused():
  def train(names):
    labels = {n: 't' if n in names else 'f' for n in ('a', 'b')}
    scheme = gs.gradient_dropping(0.5, min_size=0, axis_name=None)
    return optax.partition({'t': scheme, 'f': optax.set_to_zero()}, labels)

  params = {'a': jnp.ones((4, 5)), 'b': jnp.ones((4, 5))}
  old, new = train('a'), train('ab')
  _, state = old.update(params, old.init(params))
  gs.switch(old, old, state, params)
  with pytest.raises(ValueError, match=r"only one has \['b'\]: frozen param"):
    gs.switch(old, new, state, params)
  with pytest.raises(ValueError, match='params must be given: the'):
    gs.switch(old, new, state)
