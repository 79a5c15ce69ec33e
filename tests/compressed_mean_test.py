"""Schemes inside the rest of optax: what composes, and what is refused."""

import chex
import gradsparse as gs
from gradsparse import extend
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay

AXIS = gs.workers.AXIS
OWN = P(AXIS)
PARAMS = {'kernel': jnp.zeros((12, 10)), 'bias': jnp.zeros(11)}


def gradients(num_workers=2, seed=0, params=PARAMS, dtype=np.float32):
  rng = np.random.default_rng(seed)
  draw = lambda p: jnp.asarray(rng.normal(size=(num_workers, *p.shape)), dtype)
  return jax.tree.map(draw, params)


def quickly(fn, *args):
  """A compiled function of the types of args, not optimised."""
  return jax.jit(fn).lower(*args).compile(replay.QUICKLY)


def simulated(tx, num_workers=2, params=PARAMS, dtype=np.float32):
  """(state with worker axes, compiled (grads, state) -> (updates, state))."""
  state = gs.workers.stack(tx.init(params), num_workers)
  mapped = jax.vmap(tx.update, axis_name=AXIS)
  return state, quickly(
    mapped, gradients(num_workers, params=params, dtype=dtype), state
  )


def mean_of(grads):
  return jax.tree.map(lambda g: np.mean(g, axis=0), grads)


# --- the silent sum ---------------------------------------------------------


def training_step(tx, local):
  def step(params, state, batch):
    own = gs.workers.local(params) if local else params
    loss = lambda p: jnp.mean((batch @ p['kernel'] - 1) ** 2) + sum(p['bias'])
    updates, state = tx.update(jax.grad(loss)(own), state, params)
    return optax.apply_updates(params, updates), state

  return step


def trace(tx, runner, *, local):
  specs = gs.workers.specs(tx, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  step = training_step(tx, local)
  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=2,
    in_specs=(P(), specs, OWN),
    out_specs=(P(), specs),
  )
  return fn.lower(PARAMS, state, jnp.ones((2, 3, 12)))


@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
@pytest.mark.parametrize(
  'tx',
  [
    gs.dense(axis_name=AXIS),
    optax.chain(optax.clip(1.0), gs.dgc(0.1, axis_name=AXIS), optax.sgd(0.1)),
  ],
)
def test_gradients_that_jax_has_summed_already_are_refused(tx, runner):
  with pytest.raises(ValueError) as e:
    trace(tx, runner, local=False)
  for said in ("['bias']", 'already summed', "'workers'", 'gs.workers.local'):
    assert said in str(e.value)


@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_local_gradients_are_taken_under_every_runner(runner):
  trace(gs.dense(axis_name=AXIS), runner, local=True)


def test_an_axis_that_does_not_exist_is_a_name_error():
  for tx in (gs.dense(axis_name='nodes'), gs.dgc(0.1, axis_name='nodes')):
    with pytest.raises(NameError, match='nodes'):
      tx.update(PARAMS, tx.init(PARAMS))
    with pytest.raises(NameError, match='nodes'):
      jax.vmap(lambda g, tx=tx: tx.update(g, tx.init(PARAMS)), axis_name=AXIS)(
        gradients()
      )


def test_no_axis_is_one_worker_and_forgetting_it_is_a_type_error():
  with pytest.raises(TypeError, match='axis_name'):
    gs.dgc(0.1)  # type: ignore[call-arg]
  grads = mean_of(gradients())
  tx = gs.dense(axis_name=None)
  updates, _ = tx.update(grads, tx.init(PARAMS))
  chex.assert_trees_all_equal(updates, grads)


# --- steps that go wrong on one worker --------------------------------------


def test_apply_if_finite_around_a_scheme_is_refused():
  for inner in (
    gs.dense(axis_name=AXIS),
    optax.chain(gs.dgc(0.1, axis_name=AXIS), optax.sgd(0.1)),
  ):
    tx = optax.apply_if_finite(inner, 3)
    state = gs.workers.stack(tx.init(PARAMS), 2)
    with pytest.raises(ValueError, match='apply_if_finite'):
      jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), gradients(), state)


