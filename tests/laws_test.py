"""The seven laws, over every recipe, numbers of workers and runners.

The fast suite takes a subset that spans them: every recipe simulated with three
workers, and a recipe of each exchange on a mesh of three; `-m slow` takes the
product of settings, one to eight workers, and runners.
"""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests import runs
from tests import schemes
from tests.oracles import ada_comp
from tests.oracles import dgc
from tests.oracles import dryden
from tests.oracles import gtopk
from tests.oracles import one_bit
from tests.oracles import random_k
from tests.oracles import sign_majority
from tests.oracles import strom
from tests.oracles import terngrad
from tests.oracles import variance
from tests.recipes import following
from tests.runs import Case

NAMES = tuple(schemes.BY_NAME)
# The first setting of each recipe.
RECIPES = tuple(setting.name for setting in schemes.FIRST)
# On a mesh: each exchange of a default, a memory, and a code.
ON_DEVICES = (
  'dense',
  'dgc',
  'gtopk',
  'qsgd',
  'sign_majority',
  'sign_scatter',
)
FAST = tuple(
  sorted(
    {
      *(Case(n, 3, 'simulate') for n in {*RECIPES, *ON_DEVICES}),
      *(Case(n, 3, 'shard_map') for n in ON_DEVICES),
      Case('dense', 3, 'pmap'),
      # One worker exchanges nothing, whatever the exchange.
      Case('gtopk', 1, 'simulate'),
    },
    key=lambda case: (NAMES.index(case.setting), *case),
  )
)
# Where nothing is left out the others differ little from these.
EXACT = ('dropping', 'dgc_nesterov', 'ef21')
# JAX runs pmap by way of shard_map: a few numbers of workers will do.
PRODUCT = tuple(
  Case(name, num_workers, runner)
  for name in NAMES
  for runner in gs.workers.RUNNERS
  for num_workers in ((1, 5, 8) if runner == 'pmap' else range(1, 9))
)

# (condition, check) for the product.
LAWS = []


def law(condition=lambda case, facts: True):
  """Runs a check over the fast cases it applies to, and over the product."""

  def applies(case):
    return bool(condition(case, schemes.BY_NAME[case.setting].facts))

  def decorate(check):
    LAWS.append((applies, check))
    chosen = [case for case in FAST if applies(case)]
    return pytest.mark.parametrize('case', chosen, ids=str)(check)

  return decorate


def leaves(tree):
  """(name, array) of every leaf that is there."""
  return [(k, x) for k, x in tree.items() if x is not None]


def bits(x):
  return np.asarray(x).tobytes()


def close(actual, expected, *, scale=1.0, relative=0.0):
  """To float32 rounding of sums of a few numbers of this scale."""
  np.testing.assert_allclose(
    actual, expected, atol=4e-6 * max(1.0, scale), rtol=4e-6 + relative
  )


def quickly(fn, *args):
  return jax.jit(fn).lower(*args).compile(replay.QUICKLY)(*args)


# --- law 1: nothing lost ----------------------------------------------------


def inflow(step, facts, name):
  """What the memory takes in, by its definition."""
  g = step.grads[name]
  healthy = step.healthy.reshape(-1, *(1,) * (g.ndim - 1))
  flows = g
  if facts.inflow == 'correction':
    # Not added up: what was pending goes, and the correction takes its place.
    m = np.float32(facts.momentum)
    if m < 1:
      g = (1 - m) * step.before.memory.average[name] + m * g
    flows = (
      g - step.before.memory.estimate[name] - gs.pending(step.before)[name]
    )
  elif facts.inflow != 'gradient':
    u, m = step.before.memory.momentum[name], np.float32(facts.momentum)
    flows = m * (u + g) + g if facts.inflow == 'nesterov' else m * u + g
  return np.where(healthy, flows, 0)  # of NaN nothing is made


