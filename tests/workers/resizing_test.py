"""Another number of workers: nothing that is owed is lost, or made up."""

import math
from typing import Any, NamedTuple
import warnings

import gradsparse as gs
from gradsparse import extend
from gradsparse.sockets import ownership
from gradsparse.state.inspection import is_scheme
from gradsparse.workers import resizing
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests import schemes

AXIS = schemes.AXIS
PARAMS = {'bias': jnp.zeros(5), 'kernel': jnp.zeros((6, 4))}
WORKERS = st.integers(1, 8)


# --- the oracle: workers as steps of a function, sampled anew ---


def cells(old, new):
  """owners[new worker]: whose the cells are that it takes, all equally long."""
  fine = math.lcm(old, new)
  return np.repeat(np.arange(old), fine // old).reshape(new, -1)


def shared(x, new):
  x = np.asarray(x, np.float64)
  return np.stack([x[own].mean(axis=0) for own in cells(len(x), new)])


def squares(x, new):
  x = np.asarray(x, np.float64)
  rows = []
  for own in cells(len(x), new):
    parts = np.bincount(own, minlength=len(x)) / len(own)
    rows.append(np.tensordot(parts**2, x, axes=1))
  return np.stack(rows)


def close(found, wanted, scale=1.0):
  np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * scale)


def each(fn, *trees):
  jax.tree.map(fn, *trees)


def mean(tree):
  return jax.tree.map(lambda x: np.mean(np.float64(x), axis=0), tree)


# --- states ---


def stacked(tx, num_workers, params=PARAMS, seed=0):
  """As `gs.workers.init` makes it for a scheme, with numbers in every field."""
  rng = np.random.default_rng(seed)
  one = tx.init(params)

  def fill(x, own):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      axes = (num_workers,) if own else ()
      return jnp.full((*axes, *x.shape), 3, x.dtype)
    shape = (num_workers, *x.shape) if own else x.shape
    return jnp.asarray(rng.normal(size=shape), x.dtype)

  filled = jax.tree.map(fill, one, ownership.is_local(one))
  return jax.tree.map(
    lambda x: x.unnumbered() if is_scheme(x) else x, filled, is_leaf=is_scheme
  )


def resized(tx, state, num_workers):
  """Without a warning."""
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    return gs.workers.resize(tx, state, num_workers)


@hypothesis.given(old=WORKERS, new=WORKERS)
def test_shares_are_those_of_the_cells(old, new):
  table = resizing.shares(old, new)
  dense = np.zeros((new, old))
  for j in range(new):
    np.add.at(dense[j], table.sources[j], table.weights[j])
  counted = [np.bincount(own, minlength=old) for own in cells(old, new)]
  np.testing.assert_allclose(dense, counted / np.sum(counted[0]), atol=1e-15)


@pytest.mark.slow
@hypothesis.given(old=WORKERS, new=WORKERS)
@hypothesis.settings(max_examples=10, deadline=None)
def test_what_is_pending_becomes_the_same_update(old, new):
  tx = gs.dgc(0.1, axis_name=AXIS)
  state = stacked(tx, old, seed=old)
  after = resized(tx, state, new)
  each(lambda x, y: close(x, shared(y, new)), after.memory, state.memory)
  each(close, mean(gs.pending(after)), mean(gs.pending(state)))
  back = resized(tx, resized(tx, state, 2 * old), old)
  each(np.testing.assert_array_equal, back.memory, state.memory)


@pytest.mark.parametrize(
  'name', marks.few(schemes.BY_NAME, 'qsgd_scatter', *schemes.FIRST_NAMES)
)
def test_every_scheme_goes_on(name, old=3, new=2):
  """What is owed stays, shared state stays, and all have the right shapes."""
  setting = schemes.BY_NAME[name]
  tx, params = setting.make(), setting.params
  state = stacked(tx, old, params)
  with warnings.catch_warnings(record=True) as said:
    after = gs.workers.resize(tx, state, new)
  wanted = stacked(tx, new, params)
  assert jax.tree.structure(after) == jax.tree.structure(wanted)
  each(lambda x, y: np.testing.assert_equal(x.shape, y.shape), after, wanted)
  each(lambda x, y: np.testing.assert_equal(x.dtype, y.dtype), after, wanted)
  if setting.name == 'qsgd_scatter':
    assert 'rounding error of the last mean' in str(said[0].message)
  else:
    assert not said
    if after.owes():
      each(close, mean(gs.pending(after)), mean(gs.pending(state)))
  own = jax.tree.leaves(ownership.is_local(state))
  leaves = [jax.tree.leaves(x) for x in (state, after)]
  for x, y, is_own in zip(*leaves, own, strict=True):
    if not is_own:
      np.testing.assert_array_equal(x, y)
  np.testing.assert_array_equal(after.stats.rejected_steps, [3] * new)
  assert not np.any(after.stats.sent_bytes)