def test_apply_if_finite_after_it_skips_a_step_on_all_workers_together():
  scheme = gs.dgc(0.1, min_size=0, axis_name=AXIS)
  tx = optax.chain(scheme, optax.apply_if_finite(optax.adam(0.1), 3))
  specs = gs.workers.specs(tx, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state),
    runner='shard_map',
    num_workers=2,
    in_specs=(specs, OWN),
    out_specs=(P(), specs),
  )
  _, state = fn(state, gradients(seed=0))
  before = jax.tree.map(np.asarray, state)
  poisoned = gradients(seed=1)
  poisoned['kernel'] = poisoned['kernel'].at[1, 3, 4].set(jnp.inf)
  updates, state = fn(state, poisoned)

  chex.assert_trees_all_equal(updates, jax.tree.map(jnp.zeros_like, PARAMS))
  assert int(state[1].notfinite_count) == 1
  chex.assert_trees_all_equal(state[1].inner_state, before[1].inner_state)
  # The healthy worker keeps its gradient, the other what it had before.
  u, v = before[0].memory.momentum, before[0].memory.velocity
  for name in PARAMS:
    expected = v[name].copy()
    expected[0] += 0.9 * u[name][0] + poisoned[name][0]
    np.testing.assert_allclose(
      gs.pending(state)[name], expected, rtol=1e-5, atol=1e-6
    )
  updates, state = fn(state, gradients(seed=2))
  assert int(state[1].notfinite_count) == 0
  assert any(np.any(u) for u in jax.tree.leaves(updates))
  assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))


# --- parts of a tree --------------------------------------------------------


def test_masked_is_refused():
  tx = optax.masked(
    gs.dgc(0.1, axis_name=AXIS), {'kernel': True, 'bias': False}
  )
  with pytest.raises(ValueError, match='optax.partition'):
    tx.init(PARAMS)


def partitioned(bias):
  return optax.partition(
    {'kernel': gs.gradient_dropping(0.1, axis_name=AXIS), 'bias': bias},
    {'kernel': 'kernel', 'bias': 'bias'},
  )


def test_partition_gives_each_part_its_own_scheme():
  both = partitioned(gs.dense(axis_name=AXIS))
  gs.workers.specs(both, PARAMS, 2)
  state, step = simulated(both)
  alone = {'kernel': PARAMS['kernel']}
  tx = gs.gradient_dropping(0.1, axis_name=AXIS)
  alone_state, alone_step = simulated(tx, params=alone)
  for t in range(2):
    grads = gradients(seed=t)
    updates, state = step(grads, state)
    expected, alone_state = alone_step({'kernel': grads['kernel']}, alone_state)
    np.testing.assert_array_equal(updates['kernel'], expected['kernel'])
    mean = np.mean(grads['bias'], axis=0)
    np.testing.assert_allclose(updates['bias'][1], mean, rtol=1e-6)


def test_leaves_that_nobody_averages_are_an_error():
  for nobody in (optax.identity(), optax.sgd(0.1)):
    with pytest.raises(ValueError, match=r"\['bias'\].*gs.dense"):
      gs.workers.specs(partitioned(nobody), PARAMS, 2)
  with pytest.raises(ValueError, match='drift apart'):
    gs.workers.specs(optax.sgd(0.1), PARAMS, 2)


def test_dense_paths_keep_leaves_out_of_the_message():
  for rule in ('bias$|kern', lambda path: 'kernel' in path):
    tx = gs.gradient_dropping(0.1, dense_paths=rule, axis_name=AXIS)
    params = PARAMS | {'bias2': jnp.zeros(20)}
    plan = gs.plan(tx, params, 2)
    dense = {r.name for r in plan.rows if r.transport == 'dense'}
    assert "['kernel']" in dense
    assert "['bias2']" not in dense


# --- odd trees --------------------------------------------------------------

SCHEMES = {
  'dense': lambda a: gs.dense(axis_name=a),
  'dense_bfloat16': lambda a: gs.dense(wire_dtype='bfloat16', axis_name=a),
  'dgc': lambda a: gs.dgc(0.1, min_size=0, axis_name=a),
  'gtopk': lambda a: gs.gtopk(0.1, axis_name=a),
  'qsgd': lambda a: gs.qsgd(127, min_size=0, axis_name=a),
  'qsgd_scatter': lambda a: gs.qsgd(
    127, min_size=0, exchange='reduce_scatter', axis_name=a
  ),
}


