"""Outer steps: what workers exchange, when, and what they go on from."""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import marks
from tests.between_sites.oracles import outer as oracles
from tests.wrappers.outer_runs import AXIS
from tests.wrappers.outer_runs import NESTEROV
from tests.wrappers.outer_runs import PARAMS
from tests.wrappers.outer_runs import SCHEMES
from tests.wrappers.outer_runs import WORKERS
from tests.wrappers.outer_runs import are_equal
from tests.wrappers.outer_runs import every_two
from tests.wrappers.outer_runs import moves
from tests.wrappers.outer_runs import run


def test_it_is_diloco():
  """The algorithm in NumPy: arXiv 2311.08105, algorithm 1."""
  every, each = 3, moves(9)
  anchor = {name: x.copy() for name, x in PARAMS.items()}
  momentum = {name: np.zeros_like(x) for name, x in PARAMS.items()}
  own = {name: np.repeat(x[None], WORKERS, 0) for name, x in PARAMS.items()}
  tx = gs.diloco(axis_name=AXIS, sync_every=every)
  for t, ((params, state), move) in enumerate(
    zip(run(tx, each), each, strict=True), 1
  ):
    for name in PARAMS:
      own[name] = own[name] + move[name]
      if t % every == 0:
        mean = np.mean(anchor[name] - own[name], axis=0)
        momentum[name] = 0.9 * momentum[name] + mean
        anchor[name] = anchor[name] - 0.7 * (mean + 0.9 * momentum[name])
        own[name] = np.repeat(anchor[name][None], WORKERS, 0)
      np.testing.assert_allclose(params[name], own[name], atol=2e-6)
      np.testing.assert_allclose(state.anchor[name], anchor[name], atol=2e-6)
    assert are_equal(params) == (t % every == 0)


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEMES)
def test_workers_are_equal_after_an_exchange(name):
  tx = every_two(name)
  for t, (params, state) in enumerate(run(tx, moves(4)), 1):
    assert are_equal(params) == (t % 2 == 0)
    sent = gs.metrics(state)['sent_bytes']
    assert sent == (
      gs.plan(tx, PARAMS, WORKERS).sent_bytes if t % 2 == 0 else 0
    )


def leaves_of(*numbers):
  """A regular expression for the paths of some leaves."""
  names = list(PARAMS)
  return '|'.join(rf"\['{names[n]}'\]" for n in numbers)


@pytest.mark.parametrize(
  'fragments, numbers',
  [
    pytest.param(2, [[1, 2, 3], [0]], id='sequential', marks=pytest.mark.slow),
    pytest.param([leaves_of(0, 2), ''], [[1, 3], [0, 2]], id='strided'),
  ],
)
@pytest.mark.parametrize(
  'delay, alpha', marks.few([(0, 0.0), (0, 0.25), (1, 0.5)], (1, 0.5))
)
def test_fragments_are_exchanged_in_the_schedule_of_maxtext(
  delay, alpha, fragments, numbers
):
  every, each = 4, moves(9)
  tx = gs.outer(
    SCHEMES['dense'],
    NESTEROV,
    sync_every=every,
    fragments=fragments,
    delay=delay,
    alpha=alpha,
  )
  names = list(PARAMS)
  # Its fragment 1 is exchanged first.
  oracle = oracles.MaxText(
    list(PARAMS.values()),
    sync_every=every,
    delay=delay,
    alpha=alpha,
    learning_rate=0.7,
    momentum=0.9,
    fragments=numbers,
  )
  own = [[x.copy() for x in PARAMS.values()] for _ in range(WORKERS)]
  for (params, state), move in zip(run(tx, each), each, strict=True):
    own = oracle.step(
      [
        [x + move[name][w] for name, x in zip(names, tree, strict=True)]
        for w, tree in enumerate(own)
      ]
    )
    for leaf, name in enumerate(names):
      np.testing.assert_allclose(
        params[name], [tree[leaf] for tree in own], atol=2e-6
      )
      np.testing.assert_allclose(
        state.anchor[name], oracle.anchor[leaf], atol=2e-6
      )


@pytest.mark.parametrize('alpha', [0.0, 0.5])
@pytest.mark.parametrize('fragments', marks.few([1, 2], 1))
@pytest.mark.parametrize(
  'name', marks.few(['dropping', 'power_sgd'], 'dropping')
)
def test_what_is_not_sent_stays_in_the_memory(name, fragments, alpha):
  """All that workers moved is in the anchor, or pending."""
  each = moves(8)
  tx = gs.outer(
    SCHEMES[name],
    optax.sgd(1.0),
    sync_every=4,
    fragments=fragments,
    alpha=alpha,
  )
  params, state = run(tx, each)[-1]
  assert are_equal(params) == (fragments == 1 and not alpha)
  _is_conserved(params, state, each)


