"""1-bit Adam beside its oracle in NumPy, and what a restart keeps."""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests import replay
from tests.between_sites.oracles import one_bit_adam as oracles
from tests.replay import AXIS
from tests.replay import OWN

FREEZE, STEPS, BUCKET = 3, 8, 32
# 252 numbers in four leaves; the last bucket has 28.
SIZE = sum(int(np.prod(shape)) for shape in replay.SHAPES)
PARAMS = [np.full(s, 0.5, np.float32) for s in replay.SHAPES]


def make(axis_name=AXIS, **changes):
  options = dict(
    freeze_step=FREEZE, bucket_size=BUCKET, weight_decay=0.01, min_size=0
  )
  return gs.one_bit_adam(0.1, axis_name=axis_name, **(options | changes))


@functools.cache
def program(num_workers, runner='simulate', **changes):
  tx = make(**changes)
  specs = gs.workers.specs(tx, PARAMS, num_workers)

  def step(grads, state):
    return tx.update(grads, state, PARAMS)

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=(OWN, specs),
    out_specs=(gs.workers.params_spec(tx, PARAMS), specs),
  )
  state = replay.stacked(tx.init(PARAMS), specs, num_workers)
  return fn, state


def drawn(num_workers, count=STEPS):
  return [replay.draw(num_workers, seed=t) for t in range(count)]


def joined(tree):
  return np.concatenate([np.ravel(x) for x in tree])


def buckets(tree, lengths):
  """The concatenated leaves as the oracle's: a leaf for each bucket."""
  return np.split(joined(tree), np.cumsum(lengths)[:-1])


def lengths_of(num_workers):
  """Of the buckets: a part has whole ones, and all but the last are full."""
  full, rest = divmod(SIZE, BUCKET)
  return [BUCKET] * full + [rest] * bool(rest)


@pytest.mark.parametrize(
  'num_workers',
  [3, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 5, 8))],
)
def test_it_does_what_its_oracle_does(num_workers):
  oracle = oracles.OneBitAdam(
    0.1, freeze_step=FREEZE, weight_decay=0.01, num_servers=1
  )
  fn, state = program(num_workers)
  lengths = lengths_of(num_workers)
  cut = functools.partial(buckets, lengths=lengths)
  for grads in drawn(num_workers):
    expected = oracle.step([cut(tree) for tree in grads], cut(PARAMS))
    update, state = fn(replay.stack(grads), state)
    np.testing.assert_allclose(
      joined(update), np.concatenate(expected), rtol=2e-4, atol=1e-6
    )
    for ours, theirs in ((state.mu, oracle.m), (state.nu, oracle.v)):
      np.testing.assert_allclose(
        joined(ours), np.concatenate(theirs), rtol=1e-4, atol=1e-6
      )
    errors = replay.unstack(state.scheme.memory.pending())
    for tree, theirs in zip(errors, oracle.worker_error, strict=True):
      np.testing.assert_allclose(
        joined(tree), np.concatenate(theirs), atol=1e-5
      )
    # Each worker has the error of its own part, in units of a worker's.
    server = np.sum(
      [joined(x) for x in replay.unstack(state.scheme.exchange)], 0
    )
    np.testing.assert_allclose(
      server / num_workers, np.concatenate(oracle.server_error), atol=1e-5
    )


def test_a_leaf_that_stays_dense_is_adam():
  tx = make(None, dense_paths=r'\[0\]', weight_decay=0.0)
  adam = optax.adam(0.1)
  ours, theirs = tx.init(PARAMS), adam.init(PARAMS)
  step = jax.jit(tx.update)
  for grads in drawn(1, 5):
    update, ours = step(grads[0], ours, PARAMS)
    expected, theirs = adam.update(grads[0], theirs)
    np.testing.assert_allclose(update[0], expected[0], rtol=1e-4, atol=1e-6)