@law(lambda case, facts: facts.inflow and not facts.exempt)
def test_law1_pending_and_inflow_are_delivered_or_pending(case):
  run = runs.run(case)
  facts = run.setting.facts
  for step in run.steps:
    old, new = gs.pending(step.before), gs.pending(step.after)
    for name, delivered in leaves(step.delivered):
      if name not in facts.dense:
        flowed = inflow(step, facts, name)
        close(old[name] + flowed, delivered + new[name], scale=5)


@law(lambda case, facts: facts.dense)
def test_law1_dense_leaves_deliver_their_gradient_and_owe_nothing(case):
  run = runs.run(case)
  for step in run.steps:
    for name in run.setting.facts.dense:
      arrives = float(step.healthy.all())
      np.testing.assert_array_equal(
        step.delivered[name], np.where(arrives, step.grads[name], 0)
      )
      assert not np.any(gs.pending(step.after)[name])


def dense_update(facts, momentum, name, mean):
  """Dense leaves of a scheme with momentum have it on the mean."""
  m = np.float32(facts.momentum)
  if facts.inflow == 'heavy_ball':
    momentum[name] = m * momentum.get(name, 0) + mean
    return momentum[name]
  if facts.inflow == 'nesterov':
    momentum[name] = m * (momentum.get(name, 0) + mean)
    return momentum[name] + mean
  if facts.inflow == 'correction':
    momentum[name] = (1 - m) * momentum.get(name, 0) + m * mean
    return momentum[name]
  return mean


@law(lambda case, facts: not facts.exempt)
def test_law1_the_update_is_the_mean_of_what_was_delivered(case):
  run = runs.run(case)
  facts, momentum = run.setting.facts, {}
  for step in run.steps:
    if not step.healthy.all():
      continue  # rejected: no momentum moves
    for name, delivered in leaves(step.delivered):
      mean = np.mean(delivered, axis=0, dtype=np.float64)
      if name in facts.dense:
        mean = dense_update(facts, momentum, name, mean)
      elif facts.inflow == 'correction':
        mean = step.before.memory.mean[name] + mean
      # The sum over workers may cancel, so its parts set the scale.
      scale = np.max(np.abs(delivered), initial=0)
      update = step.updates[name][0]
      close(update, mean, scale=scale, relative=facts.mean_rounding)


@law(lambda case, facts: facts.inflow)
def test_law1_some_is_delivered_and_some_is_kept(case):
  """Otherwise the equations hold for a scheme that does nothing, too."""
  run = runs.run(case)
  last = run.steps[-1]
  assert any(np.any(x) for _, x in leaves(last.delivered))
  assert any(np.any(x) for _, x in leaves(gs.pending(last.after)))


@law()
def test_a_poisoned_step_is_rejected_by_all_and_forgotten(case):
  run = runs.run(case)
  step, next_step = run.steps[runs.POISONED], run.steps[runs.POISONED + 1]
  for _, update in leaves(step.updates):
    assert np.all(np.isnan(update))
  for _, delivered in leaves(step.delivered):
    assert not np.any(delivered)
  for x in jax.tree.leaves(step.after):
    assert np.all(np.isfinite(x))
  # What all have learnt together, and what the exchange has lost, are as if
  # the step had not been.
  for kept in ('compressor', 'exchange'):
    before, after = (getattr(s, kept) for s in (step.before, step.after))
    jax.tree.map(np.testing.assert_array_equal, before, after)
  for _, update in leaves(next_step.updates):
    assert np.all(np.isfinite(update))
  assert np.all(step.before.stats.rejected_steps == 0)
  assert np.all(step.after.stats.rejected_steps == 1)
  assert np.all(next_step.after.stats.rejected_steps == 1)


# --- law 2: unbiased where promised -----------------------------------------

DRAWS = 4000


RANDOM = [
  s.name
  for s in schemes.SETTINGS
  if s.facts.unbiased and s.recipe is not gs.dense
]


