"""EF21 beside its NumPy oracle: estimates, their mean, and what is left."""

from __future__ import annotations

import gradsparse as gs
from hypothesis import Phase
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests import replay
from tests.between_sites.oracles import ef21_sgdm
from tests.oracles import checks
from tests.oracles import ef21
from tests.oracles import leaves

# Dense by the rule of all leaf-wise schemes: fewer than two dimensions.
DENSE = tuple(i for i, s in enumerate(replay.SHAPES) if len(s) < 2)
ALL = dict(axis_name=replay.AXIS, min_size=0)
CHUNK = dict(scope='chunk', chunk_size=32)


def drawn(num_workers, shapes=replay.SHAPES, count=replay.STEPS):
  return [replay.draw(num_workers, seed=t, shapes=shapes) for t in range(count)]


def play(tx, steps):
  return replay.replay(tx, [(g, g) for g in steps])


def field(step, name):
  """name[w][leaf] of the state after a step."""
  return replay.unstack(optax.tree.get(step.state, name))


def mean_of(step):
  """mean[leaf] of the state: one for all workers."""
  return [np.asarray(x) for x in optax.tree.get(step.state, 'mean')]


def compared(tx, oracle, steps):
  """The steps of a scheme, each found to be the oracle's."""
  for step in play(tx, steps):
    estimate, mean = field(step, 'estimate'), mean_of(step)
    for leaf, expected in enumerate(oracle.step(step.grads)):
      checks.close(step.mean[leaf], expected)
      for w in range(len(step.grads)):
        checks.close(step.pending[w][leaf], oracle.pending[w][leaf])
      if leaf in oracle.dense:
        continue  # what the state holds for them is nobody's business
      checks.close(mean[leaf], expected)
      for w in range(len(step.grads)):
        checks.close(estimate[w][leaf], oracle.estimate[w][leaf])
    yield step


def compare(tx, oracle, steps):
  assert len(list(compared(tx, oracle, steps))) == len(steps)


@pytest.mark.parametrize(
  'num_workers',
  [3, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 5, 8))],
)
@pytest.mark.parametrize(
  'scope, min_size',
  # Global scope takes vectors and scalars by its own rule.
  [
    pytest.param({}, 0, id='leaf'),
    pytest.param(
      dict(scope='global'), None, id='global', marks=pytest.mark.slow
    ),
    pytest.param(CHUNK, 0, id='chunk', marks=pytest.mark.slow),
  ],
)
def test_it_does_what_its_oracle_does(scope, min_size, num_workers):
  tx = gs.ef21(0.1, axis_name=replay.AXIS, min_size=min_size, **scope)
  compare(tx, ef21.EF21(0.1, **scope), drawn(num_workers))


@pytest.mark.parametrize(
  'num_workers, options',
  [
    (3, dict(dense=DENSE)),
    *(
      pytest.param(p, options, marks=pytest.mark.slow)
      for p in (1, 2, 8)
      for options in ({}, CHUNK)
    ),
  ],
)
def test_with_momentum_it_is_ef21_sgdm(num_workers, options):
  oracle = ef21_sgdm.EF21SGDM(0.1, momentum=0.25, first='zero', **options)
  ours = {k: v for k, v in options.items() if k != 'dense'}
  ours = dict(axis_name=replay.AXIS, **ours)
  if 'dense' not in options:
    ours['min_size'] = 0
  compare(gs.ef21(0.1, momentum=0.25, **ours), oracle, drawn(num_workers))


@pytest.mark.slow
@pytest.mark.parametrize('scope', [{}, CHUNK], ids=['leaf', 'chunk'])
def test_dense_leaves_return_the_plain_mean_and_owe_nothing(scope):
  tx = gs.ef21(0.1, axis_name=replay.AXIS, **scope)
  oracle = ef21.EF21(0.1, dense=DENSE, **scope)
  for step in compared(tx, oracle, drawn(2)):
    exact = leaves.worker_mean(step.grads)
    for leaf in DENSE:
      checks.close(step.mean[leaf], exact[leaf])
      assert not any(np.any(tree[leaf]) for tree in step.pending)