def test_half_precision_keeps_its_dtype():
  params = {'w': jnp.ones(64, jnp.bfloat16)}
  tx = gs.one_bit_adam(0.1, freeze_step=1, axis_name=None)
  state = tx.init(params)
  for _ in range(2):
    update, state = tx.update(params, state, params)
    assert update['w'].dtype == jnp.bfloat16
    assert state.mu['w'].dtype == jnp.float32
    assert np.allclose(np.float32(update['w']), -0.1, rtol=0.02)


@pytest.mark.slow
def test_types_hold_on_a_mesh_with_the_same_bits():
  outs = []
  for runner in ('simulate', 'shard_map'):
    fn, state = program(2, runner)
    for grads in drawn(2, FREEZE + 2):
      update, state = fn(replay.stack(grads), state)
    outs.append(jax.tree.map(np.asarray, (update, state.mu, state.nu)))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), *outs
  )


@pytest.mark.parametrize('when', [1, FREEZE + 1])
def test_a_gradient_that_is_not_finite_changes_no_moment_and_no_error(when):
  fn, state = program(3)
  for t, grads in enumerate(drawn(3, FREEZE + 3)):
    before = state
    if t == when:
      grads[1][0].flat[0] = np.nan
    update, state = fn(replay.stack(grads), state)
    assert np.isnan(joined(update)).all() == (t == when)
    assert np.isfinite(joined(jax.tree.leaves((state.mu, state.nu)))).all()
    if t == when:
      jax.tree.map(
        np.testing.assert_array_equal,
        (state.step, state.mu, state.nu, gs.pending(state)),
        (before.step, before.mu, before.nu, gs.pending(before)),
      )
  assert gs.metrics(state)['rejected_steps'] == 1


def test_the_plan_has_both_phases_and_metrics_agree():
  fn, state = program(3)
  plan = gs.plan(make(), PARAMS, 3)
  first, last = plan.stages
  assert (first.first_step, last.first_step) == (0, FREEZE)
  assert first.payload_bytes == 4 * SIZE
  assert last.payload_bytes == plan.payload_bytes < SIZE
  assert gs.plan(make(), PARAMS, 3, step=0).payload_bytes == 4 * SIZE
  for t, grads in enumerate(drawn(3, FREEZE + 1)):
    _, state = fn(replay.stack(grads), state)
    stage = last if t >= FREEZE else first
    found = gs.metrics(state)
    assert found['payload_bytes'] == stage.payload_bytes, t
    assert found['sent_bytes'] == stage.sent_bytes, t


@pytest.mark.slow
def test_a_schedule_sets_the_learning_rate():
  tx = gs.one_bit_adam(
    lambda count: 0.1 * (count + 1), freeze_step=1, axis_name=None
  )
  once = gs.one_bit_adam(0.1, freeze_step=1, axis_name=None)
  params = {'w': jnp.ones(4)}
  states = [x.init(params) for x in (tx, once)]
  for factor in (1, 2):
    updates, states = zip(
      *(x.update(params, s) for x, s in zip((tx, once), states, strict=True)),
      strict=True,
    )
    np.testing.assert_allclose(
      updates[0]['w'], factor * updates[1]['w'], rtol=1e-6
    )


@pytest.mark.parametrize(
  'changes, words',
  [
    (dict(freeze_step=0), 'freeze_step'),
    (dict(b1=1.0), 'b1'),
    (dict(b2=-0.1), 'b2'),
    (dict(eps=0), 'eps'),
    (dict(weight_decay=-1), 'weight_decay'),
    (dict(bucket_size=0), 'bucket_size'),
  ],
)
def test_it_refuses(changes, words):
  with pytest.raises(ValueError, match=words):
    make(**changes)


def test_weight_decay_needs_parameters():
  tx = make(None)
  with pytest.raises(ValueError, match='params must be given'):
    tx.update(PARAMS, tx.init(PARAMS))


def test_of_no_parameters_there_is_no_update():
  tx = gs.one_bit_adam(0.1, freeze_step=3, axis_name=None)
  assert tx.update({}, tx.init({}), {})[0] == {}