# tests/recipes/statistics_test.py looks at others, and at their variance.
@pytest.mark.parametrize('name', marks.few(RANDOM, 'qsgd'))
def test_law2_the_mean_over_draws_is_the_gradient(name):
  """Within 5.5 standard errors of the mean, each of 132 elements or fewer.

  A right scheme fails one of them with probability 132 * 4e-8 = 5e-6, and not
  now and then: draws are seeded. The gradients are uniform, which TernGrad's
  clipping leaves alone.
  """
  setting = schemes.BY_NAME[name]
  tx = setting.make(None)
  rng = np.random.default_rng(3)
  grads = jax.tree.map(
    lambda p: np.asarray(rng.uniform(-1, 1, p.shape), np.float32),
    setting.params,
  )
  state = tx.init(setting.params)

  def drawn(steps):
    one = lambda t: tx.update(grads, state._replace(steps=t))[0]
    return jax.vmap(one)(steps)

  draws = quickly(drawn, jnp.arange(DRAWS, dtype=jnp.int32))
  for leaf, x in leaves(draws):
    x = np.asarray(x, np.float64)
    error = np.std(x, axis=0) / np.sqrt(DRAWS)
    limit = 5.5 * error + 1e-6
    assert np.all(np.abs(np.mean(x, axis=0) - grads[leaf]) <= limit), leaf


@pytest.mark.parametrize('name', marks.few(RANDOM, 'terngrad'))
def test_law2_draws_differ_between_steps_seeds_and_workers(name):
  setting = schemes.BY_NAME[name]
  params = setting.params
  same = jax.tree.map(
    lambda g: np.broadcast_to(g, (2, *g.shape[1:])),
    runs.gradients(params, 1, seed=0),
  )

  def delivered(seed):
    """float32[steps, workers, ...] of the same gradient."""
    tx = setting.make(seed=seed)

    def one(step, grads):
      state = tx.init(params)._replace(steps=step)
      return tx.step(grads, state)[2]['kernel']

    workers = jax.vmap(one, in_axes=(None, 0), axis_name=schemes.AXIS)
    steps = jax.vmap(workers, in_axes=(0, None))
    return np.asarray(quickly(steps, jnp.arange(2, dtype=jnp.int32), same))

  first = delivered(seed=0)
  assert not np.array_equal(first[0], first[1])
  assert not np.array_equal(first, delivered(seed=1))
  # Random-k's coordinates are drawn by all together; roundings are not.
  together = setting.recipe is gs.random_k
  assert np.array_equal(first[0, 0], first[0, 1]) == together


# --- law 3: the limit is exact ----------------------------------------------


@pytest.mark.parametrize('num_workers', [3])
@pytest.mark.parametrize(
  'setting, optimizer',
  [
    pytest.param(
      setting, other, marks=() if setting.name in EXACT else pytest.mark.slow
    )
    for setting, other in schemes.LIMITS
  ],
  ids=lambda x: getattr(x, 'name', ''),
)
def test_law3_with_nothing_left_out_the_mean_is_exact(
  setting, optimizer, num_workers
):
  tx, params = setting.make(), setting.params
  grads = [runs.gradients(params, num_workers, seed=t) for t in range(3)]
  means = [jax.tree.map(lambda g: g.mean(axis=0), g) for g in grads]
  step = jax.vmap(
    lambda g, state: tx.update(
      g, state, second_moment=jax.tree.map(jnp.square, g)
    ),
    axis_name=schemes.AXIS,
  )
  state = gs.workers.stack(tx.init(params), num_workers)
  step = jax.jit(step).lower(grads[0], state).compile(replay.QUICKLY)
  for g, expected in zip(grads, optimizer(means), strict=True):
    updates, state = step(g, state)
    for name, update in leaves(updates):
      close(update[0], expected[name], scale=5)


# --- law 4: all workers agree -----------------------------------------------


@law(lambda case, facts: case.num_workers > 1)
def test_law4_updates_are_bit_identical_on_every_worker(case):
  for step in runs.run(case).steps:
    for name, update in leaves(step.updates):
      first = bits(update[0])
      for worker, own in enumerate(update):
        assert bits(own) == first, f'{name} on worker {worker}'