@pytest.mark.parametrize('name', SCHEMES)
def test_scalars_empty_leaves_and_nones_keep_their_places(name):
  params = {
    'scalar': jnp.zeros(()),
    'empty': jnp.zeros((0, 3)),
    'nothing': None,
    'list': [jnp.zeros(3), (), jnp.zeros((1, 2))],
  }
  tx = SCHEMES[name](AXIS)
  state, step = simulated(tx, params=params)
  updates, state = step(gradients(params=params), state)
  assert jax.tree.structure(updates) == jax.tree.structure(params)
  for update, param in zip(
    *map(jax.tree.leaves, (updates, params)), strict=True
  ):
    assert update.shape == (2, *param.shape)
  assert any(np.any(update) for update in jax.tree.leaves(updates))
  alone = SCHEMES[name](None)
  assert alone.update(jnp.float32(2.0), alone.init(jnp.zeros(())))[0] == 2.0


@pytest.mark.parametrize('name', SCHEMES)
def test_updates_have_the_dtype_of_the_gradients_and_memories_are_float32(name):
  tx = SCHEMES[name](AXIS)
  params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), PARAMS)
  state, step = simulated(tx, params=params, dtype=jnp.bfloat16)
  grads = gradients(dtype=jnp.bfloat16)
  updates, state = step(grads, state)
  chex.assert_type(jax.tree.leaves(updates), jnp.bfloat16)
  chex.assert_type(jax.tree.leaves(state.memory), jnp.float32)
  chex.assert_type(jax.tree.leaves(gs.pending(state)), jnp.float32)
  if name == 'dense':
    mean = np.mean(np.asarray(grads['bias'], np.float32), axis=0)
    np.testing.assert_allclose(
      np.asarray(updates['bias'][0], np.float32), mean, rtol=2**-8
    )


def test_an_unknown_extra_argument_is_ignored():
  tx = gs.dgc(0.1, axis_name=None)
  grads = mean_of(gradients())

  def both(grads, state):
    more = dict(value=1.0, second_moment=None)
    return tx.update(grads, state), tx.update(grads, state, PARAMS, **more)

  state = tx.init(PARAMS)
  plain, with_more = quickly(both, grads, state)(grads, state)
  chex.assert_trees_all_equal(plain, with_more)


def test_update_and_step_do_the_same():
  tx = gs.gtopk(0.1, axis_name=AXIS)
  state = gs.workers.stack(tx.init(PARAMS), 3)
  grads = gradients(3)
  update = quickly(jax.vmap(tx.update, axis_name=AXIS), grads, state)
  step = quickly(jax.vmap(tx.step, axis_name=AXIS), grads, state)
  chex.assert_trees_all_equal(update(grads, state), step(grads, state)[:2])


# --- density that changes ---------------------------------------------------


def test_another_density_goes_on_with_the_same_state():
  """Rebuilding for each stage does what a schedule in the program does."""
  make = lambda density: gs.dgc(density, min_size=0, axis_name=AXIS)
  stages = ((0, 0.5), (2, 0.1))
  state, scheduled = simulated(make(gs.schedules.DensitySchedule(stages)))
  first_state, first = simulated(make(0.5))
  last_state, last = simulated(make(0.1))
  chex.assert_trees_all_equal_shapes_and_dtypes(first_state, last_state)
  chex.assert_trees_all_equal_shapes_and_dtypes(first_state, state)
  rebuilt = first_state
  for t, step in enumerate((first, first, last, last)):
    grads = gradients(seed=t)
    expected, state = scheduled(grads, state)
    updates, rebuilt = step(grads, rebuilt)
    chex.assert_trees_all_close(updates, expected, rtol=1e-6)
    chex.assert_trees_all_close(
      gs.pending(rebuilt), gs.pending(state), rtol=1e-6, atol=1e-6
    )
  sent = np.count_nonzero(updates['kernel'][0])
  assert 12 <= sent <= 24  # two workers, k = 12


STATIC = ('axis_name', 'min_size', 'nesterov', 'factor_masking')


def test_inject_hyperparams_changes_density_and_momentum_between_steps():
  injected = optax.inject_hyperparams(gs.dgc, static_args=STATIC)
  tx = injected(0.25, momentum=0.9, min_size=0, axis_name=AXIS)
  state, step = simulated(tx)
  plain_state, plain = simulated(gs.dgc(0.25, min_size=0, axis_name=AXIS))
  grads = gradients()
  updates, state = step(grads, state)
  expected, plain_state = plain(grads, plain_state)
  chex.assert_trees_all_close(updates, expected, rtol=1e-6)

  # The same program, other numbers.
  state.hyperparams['density'] = jnp.full(2, 0.05)
  state.hyperparams['momentum'] = jnp.full(2, 0.5)
  _, plain = simulated(gs.dgc(0.05, momentum=0.5, min_size=0, axis_name=AXIS))
  grads = gradients(seed=1)
  updates, state = step(grads, state)
  expected, plain_state = plain(grads, plain_state)
  chex.assert_trees_all_close(updates, expected, rtol=1e-6)
  chex.assert_trees_all_close(
    gs.pending(state), gs.pending(plain_state), rtol=1e-6
  )