@pytest.mark.parametrize('steps', marks.few([4, 5], 5))
def test_a_worker_keeps_a_part_of_what_it_sent(steps):
  """Steps after the exchange count in full until the anchor is taken over."""
  tx = gs.outer(
    SCHEMES['dropping'], optax.sgd(1.0), sync_every=4, delay=2, alpha=0.5
  )
  each = moves(6)
  *before, (params, state) = run(tx, each)
  _is_conserved(*before[steps - 1], each[:steps])
  late = [
    {name: 0.5 * x for name, x in move.items()} if n >= 4 else move
    for n, move in enumerate(each)
  ]
  _is_conserved(params, state, late)


def _is_conserved(params, state, each):
  """With the rate 1 the anchor moves by the mean of what was sent."""
  owed = gs.pending(state)
  # A fragment that was exchanged earlier has moved on since.
  for leaf, start in PARAMS.items():
    moved = start + sum(np.mean(move[leaf], 0) for move in each)
    ahead = np.mean(params[leaf] - state.anchor[leaf], 0)
    found = state.anchor[leaf] + ahead - np.mean(owed[leaf], 0)
    np.testing.assert_allclose(found, moved, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['dropping', pytest.param('qsgd', marks=pytest.mark.slow)]
)
def test_devices_do_what_is_simulated(name):
  tx = gs.outer(SCHEMES[name], NESTEROV, sync_every=2, fragments=2)
  pairs = zip(run(tx, moves(4)), run(tx, moves(4), 'shard_map'), strict=True)
  for simulated, sharded in pairs:
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
      simulated,
      sharded,
    )


def test_a_rejected_exchange_goes_back_to_the_anchor():
  tx = every_two('dropping')
  each = moves(6)
  each[3]['c'][2] = np.nan
  (_, before), (params, after), *rest = run(tx, each)[1:]
  (params, after), final = rest[0], rest[-1]
  assert after.scheme.stats.rejected_steps.tolist() == [1] * WORKERS
  jax.tree.map(np.testing.assert_array_equal, after.anchor, before.anchor)
  jax.tree.map(np.testing.assert_array_equal, after.outer, before.outer)
  for name, x in after.anchor.items():
    np.testing.assert_array_equal(params[name], np.repeat(x[None], WORKERS, 0))
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(final))


@pytest.mark.parametrize('delay', marks.few([0, 1], 1))
def test_a_worker_that_is_not_finite_takes_the_anchor_whatever_alpha(delay):
  tx = gs.outer(
    gs.dense(axis_name=None),
    optax.sgd(1.0),
    sync_every=2,
    delay=delay,
    alpha=0.5,
  )
  params = {'w': jnp.float32([np.nan, 2.0, np.inf])}
  state = tx.init({'w': jnp.ones(3)})
  for _ in range(2 + delay):
    params, state = tx.sync(params, state)
  assert params['w'].tolist() == [1.0, 1.5, 1.0]
  assert state.anchor['w'].tolist() == [1.0, 1.0, 1.0]


def test_half_precision_is_no_progress():
  """What bfloat16 cannot hold of the anchor is not taken for a move."""
  tx = gs.outer(gs.dense(axis_name=None), optax.sgd(1.0), sync_every=1)
  params = {'w': jnp.float32([1.0, 1.003]).astype(jnp.bfloat16)}
  state = tx.init(params)
  state = state._replace(anchor={'w': jnp.float32([1.0, 1.004])})
  params = {'w': state.anchor['w'].astype(jnp.bfloat16)}
  new, state = tx.sync(params, state)
  assert state.anchor['w'].tolist() == jnp.float32([1.0, 1.004]).tolist()
  assert new['w'].dtype == jnp.bfloat16


def test_a_plan_has_all_fragments_once_in_a_round():
  whole = gs.outer(SCHEMES['dense'], NESTEROV, sync_every=4)
  parts = gs.outer(SCHEMES['dense'], NESTEROV, sync_every=4, fragments=4)
  plans = [gs.plan(tx, PARAMS, WORKERS) for tx in (whole, parts)]
  assert [plan.every for plan in plans] == [4, 4]
  assert plans[0].payload_bytes == plans[1].payload_bytes == 4 * 84


@pytest.mark.parametrize('new', [2, pytest.param(6, marks=pytest.mark.slow)])
def test_another_number_of_workers_goes_on(new):
  """What is pending keeps its mean; the anchor stays."""
  tx = every_two('dropping')
  _, state = run(tx, moves(4))[-1]
  there = gs.workers.resize(tx, state, new)
  jax.tree.map(np.testing.assert_array_equal, there.anchor, state.anchor)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(
      np.mean(x, 0), np.mean(y, 0), atol=1e-6
    ),
    gs.pending(there),
    gs.pending(state),
  )


def test_a_switch_keeps_anchor_momentum_and_what_is_pending():
  old = every_two('dropping')
  new = gs.outer(
    gs.gradient_dropping(0.5, min_size=6, axis_name=AXIS),
    NESTEROV,
    sync_every=4,
  )
  _, state = run(old, moves(4))[-1]
  there = gs.switch(old, new, state, PARAMS)
  jax.tree.map(np.testing.assert_array_equal, there, state)