@law(lambda case, facts: case.runner == 'shard_map')
def test_law4_every_device_holds_those_bits(case):
  for step in runs.run(case).steps:
    named = leaves(step.updates)
    for (name, update), copies in zip(named, step.copies, strict=True):
      assert len(copies) == case.num_workers
      assert all(bits(copy) == bits(update[0]) for copy in copies), name


@law(lambda case, facts: case.runner != 'simulate')
def test_law4_runners_agree(case):
  """To rounding: who adds up, and in which order, is the runner's business."""
  run = runs.run(case)
  other = runs.run(case._replace(runner='simulate'))
  for step, expected in zip(run.steps, other.steps, strict=True):
    for name, update in leaves(step.updates):
      close(update, expected.updates[name], scale=5)
    pairs = gs.pending(step.after), gs.pending(expected.after)
    jax.tree.map(functools.partial(close, scale=5), *pairs)


# --- law 5: honest bytes ----------------------------------------------------


@functools.cache
def plan_of(name, num_workers, step=None):
  setting = schemes.BY_NAME[name]
  return gs.plan(setting.make(), setting.params, num_workers, step=step)


def plan_at(case, t):
  """At step t of a schedule: that of the step at which its stage begins."""
  if schemes.STAGES not in schemes.BY_NAME[case.setting].args:
    return plan_of(case.setting, case.num_workers)
  begun = max(start for start, _ in schemes.STAGES.stages if start <= t)
  return plan_of(case.setting, case.num_workers, begun)


@law(lambda case, facts: case.runner == 'shard_map')
def test_law5_the_plan_is_what_the_compiled_program_sends(case):
  audit, plan = runs.run(case).audit, plan_of(case.setting, case.num_workers)
  branches = [b for sizes in audit.branches for b in sizes]
  rungs = [sent for _, sent in plan.rungs]
  assert branches == (rungs if any(rungs) else [])  # one worker sends nothing
  possible = [audit.fixed_bytes + branch for branch in branches or [0]]
  assert audit.sent_bytes == max(possible)
  # A schedule is planned at its last density, data at their worst.
  last = min if schemes.STAGES in runs.run(case).setting.args else max
  assert plan.sent_bytes == last(possible)


def message_bytes(collectives):
  """One worker's message and dense leaves, by the operands in a program."""
  sizes = {}
  for c in collectives:
    sizes.setdefault(c.kind, []).append(c.nbytes)
  reduced = sum(sizes.get('all_reduce', []))
  if 'all_to_all' in sizes:  # what is gathered then is the way back
    return sum(sizes['all_to_all']) + reduced
  if 'permute' in sizes:  # the way back may have a mask besides
    return min(sizes['permute']) + reduced
  if 'all_gather' in sizes:
    return sum(sizes['all_gather']) + reduced
  return reduced - 4  # the word of health has been added up, too


@law(lambda case, facts: case.runner == 'shard_map' and case.num_workers > 1)
def test_law5_the_payload_is_the_message_of_the_compiled_program(case):
  audit, plan = runs.run(case).audit, plan_of(case.setting, case.num_workers)
  if not audit.conditionals:
    assert message_bytes(audit.collectives) == plan.payload_bytes
    return
  (branches,) = audit.conditionals
  beside = sum(c.nbytes for c in audit.collectives)
  if not plan.schedules:
    beside -= 4  # workers agree on the rung
  found = [beside + message_bytes(b.collectives) for b in branches]
  assert found == [payload for payload, _ in plan.rungs]


@law()
def test_law5_the_state_reports_the_planned_payload(case):
  run = runs.run(case)
  scheduled = schemes.STAGES in run.setting.args
  for t, step in enumerate(run.steps):
    plan = plan_at(case, t)
    reported = int(gs.metrics(step.after)['payload_bytes'])
    if plan.rungs and not scheduled:
      assert reported in [payload for payload, _ in plan.rungs]
    else:
      assert reported == plan.payload_bytes
    assert plan.dense_bytes == sum(
      4 * x.size for x in jax.tree.leaves(run.setting.params)
    )