def test_inject_hyperparams_of_what_must_be_static_says_so():
  tx = optax.inject_hyperparams(gs.dgc)(0.25, min_size=0, axis_name=None)
  with pytest.raises(TypeError, match='min_size.*static_args'):
    jax.eval_shape(tx.update, PARAMS, tx.init(PARAMS))


# --- steps without an exchange ----------------------------------------------


@pytest.mark.parametrize('runner', ['simulate', 'shard_map'])
@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_multi_steps_delivers_the_mean_of_several_gradients(runner):
  inner = optax.chain(gs.dgc(0.2, min_size=0, axis_name=AXIS), optax.sgd(1.0))
  tx = optax.MultiSteps(inner, every_k_schedule=2)
  specs = gs.workers.specs(tx, PARAMS, 2)
  assert specs.acc_grads == {'kernel': OWN, 'bias': OWN}
  assert specs.mini_step == P()
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state, PARAMS),
    runner=runner,
    num_workers=2,
    in_specs=(specs, OWN),
    out_specs=(P(), specs),
  )
  assert gs.plan(tx, PARAMS, 2) == gs.plan(inner, PARAMS, 2)
  state = gs.workers.init(tx, PARAMS, 2)
  inner_state, inner_step = simulated(inner)
  for t in range(2):
    one, other = gradients(seed=2 * t), gradients(seed=2 * t + 1)
    updates, state = fn(state, one)
    chex.assert_trees_all_equal(updates, jax.tree.map(jnp.zeros_like, PARAMS))
    updates, state = fn(state, other)
    both = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
    expected, inner_state = inner_step(both, inner_state)
    chex.assert_trees_all_close(
      updates, jax.tree.map(lambda x: x[0], expected), rtol=1e-5, atol=1e-6
    )


@pytest.mark.filterwarnings('ignore:optax.MultiSteps:UserWarning')
def test_multi_steps_exchanges_on_every_mini_step():
  """What is outside of branches runs in every call, as without MultiSteps."""

  def audited(tx):
    specs = gs.workers.specs(tx, PARAMS, 2)
    fn = gs.workers.parallel(
      lambda state, g: tx.update(g, state, PARAMS),
      runner='shard_map',
      num_workers=2,
      in_specs=(specs, OWN),
      out_specs=(P(), specs),
    )
    state = gs.workers.init(tx, PARAMS, 2)
    lowered = fn.lower(state, gradients())
    return gs.audit(lowered.compile(replay.QUICKLY))

  inner = optax.chain(gs.dgc(0.1, axis_name=AXIS), optax.sgd(1.0))
  alone = audited(inner)
  several = audited(optax.MultiSteps(inner, every_k_schedule=3))
  sizes = lambda audit: sorted((c.kind, c.nbytes) for c in audit.collectives)
  assert [kind for kind, _ in sizes(alone)] == ['all_gather', 'all_reduce']
  assert sizes(several) == sizes(alone)
  assert several.branches == alone.branches == ()
  assert several.fixed_bytes == alone.fixed_bytes > 0


def test_multi_steps_is_warned_of_once():
  tx = optax.MultiSteps(gs.dense(axis_name=AXIS), every_k_schedule=2)
  with pytest.warns(UserWarning) as caught:
    for _ in range(2):
      gs.plan(tx, PARAMS, 2)
  (text,) = [str(w.message) for w in caught]
  for said in ('optax.MultiSteps', 'every mini-step', 'gs.accumulate'):
    assert said in text


def test_multi_steps_that_skips_by_gradient_is_refused():
  tx = optax.MultiSteps(
    gs.dense(axis_name=AXIS), 2, should_skip_update_fn=optax.skip_not_finite
  )
  state = gs.workers.stack(tx.init(PARAMS), 2)
  with pytest.raises(ValueError, match='should_skip_update_fn'):
    jax.eval_shape(jax.vmap(tx.update, axis_name=AXIS), gradients(), state)


