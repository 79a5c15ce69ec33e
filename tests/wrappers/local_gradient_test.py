"""Local gradients beside their oracle, and parameters that differ."""

import functools
import itertools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests.oracles import checks
from tests.oracles import gradient_dropping
from tests.oracles import local_gradient as oracle

MODES = ('sum', 'partial', 'error')
AXIS = replay.AXIS


def dropping(density=0.1, **kwargs):
  return gs.gradient_dropping(density, axis_name=AXIS, **kwargs)


def run(tx, steps):
  """Yields (combined[w][leaf], state) of each step, under `simulate`."""
  num_workers = len(steps[0])
  params = [np.zeros(np.shape(g), np.float32) for g in steps[0][0]]
  specs = gs.workers.specs(tx, params, num_workers)
  fn = gs.workers.parallel(
    tx.update,
    runner='simulate',
    num_workers=num_workers,
    in_specs=(replay.OWN, specs),
    out_specs=(replay.OWN, specs),
    check_vma=False,  # they are checked on devices, below
  )
  state = replay.stacked(tx.init(params), specs, num_workers)
  fn = fn.lower(replay.stack(steps[0]), state).compile(replay.QUICKLY)
  for grads in steps:
    out, state = fn(replay.stack(grads), state)
    yield replay.unstack(out), state


@pytest.mark.parametrize(
  'mode, num_workers, min_size',
  marks.few(
    itertools.product(MODES, (1, 2, 3, 5, 8), (0, 12)),
    ('error', 3, 12),
  ),
)
def test_modes_combine_as_the_oracle_does(mode, num_workers, min_size):
  """With min_size 12 the vector and the scalar stay dense."""
  tx = gs.local_gradient(dropping(min_size=min_size), mode)
  inner = gradient_dropping.GradientDropping(
    0.1, dense=(1, 2) if min_size else ()
  )
  expected = oracle.LocalGradient(inner, mode)
  steps = [g for g, _ in replay.drawn_steps(num_workers)]
  for grads, (combined, state) in zip(steps, run(tx, steps), strict=True):
    wanted = expected.step(grads)
    pending = replay.unstack(gs.pending(state))
    for w in range(num_workers):
      for leaf in range(len(wanted[w])):
        checks.close(combined[w][leaf], wanted[w][leaf])
        checks.close(pending[w][leaf], expected.pending[w][leaf])
    assert num_workers == 1 or np.any(combined[0][0] != combined[1][0])


@pytest.mark.slow
@pytest.mark.parametrize('mode', ['partial', 'error'])
def test_workers_apply_all_that_was_sent_and_a_share_of_what_was_not(mode):
  """From an empty residual: E = L - S."""
  steps = [g for g, _ in replay.drawn_steps(3, count=1)]
  ((combined, _),) = run(gs.local_gradient(dropping(), mode), steps)
  for leaf, total in enumerate(replay.stack(steps[0])):
    sent = _sent(steps[0], leaf)
    mean = np.mean([c[leaf] for c in combined], axis=0)
    expected = sent + (total.mean(axis=0) - sent) / 3
    checks.close(mean, expected)


def _sent(grads, leaf):
  inner = gradient_dropping.GradientDropping(0.1)
  return inner.step(grads)[leaf]


def test_error_mode_keeps_what_a_rejected_step_could_not_take():
  tx = gs.local_gradient(dropping(), 'error')
  (good, _), (bad, _) = replay.drawn_steps(3, count=2)
  bad[1][3][0, 0] = np.nan
  states = [s for _, s in run(tx, [good, bad, good])]
  assert not any(np.any(x) for x in jax.tree.leaves(gs.pending(states[0])))
  owed = replay.unstack(gs.pending(states[1]))
  for leaf in range(4):
    np.testing.assert_array_equal(owed[0][leaf], bad[0][leaf])
    np.testing.assert_array_equal(owed[1][leaf], 0)
  assert not any(np.any(x) for x in jax.tree.leaves(gs.pending(states[2])))


@pytest.mark.slow
def test_error_mode_takes_dgcs_velocity_and_leaves_its_momentum():
  inner = gs.dgc(0.1, factor_masking=False, min_size=0, axis_name=AXIS)
  steps = [g for g, _ in replay.drawn_steps(3, count=1)]
  ((_, state),) = run(gs.local_gradient(inner, 'error'), steps)
  assert not any(np.any(x) for x in jax.tree.leaves(gs.pending(state)))
  momentum = state.inner.memory.momentum
  for own, g in zip(momentum, replay.stack(steps[0]), strict=True):
    checks.close(own, g)


def test_what_cannot_be_wrapped_is_an_error():
  with pytest.raises(TypeError, match='inner must be a gradsparse.*got Grad'):
    gs.local_gradient(optax.chain(dropping(), optax.sgd(0.1)))
  with pytest.raises(TypeError, match='inner must be a gradsparse scheme'):
    gs.local_gradient(optax.sgd(0.1))
  with pytest.raises(ValueError, match='mode must be one of'):
    gs.local_gradient(dropping(), 'mean')
  for mode in ('sum', 'partial', 'error'):
    with pytest.raises(ValueError, match='ef21 sends corrections'):
      gs.local_gradient(gs.ef21(0.1, axis_name=AXIS), mode)
  with pytest.raises(ValueError, match='qsgd keeps none'):
    gs.local_gradient(gs.qsgd(7, axis_name=AXIS, min_size=0), 'error')
  gs.local_gradient(gs.qsgd(7, axis_name=AXIS, min_size=0), 'partial')