@law()
def test_law5_the_state_reports_what_was_sent(case):
  """Rejected steps too: what they sent was sent."""
  run = runs.run(case)
  scheduled = schemes.STAGES in run.setting.args
  for t, step in enumerate(run.steps):
    plan = plan_at(case, t)
    reported = int(gs.metrics(step.after)['sent_bytes'])
    if plan.rungs and not scheduled:
      fixed = plan.sent_bytes - plan.rungs[-1][1]
      payloads = [payload for payload, _ in plan.rungs]
      number = payloads.index(int(gs.metrics(step.after)['payload_bytes']))
      assert reported == fixed + plan.rungs[number][1]
    else:
      assert reported == plan.sent_bytes


# --- law 6: the state is a plain pytree -------------------------------------


@law()
def test_law6_the_state_keeps_its_structure_shapes_and_dtypes(case):
  run = runs.run(case)
  form = lambda state: jax.tree.map(lambda x: (x.shape, x.dtype), state)
  first = form(run.steps[0].before)
  assert all(form(step.after) == first for step in run.steps)


@law(lambda case, facts: case.runner != 'pmap')
def test_law6_what_comes_out_is_typed_as_what_goes_in(case):
  """Weak types too: else the second step would be traced again."""
  into, out = runs.run(case).avals
  typed = lambda x: (x.shape, x.dtype, x.weak_type)
  assert len(into) == len(out) > 0
  assert list(map(typed, into)) == list(map(typed, out))


@law()
def test_law6_a_run_resumes_bit_exactly(case):
  run = runs.run(case)
  last = run.steps[-1]
  resumed, expected = run.resumed, (last.after, last.updates)
  jax.tree.map(
    lambda a, b: np.testing.assert_equal(bits(a), bits(b)), resumed, expected
  )


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_law6_a_step_is_traced_once(runner):
  setting, num_workers = schemes.BY_NAME['sign_memory'], 2
  tx, params = setting.make(), setting.params
  specs = gs.workers.specs(tx, params, num_workers)
  in_specs = (specs, runs.OWN)
  traces = []

  def step(state, grads):
    traces.append(runner)
    updates, state = tx.update(grads, state)
    return state, updates

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=in_specs,
    out_specs=(specs, runs.OWN),
  )
  state = gs.workers.init(tx, params, num_workers)
  seen = []
  for t in range(4):
    args = state, runs.gradients(params, num_workers, seed=t)
    if runner == 'shard_map':
      args = runs.place(num_workers, args, in_specs)
    state, _ = fn(*args)
    seen.append(len(traces))
  # The others trace once more, to check types as shard_map does. What pmap
  # returns lies on its mesh, what it was given first did not.
  assert (
    seen
    == {
      'simulate': [2, 2, 2, 2],
      'pmap': [2, 3, 3, 3],
      'shard_map': [1, 1, 1, 1],
    }[runner]
  )


# --- law 7: a silent no-op is an error --------------------------------------

TINY = {'kernel': jnp.zeros((6, 5)), 'bias': jnp.zeros(3)}


@pytest.mark.parametrize(
  'setting',
  [s for s in schemes.SETTINGS if s.recipe is not gs.dense],
  ids=lambda s: s.name,
)
def test_law7_nothing_to_compress_is_an_error_that_names_min_size(setting):
  with pytest.raises(ValueError, match='min_size'):
    setting.make(min_size=31).init(TINY)
  setting.make(min_size=30).init(TINY)


def test_law7_dense_and_an_empty_tree_are_no_errors():
  gs.dense(axis_name=None).init(TINY)
  gs.dgc(0.1, axis_name=None).init({})
  gs.dgc(0.1, axis_name=None).init({'empty': jnp.zeros((0, 3))})