def test_the_same_number_changes_nothing():
  tx = gs.one_bit_sgd(exchange='reduce_scatter', min_size=0, axis_name=AXIS)
  state = stacked(tx, 3)
  assert resized(tx, state, 3) is state


@pytest.mark.parametrize(
  'old, new', marks.few([(3, 2), (5, 7), (7, 3)], (3, 2))
)
def test_what_is_equal_on_all_workers_stays_so_to_the_bit(old, new):
  """The momentum of dense leaves: workers would drift apart otherwise."""
  tx = gs.dgc(0.1, axis_name=AXIS)
  state = stacked(tx, old)
  same = np.random.default_rng(0).normal(size=PARAMS['bias'].shape)
  state.memory.momentum['bias'] = gs.workers.stack(np.float32(same), old)
  after = resized(tx, state, new).memory.momentum['bias']
  np.testing.assert_array_equal(after, np.stack([np.float32(same)] * new))


@pytest.mark.parametrize(
  'old, new', marks.few([(4, 2), (3, 2), (1, 8), (4, 6)], (3, 2))
)
def test_second_moments_are_those_of_what_is_pending(old, new):
  """Of one step whose examples the new workers share as they share r."""
  batch, rng = 3, np.random.default_rng(1)
  examples = rng.normal(size=(old, batch, 6, 4))
  tx = gs.variance_based(1.0, axis_name=AXIS, min_size=0)
  params = {'kernel': PARAMS['kernel']}
  state = stacked(tx, old, params)
  memory = state.memory._replace(
    residual={'kernel': jnp.asarray(examples.mean(axis=1), jnp.float32)},
    variance={
      'kernel': jnp.asarray(
        np.sum((examples / batch) ** 2, axis=1), jnp.float32
      )
    },
  )
  after = resized(tx, state._replace(memory=memory), new).memory
  for j, own in enumerate(cells(old, new)):
    parts = np.bincount(own, minlength=old) / len(own)
    contributions = parts[:, None, None, None] * examples / batch
    close(after.residual['kernel'][j], contributions.sum(axis=(0, 1)))
    close(after.variance['kernel'][j], (contributions**2).sum(axis=(0, 1)))


def test_the_estimates_of_ef21_keep_their_mean():
  tx = gs.ef21(0.1, axis_name=AXIS, min_size=0)
  state = stacked(tx, 3)
  memory = state.memory._replace(
    mean=jax.tree.map(lambda x: jnp.mean(x, axis=0), state.memory.estimate)
  )
  after = resized(tx, state._replace(memory=memory), 5).memory
  each(np.testing.assert_array_equal, after.mean, memory.mean)
  each(close, mean(after.estimate), after.mean)


def test_what_an_exchange_owes_goes_to_the_memory():
  tx = gs.one_bit_sgd(exchange='reduce_scatter', min_size=0, axis_name=AXIS)
  state = stacked(tx, 4)
  after = resized(tx, state, 3)
  assert not any(np.any(x) for x in jax.tree.leaves(after.exchange))
  wanted = jax.tree.map(lambda x: shared(x, 3), gs.pending(state))
  each(close, after.memory.residual, wanted)


# --- training on ---


def trained(tx, state, num_workers, seeds, params=PARAMS):
  """(mean gradient, update) of each step, and the state after them."""
  specs = gs.workers.specs(tx, params, num_workers)
  fn = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state, params, second_moment=grads),
    runner='simulate',
    num_workers=num_workers,
    in_specs=(P(AXIS), specs),
    out_specs=(P(), specs),
  )
  program, done = None, []
  for seed in seeds:
    rng = np.random.default_rng(seed)
    draw = lambda p, rng=rng: np.float32(
      np.abs(rng.normal(size=(num_workers, *p.shape)))
    )
    grads = jax.tree.map(draw, params)
    if program is None:
      program = fn.lower(grads, state).compile(replay.QUICKLY)
    update, state = program(grads, state)
    done.append((mean(grads), jax.tree.map(np.float64, update)))
  return done, state


def total(trees):
  return jax.tree.map(lambda *x: sum(x), *trees)