def test_the_parameters_spec_tells_whether_they_differ():
  params = {'w': jnp.zeros(20)}
  local = optax.chain(gs.local_gradient(dropping()), optax.adam(0.1))
  shared = optax.chain(dropping(), optax.adam(0.1))
  assert gs.workers.params_spec(local, params) == P(AXIS)
  assert gs.workers.params_spec(shared, params) == P()
  moments = gs.workers.specs(local, params, 4)[1][0]
  assert moments.mu == {'w': P(AXIS)}
  assert gs.workers.specs(shared, params, 4)[1][0].mu == {'w': P()}


# --- periodic averages ------------------------------------------------------

WORKERS, EVERY, STEPS = 4, 3, 7
PARAMS = {'w': np.float32(np.linspace(-1, 1, 30)), 'b': np.float32([0.3, 0.1])}


@functools.cache
def trained(runner):
  """(params, state, and both before the average) of each step, as NumPy."""
  tx = optax.chain(gs.local_gradient(dropping(0.1), 'partial'), optax.adam(0.1))
  targets = replay.draw(WORKERS, seed=9, shapes=((30,), (2,)))
  targets = dict(zip(('w', 'b'), replay.stack(targets), strict=True))

  def step(params, state, target, number):
    grads = jax.grad(
      lambda p: sum(jnp.sum((p[k] - target[k]) ** 2) for k in p)
    )(params)
    updates, state = tx.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    before = params, state
    after = gs.periodic_average(
      params, state, number, every=EVERY, axis_name=AXIS
    )
    return *after, before

  own = gs.workers.params_spec(tx, PARAMS)
  specs = gs.workers.specs(tx, PARAMS, WORKERS)
  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=WORKERS,
    in_specs=(own, specs, own, P()),
    out_specs=(own, specs, (own, specs)),
    check_vma=runner == 'shard_map',
  )
  params = gs.workers.stack(PARAMS, WORKERS)
  state = replay.stacked(tx.init(PARAMS), specs, WORKERS)
  out = []
  for number in range(1, STEPS + 1):
    params, state, before = fn(params, state, targets, np.int32(number))
    out.append(jax.tree.map(np.asarray, (params, state, *before)))
  return out


def equal(tree):
  """Whether every leaf is the same on all workers."""
  return all(np.all(x == x[:1]) for x in jax.tree.leaves(tree))


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_parameters_differ_until_they_are_averaged(runner):
  for number, (params, _, before, _) in enumerate(trained(runner), start=1):
    assert not equal(before)
    if number % EVERY:
      jax.tree.map(np.testing.assert_array_equal, params, before)
    else:
      assert equal(params)
      jax.tree.map(
        lambda x, y: np.testing.assert_allclose(
          x[0], y.mean(axis=0), rtol=1e-5, atol=1e-6
        ),
        params,
        before,
      )


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_adams_moments_are_averaged_and_a_schemes_memory_never(runner):
  for number, (_, state, _, before) in enumerate(trained(runner), start=1):
    (local, (adam, _)), (old_local, (old_adam, _)) = state, before
    jax.tree.map(np.testing.assert_array_equal, local, old_local)
    assert not equal(gs.pending(state))
    assert np.all(adam.count == number)
    moments, old = (adam.mu, adam.nu), (old_adam.mu, old_adam.nu)
    assert equal(moments) == (number % EVERY == 0)
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(
        x.mean(axis=0), y.mean(axis=0), rtol=1e-5, atol=1e-7
      ),
      moments,
      old,
    )


@pytest.mark.slow
@pytest.mark.parametrize('runner', ['pmap', 'shard_map'])
def test_runners_agree(runner):
  for own, other in zip(trained(runner), trained('simulate'), strict=True):
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5),
      own,
      other,
    )


def test_one_worker_has_nothing_to_average_and_every_is_checked():
  tx = gs.local_gradient(gs.gradient_dropping(0.1, axis_name=None))
  state = tx.init(PARAMS)
  params, after = gs.periodic_average(PARAMS, state, 500, axis_name=None)
  jax.tree.map(np.testing.assert_array_equal, (params, after), (PARAMS, state))
  with pytest.raises(ValueError, match='every must be at least 1'):
    gs.periodic_average(PARAMS, state, 1, every=0, axis_name=None)


def test_shared_parameters_need_no_average():
  """Without local gradients, shard_map's types say so: nothing is sent."""
  tx = optax.chain(dropping(), optax.adam(0.1))
  specs = gs.workers.specs(tx, PARAMS, 2)

  def step(params, state):
    return gs.periodic_average(params, state, 500, axis_name=AXIS)

  fn = gs.workers.parallel(
    step,
    runner='shard_map',
    num_workers=2,
    in_specs=(P(), specs),
    out_specs=(P(), specs),
  )
  state = gs.workers.init(tx, PARAMS, 2)
  compiled = fn.lower(PARAMS, state).compile()
  audit = gs.audit(compiled)
  assert audit.sent_bytes == 0


@pytest.mark.slow
def test_an_error_that_is_taken_takes_its_variance_along():
  """Otherwise v grows, r does not, and nothing is sent any more."""
  scheme = gs.variance_based(
    1.0, values='float32', ladder=(1.0,), axis_name=None
  )
  tx = gs.local_gradient(scheme, 'error')
  rng = np.random.default_rng(0)
  params = {'w': jnp.zeros(1000)}
  state = tx.init(params)
  update = jax.jit(lambda g, s, m: tx.update(g, s, second_moment=m))
  sent = []
  for _ in range(30):
    each = np.float32(rng.normal(0.5, 1, (8, 1000)))
    _, state = update({'w': each.mean(0)}, state, {'w': (each**2).sum(0) / 64})
    sent.append(int(gs.metrics(state)['sent_elements']))
    assert not np.any(state.inner.memory.variance['w'])
  assert min(sent) > 500