# --- each recipe beside its oracle, written from the paper ------------------

# Of the arguments of the setting; oracles are given which leaves stay dense.
# Oracles have room for everything, which variance_strom has not in these runs.
ORACLES = {
  'dgc': lambda **k: dgc.DeepGradientCompression(schemes.K, **k),
  'gtopk': lambda **k: gtopk.GTopK(schemes.K, **k),
  'strom': lambda **k: strom.Strom(2.0, **k),
  'variance': lambda **k: variance.VarianceBased(2.0, **k),
  'ada_comp': lambda **k: ada_comp.AdaComp(bin_size=16, **k),
  'qsgd_descent': following.QSGDDescent,
  'terngrad': terngrad.TernGrad,
  'one_bit': one_bit.OneBit,
  'sign_majority': sign_majority.SignMajority,
  'dryden': lambda **k: dryden.Dryden(schemes.K / 2, **k),
  'random_k': random_k.RandomK,
}
FOLLOW = {
  'variance': following.with_moments,
  'terngrad': following.with_same_uniforms,
  'random_k': following.with_same_draw,
}


@pytest.mark.parametrize(
  'case', [Case(name, 3, 'simulate') for name in ORACLES], ids=str
)
def test_a_recipe_does_what_its_oracle_does(case):
  """tests/recipes has more arguments, and more numbers of workers."""
  setting = runs.run(case).setting
  names = sorted(k for k, s in setting.facts.shapes.items() if s is not None)
  dense = [i for i, name in enumerate(names) if name in setting.facts.dense]
  numbers = [i for i in range(len(names)) if i not in dense]
  oracle = ORACLES[case.setting](dense=dense)
  follow = FOLLOW.get(case.setting, following.plainly)
  steps = runs.as_oracles_see_it(case)
  owed = sent = 0
  for t, step in enumerate(steps):
    following.check(step, follow(oracle, step, numbers, t), oracle)
    sent += sum(np.count_nonzero(step.delivered[0][i]) for i in numbers)
    owed += sum(np.count_nonzero(step.pending[0][i]) for i in numbers)
    assert step.metrics['overflow_elements'] == 0
  assert len(steps) == runs.POISONED
  assert sent
  assert bool(owed) == bool(setting.facts.inflow)


# --- the list, and the product ----------------------------------------------


def test_settings_have_names_of_their_own():
  assert len(schemes.BY_NAME) == len(schemes.SETTINGS)


@pytest.mark.parametrize(
  'recipe, listed',
  [
    ('dense', 'dense'),
    ('gradient_dropping', 'dropping'),
    ('strom', 'strom'),
    ('terngrad', 'terngrad'),
    ('sign_majority', 'sign_majority'),
    ('power_sgd', 'power_sgd'),
  ],
)
def test_a_recipe_without_a_line_has_the_facts_of_its_scheme(recipe, listed):
  own = schemes.of_example(gs.recipes.RECIPES[recipe])
  assert own.facts == schemes.BY_NAME[listed].facts
  assert own.make().scheme.axis_name == schemes.AXIS


@pytest.mark.parametrize('setting', schemes.SETTINGS, ids=lambda s: s.name)
def test_schemes_say_of_themselves_what_the_list_says(setting):
  scheme, facts = setting.make(None).scheme, setting.facts
  assert bool(scheme.memory.floats) == bool(facts.inflow)
  if not facts.exempt:
    assert scheme.memory.facts.lossless == bool(facts.inflow)
  if not facts.mean_rounding:
    assert scheme.compressor.unbiased == facts.unbiased


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_all_laws_hold_for_all_workers_and_runners(name):
  broken = []
  for case in PRODUCT:
    if case.setting != name:
      continue
    for applies, check in LAWS:
      if applies(case):
        try:
          check(case)
        except AssertionError as e:
          broken.append(f'{check.__name__} {case}: {str(e)[:300]}')
  runs.run.cache_clear()
  jax.clear_caches()
  assert not broken, '\n'.join(broken)