# --- reading the state ------------------------------------------------------


def test_pending_and_metrics_find_the_scheme_inside_a_chain():
  tx = optax.chain(
    gs.clip_local_norm(100.0, axis_name=AXIS),
    gs.gradient_dropping(0.1, axis_name=AXIS),
    optax.adam(1e-3),
  )
  state, step = simulated(tx)
  grads = gradients()
  updates, state = step(grads, state)
  pending = gs.pending(state)
  chex.assert_trees_all_equal_shapes_and_dtypes(pending, grads)
  chex.assert_trees_all_equal(pending, optax.tree.get(state, 'residual'))
  kept = {name: np.asarray(x != 0) for name, x in pending.items()}
  for name, x in pending.items():
    np.testing.assert_array_equal(x[kept[name]], grads[name][kept[name]])
  assert sum(k.sum() for k in kept.values()) == 2 * (131 - 14)

  metrics = gs.metrics(state)
  flat = np.concatenate([np.reshape(x, (2, -1)) for x in pending.values()], 1)
  norm = np.mean(np.linalg.norm(flat, axis=1))
  assert set(metrics) == {
    'payload_bytes',
    'sent_bytes',
    'sent_elements',
    'overflow_elements',
    'rejected_steps',
    'residual_norm',
  }
  assert metrics['sent_elements'] == 14
  plan = gs.plan(tx, PARAMS, 2)
  assert metrics['payload_bytes'] == plan.payload_bytes
  assert metrics['sent_bytes'] == plan.sent_bytes
  assert metrics['residual_norm'] == pytest.approx(norm, rel=1e-5)
  one = jax.tree.map(lambda x: x[0], state)
  chex.assert_trees_all_equal_shapes_and_dtypes(gs.pending(one), PARAMS)
  alone = np.linalg.norm(flat[0])
  assert gs.metrics(one)['residual_norm'] == pytest.approx(alone, rel=1e-5)


def test_a_scheme_without_memory_owes_zeros():
  tx = optax.chain(gs.qsgd(7, min_size=0, axis_name=None), optax.sgd(0.1))
  state = tx.init(PARAMS)
  chex.assert_trees_all_equal(gs.pending(state), PARAMS)
  _, state = jax.jit(tx.update)(mean_of(gradients()), state)
  chex.assert_trees_all_equal(jax.jit(gs.pending)(state), PARAMS)
  assert gs.metrics(state)['residual_norm'] == 0


@pytest.mark.parametrize('read', [gs.pending, gs.metrics])
def test_more_or_less_than_one_scheme_cannot_be_read(read):
  two = optax.chain(gs.dense(axis_name=None), gs.dgc(0.1, axis_name=None))
  with pytest.raises(ValueError, match='found 2'):
    read(two.init(PARAMS))
  with pytest.raises(ValueError, match='found 0'):
    read(optax.adam(0.1).init(PARAMS))
  read(two.init(PARAMS)[1])


# --- meshes of two axes -----------------------------------------------------


def mesh_of(*names):
  return jax.make_mesh(
    (2, 2), names, axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4]
  )


def test_two_levels_average_in_a_node_and_compress_between_nodes():
  tx = optax.chain(
    gs.dense(axis_name='device'),
    gs.dgc(0.1, min_size=0, axis_name='node'),
    optax.sgd(1.0),
  )
  mesh = mesh_of('node', 'device')
  everybody, node = P(('node', 'device')), P('node')
  state = tx.init(PARAMS)
  specs = (
    jax.tree.map(lambda x: everybody, state[0])._replace(steps=P()),
    jax.tree.map(lambda x: node, state[1])._replace(steps=P()),
    state[2],
  )
  size = {everybody: 4, node: 2}
  state = jax.tree.map(
    lambda x, s: gs.workers.stack(x, size[s]) if s in size else x, state, specs
  )
  is_own = lambda s: s != P()

  def step(state, grads):
    state = jax.tree.map(lambda x, s: x[0] if is_own(s) else x, state, specs)
    grads = jax.tree.map(lambda g: g[0], grads)
    updates, state = tx.update(grads, state)
    return updates, jax.tree.map(
      lambda x, s: x[None] if is_own(s) else x, state, specs
    )

  fn = jax.jit(
    jax.shard_map(
      step,
      mesh=mesh,
      in_specs=(specs, everybody),
      out_specs=(P(), specs),
    )
  )
  flat = optax.chain(gs.dgc(0.1, min_size=0, axis_name=AXIS), optax.sgd(1.0))
  flat_state, flat_step = simulated(flat)
  for t in range(2):
    grads = gradients(4, seed=t)
    in_node = jax.tree.map(
      lambda g: np.mean(np.reshape(g, (2, 2, *g.shape[1:])), axis=1), grads
    )
    updates, state = fn(state, grads)
    expected, flat_state = flat_step(in_node, flat_state)
    chex.assert_trees_all_close(
      updates, jax.tree.map(lambda x: x[0], expected), rtol=1e-5, atol=1e-6
    )
    for copy in jax.tree.leaves(updates)[1].addressable_shards:
      np.testing.assert_array_equal(copy.data, updates['kernel'])