@pytest.mark.parametrize('fragments', [1, 2])
def test_a_switch_of_the_outer_optimizer_keeps_the_anchor(fragments):
  old = every_two('dropping')
  new = gs.outer(
    SCHEMES['dropping'], optax.adam(0.1), sync_every=4, fragments=fragments
  )
  _, state = run(old, moves(3))[-1]
  there = gs.switch(old, new, state)
  kept = [(x.step, x.anchor, gs.pending(x)) for x in (there, state)]
  jax.tree.map(np.testing.assert_array_equal, *kept)
  fresh = gs.workers.init(new, PARAMS, WORKERS).outer
  jax.tree.map(np.testing.assert_array_equal, there.outer, fresh)


def test_a_gradient_does_not_become_progress():
  outer, plain = every_two('dropping'), SCHEMES['dropping']
  for old, new in ((outer, plain), (plain, outer)):
    state = gs.workers.init(old, PARAMS, WORKERS)
    with pytest.raises(ValueError, match='must both be outer steps'):
      gs.switch(old, new, state, PARAMS)


@pytest.mark.parametrize('fragments', [1, 2, ('a|b', '')])
def test_optax_maps_its_parameters(fragments):
  tx = gs.outer(
    SCHEMES['dropping'], NESTEROV, sync_every=2, fragments=fragments
  )
  marked = optax.tree.map_params(
    tx, lambda _: True, tx.init(PARAMS), transform_non_params=lambda _: False
  )
  found = marked.anchor, marked.outer, gs.pending(marked)
  assert all(jax.tree.leaves(found)) and not marked.step


@pytest.mark.parametrize(
  'given, message',
  [
    ({'sync_every': 0}, 'sync_every must be'),
    ({'sync_every': 4, 'fragments': 3}, 'fragments must divide sync_every=4'),
    ({'sync_every': 4, 'fragments': ['a', 'b', 'c']}, 'must divide .* got 3'),
    ({'sync_every': 4, 'fragments': ['(']}, 'must be a regular expression'),
    ({'sync_every': 4, 'fragments': 2, 'delay': 2}, 'delay must be'),
    ({'sync_every': 4, 'alpha': 1.5}, r'alpha must be in \[0, 1\]'),
  ],
)
def test_bad_arguments_are_named(given, message):
  with pytest.raises(ValueError, match=message):
    gs.outer(SCHEMES['dense'], NESTEROV, **given)


def test_other_bad_input():
  with pytest.raises(TypeError, match='scheme must be a gradsparse scheme'):
    gs.outer(NESTEROV, NESTEROV, sync_every=2)
  with pytest.raises(ValueError, match='at most the number of leaves, 4'):
    gs.outer(SCHEMES['dense'], NESTEROV, sync_every=8, fragments=8).init(PARAMS)
  for patterns, message in {
    ('none', ''): "none is left for 'none'",
    ('none', 'too'): 'none matches',
  }.items():
    tx = gs.outer(SCHEMES['dense'], NESTEROV, sync_every=2, fragments=patterns)
    with pytest.raises(ValueError, match=message):
      tx.init(PARAMS)
  tx, adam = (
    gs.outer(gs.dense(axis_name=None), each, sync_every=2)
    for each in (NESTEROV, optax.adam(0.1))
  )
  for state in (optax.sgd(0.1).init(PARAMS), adam.init(PARAMS)):
    with pytest.raises(ValueError, match='outer needs the state'):
      tx.sync(PARAMS, state)


@pytest.mark.parametrize(
  'around',
  [
    lambda tx: optax.chain(tx, optax.sgd(0.1)),
    lambda tx: optax.MultiSteps(tx, 2),
    lambda tx: gs.accumulate(tx, every=2),
    lambda tx: gs.skip_rejected(tx),
    lambda tx: gs.outer(gs.dense(axis_name=None), tx, sync_every=2),
  ],
)
def test_it_takes_no_gradients(around):
  tx = gs.outer(gs.dense(axis_name=None), NESTEROV, sync_every=2)
  with pytest.raises(ValueError, match='takes and returns parameters'):
    made = around(tx)
    made.update(PARAMS, made.init(PARAMS), PARAMS)


def test_parameters_that_are_not_stacked_are_named():
  tx = every_two('dense')
  mesh = jax.make_mesh((2,), (AXIS,))
  step = jax.shard_map(tx.sync, mesh=mesh, in_specs=(P(), P()), out_specs=P())
  with pytest.raises(ValueError, match=r"\['a'\] is typed as equal.*stack"):
    step(PARAMS, tx.init(PARAMS))


@pytest.mark.parametrize('name', marks.few(['dense', 'dropping'], 'dense'))
def test_an_exchange_overwrites_what_is_donated(name):
  """No array of the model's size is copied, nor made where none is sent."""
  scheme = {
    'dense': gs.dense(axis_name=None),
    'dropping': gs.gradient_dropping(0.001, axis_name=None),
  }[name]
  tx = gs.outer(scheme, NESTEROV, sync_every=5)
  params = {'w': jnp.zeros((1000, 1000))}
  sync = jax.jit(tx.sync, donate_argnums=(0, 1))
  compiled = sync.lower(params, jax.eval_shape(tx.init, params)).compile()
  used = compiled.memory_analysis().temp_size_in_bytes
  assert used < 0.5 * params['w'].nbytes