@pytest.mark.slow
def test_a_thick_message_changes_the_transport_only():
  """Four workers at 0.7 use a dense all-reduce; the estimates stay."""
  tx = gs.ef21(0.7, **ALL)
  compare(tx, ef21.EF21(0.7), drawn(4))
  params = [np.zeros(s, np.float32) for s in replay.SHAPES]
  plan = gs.plan(tx, params, 4)
  assert plan.payload_bytes == plan.dense_bytes


# A program an example: small as they are, they are not shrunk.
@pytest.mark.slow
@settings(max_examples=4, phases=(Phase.generate,))
@given(
  st.integers(1, 8),
  st.sampled_from(['leaf', 'global', 'chunk']),
  st.integers(1, 70),
  st.sampled_from([0.001, 0.05, 0.25, 0.6, 1.0]),
  st.lists(
    st.sampled_from([(), (1,), (7,), (40,), (5, 8), (3, 2, 11), (64, 3)]),
    min_size=1,
    max_size=3,
  ),
  st.integers(0, 99),
)
def test_any_shapes_with_ties(
  num_workers, scope, chunk_size, density, shapes, seed
):
  """Small whole numbers: differences are exact, and many are tied."""
  rng = np.random.default_rng(seed)
  steps = [
    [
      [rng.integers(-3, 4, s).astype(np.float32) for s in shapes]
      for _ in range(num_workers)
    ]
    for _ in range(3)
  ]
  options = dict(scope=scope, chunk_size=chunk_size)
  tx = gs.ef21(density, **options, **ALL)
  compare(tx, ef21.EF21(density, **options), steps)


# --- its law -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
  'values',
  ['float32', 'exponent4', 'bfloat16', 'table4'],
)
def test_what_is_returned_is_the_mean_of_the_estimates(values):
  """And what is pending is the gradient less the estimate, however rounded."""
  tx = gs.ef21(0.2, values=values, **ALL)
  for step in play(tx, drawn(3, count=6)):
    estimate = field(step, 'estimate')
    means = leaves.worker_mean(estimate)
    for leaf, mean in enumerate(step.mean):
      checks.close(mean, means[leaf])
      np.testing.assert_array_equal(mean, mean_of(step)[leaf])
      for w in range(3):
        left = step.grads[w][leaf] - estimate[w][leaf]
        checks.close(step.pending[w][leaf], left)
    residual = field(step, 'residual')
    jax.tree.map(np.testing.assert_array_equal, residual, step.pending)


@pytest.mark.slow
def test_rounding_is_part_of_the_message():
  """An estimate holds what was sent, and the rest stays pending."""
  tx = gs.ef21(0.2, values='exponent4', **ALL)
  (step,) = play(tx, drawn(2, count=1))
  for tree in field(step, 'estimate'):
    for sent in tree:
      powers = np.log2(np.abs(sent[sent != 0]))
      np.testing.assert_array_equal(powers % 1, 0)
  assert any(np.any(x) for tree in field(step, 'estimate') for x in tree)


@pytest.mark.slow
def test_estimates_reach_a_constant_gradient():
  """A quarter of each leaf a step: four steps, and then nothing is left."""
  tx = gs.ef21(0.25, **ALL)
  grads = replay.draw(3, seed=0)
  norms = []
  for step in play(tx, [grads] * 5):
    norms.append(step.metrics['residual_norm'])
  assert norms[0] > norms[1] > norms[2] > norms[3]
  assert norms[3:] == [0, 0]
  for leaf, exact in enumerate(leaves.worker_mean(grads)):
    checks.close(step.mean[leaf], exact)
    for w in range(3):
      np.testing.assert_array_equal(
        field(step, 'estimate')[w][leaf], grads[w][leaf]
      )


@pytest.mark.slow
def test_density_one_returns_the_exact_mean():
  for step in play(gs.ef21(1.0, **ALL), drawn(2)):
    for leaf, exact in enumerate(leaves.worker_mean(step.grads)):
      checks.close(step.mean[leaf], exact)