# A kernel whose columns are sharded over another axis, and another one.
SHARDED = {'kernel': jnp.zeros((12, 10)), 'other': jnp.zeros((6, 8))}


def on_shards(tx):
  """(state, step) of 2 workers by 2 shards; all state is sharded likewise."""
  columns = P(None, 'model')
  own = P(AXIS, None, 'model')
  state = tx.init(SHARDED)
  stacked = state._replace(
    memory=gs.workers.stack(state.memory, 2),
    stats=gs.workers.stack(state.stats, 4),
    exchange=gs.workers.stack(state.exchange, 2),
  )
  specs = state._replace(
    steps=P(),
    memory=jax.tree.map(lambda _: own, state.memory),
    stats=jax.tree.map(lambda _: P((AXIS, 'model')), state.stats),
    exchange=jax.tree.map(lambda _: own, state.exchange),
  )

  def step(state, grads):
    def of_own(state, fn):
      names = ('memory', 'stats', 'exchange')
      return state._replace(
        **{name: jax.tree.map(fn, getattr(state, name)) for name in names}
      )

    grads = jax.tree.map(lambda x: x[0], grads)
    updates, state = tx.update(grads, of_own(state, lambda x: x[0]))
    return updates, of_own(state, lambda x: x[None])

  return stacked, jax.shard_map(
    step,
    mesh=mesh_of(AXIS, 'model'),
    in_specs=(specs, own),
    out_specs=(columns, specs),
  )


@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.dgc(0.1, axis_name=AXIS),
    lambda: gs.gradient_dropping(0.1, scope='leaf', axis_name=AXIS),
    lambda: gs.one_bit_sgd(exchange='reduce_scatter', axis_name=AXIS),
  ],
)
def test_a_scheme_by_leaf_works_on_shards_over_another_axis(make):
  state, step = on_shards(make())
  grads = [gradients(seed=t, params=SHARDED) for t in range(2)]
  step = quickly(step, state, grads[0])
  cut = lambda tree, n: jax.tree.map(
    lambda x: np.split(np.asarray(x), 2, axis=-1)[n], tree
  )
  halves = [simulated(make(), params=cut(SHARDED, n)) for n in (0, 1)]
  for g in grads:
    updates, state = step(state, g)
    for n, (half_state, half_step) in enumerate(halves):
      expected, half_state = half_step(cut(g, n), half_state)
      halves[n] = half_state, half_step
      first = jax.tree.map(lambda x: x[0], expected)
      chex.assert_trees_all_equal(cut(updates, n), jax.device_get(first))


@pytest.mark.parametrize(
  'make',
  [
    lambda: gs.gradient_dropping(0.1, axis_name=AXIS),
    lambda: gs.gtopk(0.1, axis_name=AXIS),
    lambda: gs.dgc(0.1, scope='global', axis_name=AXIS),
  ],
)
def test_what_needs_the_whole_tree_refuses_shards(make):
  state, step = on_shards(make())
  with pytest.raises(ValueError, match="'model'.*scope="):
    jax.eval_shape(step, state, gradients(params=SHARDED))


# --- sockets that do not fit -----------------------------------------------


def test_an_exchange_refuses_a_compressor_that_it_cannot_carry():
  top_k = extend.compressors.top_k(0.1, extend.codes.sparse())
  for exchange in (
    extend.exchanges.all_reduce(),
    extend.exchanges.gtopk(),
  ):
    with pytest.raises(ValueError, match='top_k cannot go through'):
      gs.compressed_mean(
        extend.memories.residual(), top_k, exchange, axis_name=None
      )