@pytest.mark.parametrize(
  'make',
  [
    pytest.param(
      lambda: gs.gradient_dropping(0.1, axis_name=AXIS), marks=pytest.mark.slow
    ),
    lambda: gs.one_bit_sgd(exchange='reduce_scatter', axis_name=AXIS),
    pytest.param(
      lambda: gs.power_sgd(1, axis_name=AXIS), marks=pytest.mark.slow
    ),
    pytest.param(
      lambda: gs.accumulate(gs.gtopk(0.1, axis_name=AXIS), every=2),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['dropping', 'one_bit_scatter', 'power_sgd', 'accumulate'],
)
def test_nothing_is_lost_on_the_way(make, old=3, new=5):
  """Law 1 over two steps of some workers and two of others."""
  tx = make()
  # Of accumulate, one of these is the first half of a round.
  before, state = trained(tx, gs.workers.init(tx, PARAMS, old), old, range(3))
  after, state = trained(tx, resized(tx, state, new), new, range(3, 6))
  pending = mean(gs.pending(state))
  taken, given = zip(*before, *after, strict=True)
  if isinstance(state, gs.AccumulateState):
    taken = [jax.tree.map(lambda x: x / 2, t) for t in taken]
  each(
    lambda g, u, r: close(u + r, g, scale=10),
    total(taken),
    total(given),
    pending,
  )


@pytest.mark.slow
def test_momentum_goes_on_as_that_of_the_mean():
  """All that is sent and pending is momentum SGD on mean gradients."""
  tx = gs.dgc(0.2, factor_masking=False, min_size=12, axis_name=AXIS)
  before, state = trained(tx, gs.workers.init(tx, PARAMS, 4), 4, range(3))
  after, state = trained(tx, resized(tx, state, 3), 3, range(3, 6))
  means, updates = zip(*before, *after, strict=True)
  pending = mean(gs.pending(state))
  each(
    lambda want, u, v: close(u + v, want, scale=10),
    total(schemes.heavy_ball(means)),
    total(updates),
    pending,
  )


@pytest.mark.slow
def test_ef21_returns_the_mean_of_the_new_estimates():
  tx = gs.ef21(0.2, axis_name=AXIS, min_size=0)
  _, state = trained(tx, gs.workers.init(tx, PARAMS, 4), 4, range(2))
  done, state = trained(tx, resized(tx, state, 6), 6, range(2, 4))
  each(close, done[-1][1], mean(state.memory.estimate))


# --- what is around a scheme ---


DROPPING = gs.gradient_dropping(0.1, axis_name=AXIS)
WRAPPERS = {
  'chain': lambda: optax.chain(
    optax.trace(0.9), DROPPING, optax.adam(0.1), optax.add_noise(0.1, 0.5, 0)
  ),
  'inject': lambda: optax.chain(
    DROPPING, optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
  ),
  'partition': lambda: optax.partition(
    {
      'a': gs.dgc(0.1, axis_name=AXIS),
      'b': optax.chain(gs.dense(axis_name=AXIS), optax.sgd(0.1, momentum=0.5)),
    },
    {'kernel': 'a', 'bias': 'b'},
  ),
  'local': lambda: optax.chain(gs.local_gradient(DROPPING), optax.adam(0.1)),
  'accumulate': lambda: gs.accumulate(
    optax.chain(gs.variance_based(1.0, axis_name=AXIS), optax.sgd(0.1)), every=3
  ),
  'MultiSteps': lambda: optax.MultiSteps(
    DROPPING, every_k_schedule=2
  ).gradient_transformation(),
}


@pytest.mark.parametrize('name', marks.few(WRAPPERS, 'chain'))
def test_what_is_around_a_scheme_goes_with_it(name):
  """Numbers that differ between workers keep their mean, others stay."""
  tx = WRAPPERS[name]()
  rng = np.random.default_rng(0)
  state = jax.tree.map(
    lambda x: (
      jnp.asarray(rng.normal(size=x.shape), x.dtype)
      if jnp.issubdtype(x.dtype, jnp.floating)
      else x
    ),
    gs.workers.init(tx, PARAMS, 4),
  )
  after = resized(tx, state, 2)
  wanted = jax.eval_shape(lambda: gs.workers.init(tx, PARAMS, 2))
  assert jax.tree.structure(after) == jax.tree.structure(wanted)
  rules = ownership.resize_rules(state)

  def check(old, new, like, rule):
    assert (new.shape, new.dtype) == (like.shape, like.dtype)
    if old.shape == new.shape:
      assert new is old
    elif rule != 'copy':
      close(new, {'share': shared, 'squares': squares}[rule](old, 2))

  each(check, state, after, wanted, rules)
  if isinstance(state, gs.AccumulateState):
    assert set(jax.tree.leaves(rules.second_moment)) == {'squares'}


def test_labels_that_cover_several_parameters():
  params = {'a': PARAMS, 'b': PARAMS}
  for labels in ({'a': 'x', 'b': 'y'}, {'a': 'y', 'b': 'x'}):
    tx = optax.partition(
      {'x': gs.dgc(0.1, axis_name=AXIS), 'y': gs.dense(axis_name=AXIS)}, labels
    )
    after = resized(tx, stacked(tx, 2, params), 4)
    wanted = stacked(tx, 4, params)
    each(lambda x, y: np.testing.assert_equal(x.shape, y.shape), after, wanted)


@pytest.mark.slow
def test_sharded_state_moves_to_another_mesh():
  specs = {'kernel': P('fsdp', None), 'bias': P()}
  tx = gs.sharded(gs.dgc(0.5, axis_name='replica'), specs)

  def mesh(replicas, devices):
    return jax.make_mesh(
      (replicas, devices),
      ('replica', 'fsdp'),
      axis_types=(AxisType.Auto,) * 2,
      devices=jax.devices()[: replicas * devices],
    )

  def placed(state, on):
    params = jax.tree.map(
      lambda p, spec: jax.ShapeDtypeStruct(
        p.shape, p.dtype, sharding=jax.NamedSharding(on, spec)
      ),
      PARAMS,
      specs,
    )
    return jax.device_put(
      state, gs.workers.shardings(tx, params, on, 'replica')
    )

  state = stacked(tx, 4)
  after = placed(resized(tx, placed(state, mesh(4, 2)), 3), mesh(3, 2))
  velocity = after.memory.velocity['kernel']
  assert velocity.sharding.spec == P('replica', 'fsdp', None)
  close(velocity, shared(state.memory.velocity['kernel'], 3))


class Counting(NamedTuple):
  """A memory's state with whole numbers of each worker's own."""

  residual: Any
  number: jax.Array

  def pending(self):
    return self.residual


def test_whole_numbers_of_which_nothing_is_known_are_copied_and_said():
  plain = extend.memories.residual()
  told = extend.resized(number='copy')(type('Told', (Counting,), {}))
  for cls in (Counting, told):
    tx = gs.compressed_mean(
      plain._replace(
        init=lambda params, cls=cls: cls(plain.init(params)[0], jnp.int32(0))
      ),
      extend.compressors.identity('all', extend.codes.plain.of_leaves()),
      extend.exchanges.all_reduce(),
      axis_name=AXIS,
    )
    state = stacked(tx, 2)
    state = state._replace(
      memory=state.memory._replace(number=jnp.array([5, 7]))
    )
    with warnings.catch_warnings(record=True) as said:
      after = gs.workers.resize(tx, state, 4)
    np.testing.assert_array_equal(after.memory.number, [5, 5, 7, 7])
    assert len(said) == (cls is Counting)
    assert not said or '.memory.number' in str(said[0].message)


# --- what is wrong ---


@pytest.mark.parametrize(
  'number, error', [(0, ValueError), (-2, ValueError), (1.5, TypeError)]
)
def test_a_number_of_workers_that_cannot_be(number, error):
  with pytest.raises(error, match=f'num_workers must be .* got {number}'):
    gs.workers.resize(DROPPING, stacked(DROPPING, 2), number)


HALF = optax.partition(
  {'a': DROPPING, 'b': optax.set_to_zero()}, {'kernel': 'a', 'bias': 'b'}
)


def wrong_rows():
  state = stacked(DROPPING, 2)
  return state._replace(
    memory=state.memory._replace(residual=jax.tree.map(jnp.copy, PARAMS))
  )


@pytest.mark.parametrize(
  'tx, state, message',
  [
    (DROPPING, DROPPING.init(PARAMS), 'must have one worker axis'),
    (optax.sgd(0.1), optax.sgd(0.1).init(PARAMS), 'found 0 schemes'),
    (
      gs.dense(axis_name=AXIS),
      stacked(DROPPING, 2),
      r'memory is ResidualState and not NoMem',
    ),
    (
      optax.chain(DROPPING, DROPPING),
      (stacked(DROPPING, 2), stacked(DROPPING, 3)),
      r'worker axes of \(2,\), \(3,\)',
    ),
    (HALF, stacked(HALF, 2), 'some parameters are in no scheme'),
    (DROPPING, wrong_rows(), r"residual\['bias'\] must have shape"),
  ],
  ids=[
    'not stacked',
    'none',
    "another's",
    'two numbers',
    'no scheme',
    'a leaf',
  ],
)
def test_a_state_that_cannot_be_resized(tx, state, message):
  with pytest.raises(ValueError, match=message):
    gs.workers.resize(tx, state, 4)


def test_tx_must_be_a_transformation():
  with pytest.raises(TypeError, match='tx must be a GradientTransformation'):
    gs.workers.resize('dgc', stacked(DROPPING, 2), 4)