def test_alone_and_inside_a_chain():
  """Without communication the update is the estimate: paper's numbers."""
  tx = optax.chain(gs.ef21(0.5, axis_name=None, min_size=0), optax.scale(-1.0))
  state = tx.init(np.zeros(2, np.float32))
  update = jax.jit(tx.update)
  for gradient, estimate in (
    ([3, 1], [3, 0]),
    ([3, -1], [3, -1]),
    ([0, 0], [0, -1]),
    ([0, 0], [0, 0]),
  ):
    grads = np.float32(gradient)
    updates, state = update(grads, state)
    np.testing.assert_array_equal(-updates, estimate)
    np.testing.assert_array_equal(optax.tree.get(state, 'estimate'), estimate)
    np.testing.assert_array_equal(gs.pending(state), grads - estimate)


# --- its state ---------------------------------------------------------------


def test_estimates_are_worker_local_and_their_mean_is_not():
  params = [np.zeros(s, np.float32) for s in replay.SHAPES]
  tx = gs.ef21(0.1, **ALL)
  specs = gs.workers.specs(tx, params, 3)
  is_spec = lambda x: isinstance(x, P)
  for name, spec in (
    ('estimate', P(replay.AXIS)),
    ('residual', P(replay.AXIS)),
    ('mean', P()),
  ):
    found = jax.tree.leaves(optax.tree.get(specs, name), is_leaf=is_spec)
    assert found == [spec] * len(params), name
  state = gs.workers.init(tx, params, 3)
  for name, axes in (('estimate', (3,)), ('residual', (3,)), ('mean', ())):
    for x, shape in zip(
      optax.tree.get(state, name), replay.SHAPES, strict=True
    ):
      assert x.shape == (*axes, *shape)
      assert not np.any(x)  # all start at zero


@pytest.fixture(scope='module')
def around_a_rejected_step():
  """Three steps; in the second, worker 1 has a NaN."""
  steps = drawn(3, count=3)
  steps[1][1][0].flat[5] = np.nan
  return list(play(gs.ef21(0.1, **CHUNK, **ALL), steps))


def assert_unmoved(name, before, after):
  old, new = (optax.tree.get(step.state, name) for step in (before, after))
  jax.tree.map(np.testing.assert_array_equal, old, new)


def test_a_rejected_step_moves_no_estimate(around_a_rejected_step):
  """The next step goes on from before it."""
  first, rejected, last = around_a_rejected_step
  assert all(np.all(np.isnan(x)) for x in rejected.mean)
  assert not any(np.any(x) for tree in rejected.delivered for x in tree)
  assert rejected.metrics['rejected_steps'] == 1
  assert_unmoved('estimate', first, rejected)
  assert_unmoved('mean', first, rejected)
  oracle = ef21.EF21(0.1, **CHUNK)
  oracle.step(first.grads)
  for leaf, expected in enumerate(oracle.step(last.grads)):
    checks.close(last.mean[leaf], expected)
    for w in range(3):
      checks.close(last.pending[w][leaf], oracle.pending[w][leaf])


def test_who_could_take_a_rejected_step_in_owes_it(around_a_rejected_step):
  """As with every memory: a healthy worker has compared its gradient."""
  first, rejected, _ = around_a_rejected_step
  before = optax.tree.get(first.state, 'estimate')
  residual = optax.tree.get(rejected.state, 'residual')
  old = optax.tree.get(first.state, 'residual')
  for leaf, (new, kept, believed) in enumerate(
    zip(residual, old, before, strict=True)
  ):
    for w, grads in enumerate(rejected.grads):
      healthy = all(np.all(np.isfinite(g)) for g in grads)
      expected = grads[leaf] - believed[w] if healthy else kept[w]
      checks.close(new[w], expected)


# --- what it sends -----------------------------------------------------------


@pytest.mark.parametrize(
  'scope', marks.few(['leaf', 'global', 'chunk'], 'leaf')
)
def test_it_sends_what_gradient_dropping_does(scope):
  """The same selection in the same message; only the memory differs."""
  params = {'bias': jnp.zeros(300), 'kernel': jnp.zeros((90, 100))}
  options = dict(scope=scope, chunk_size=1000, axis_name=replay.AXIS)
  plans = [
    gs.plan(recipe(0.01, **options), params, 3)
    for recipe in (gs.ef21, gs.gradient_dropping)
  ]
  assert plans[0].payload_bytes == plans[1].payload_bytes
  assert plans[0].sent_bytes == plans[1].sent_bytes
