"""Every recipe as one line of an optax chain, before every optimizer.

A chain must do what its parts do one after the other: local clipping and
decay see this worker's gradient, the optimizer sees the mean, and the second
moments reach the scheme through all of them.
"""

import functools

import gradsparse as gs
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from tests import replay
from tests import schemes
from tests.marks import few

AXIS = replay.AXIS
PARAMS = {
  'kernel': np.ones((8, 6), np.float32),
  'bias': np.zeros(5, np.float32),
}
WORKERS = 2

# What the examples need so that all leaves of so small a tree move, and so that
# little is compiled.
SMALL = {
  'density': 0.2,
  'threshold': 0.5,
  'alpha': 1.0,
  'bin_size': 16,
  'memory': True,
  'ladder': (1.0,),
  'min_size': 0,
}
OPTIMIZERS = {
  'sgd': lambda: optax.sgd(0.1),
  'momentum': lambda: optax.sgd(0.1, momentum=0.9),
  'adam': lambda: optax.adam(0.1),
  'adamw': lambda: optax.adamw(0.1, weight_decay=0.01),
}
# They compare the gradient with what must not be clipped apart from it.
TAKE_MOMENTS = ('variance_based', 'variance_strom')
# Weight decay on the local gradient, after the exchange, or not at all.
PLACES = ('local', 'after', 'none')


def clip():
  return gs.clip_local_norm(2.0, axis_name=AXIS)


def parts(recipe, optimizer, place):
  """The links of the chain."""
  decay = optax.add_decayed_weights(0.05)
  scheme = schemes.example(recipe, axis_name=AXIS, **SMALL)
  links = [] if recipe in TAKE_MOMENTS else [clip()]
  links += [decay] if place == 'local' else []
  links.append(scheme)
  links += [decay] if place == 'after' else []
  return [*links, OPTIMIZERS[optimizer]()]


def steps_of(tx, recipe, count):
  """(params, state) after some steps of simulated workers."""
  specs = gs.workers.specs(tx, PARAMS, WORKERS)
  state = gs.workers.init(tx, PARAMS, WORKERS)

  def step(params, state, g, m):
    extra = {'second_moment': m} if recipe in TAKE_MOMENTS else {}
    updates, state = tx.update(g, state, params, **extra)
    return optax.apply_updates(params, updates), state

  fn = gs.workers.parallel(
    step,
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(P(), specs, replay.OWN, replay.OWN),
    out_specs=(P(), specs),
  )
  params, out = PARAMS, []
  compiled = fn.lower(params, state, *inputs(0)).compile(replay.QUICKLY)
  for t in range(count):
    params, state = compiled(params, state, *inputs(t))
    out.append(jax.tree.map(np.asarray, (params, state)))
  return out


def inputs(t):
  rng = np.random.default_rng(t)
  grads = jax.tree.map(
    lambda p: np.float32(rng.normal(size=(WORKERS, *p.shape))), PARAMS
  )
  return grads, jax.tree.map(lambda g: np.float32(0.5 * g**2), grads)


def by_hand(links):
  """The same transformation, its links applied in turn without a chain."""

  def init(params):
    return tuple(link.init(params) for link in links)

  def update(updates, state, params=None, **given):
    out = []
    for link, own in zip(links, state, strict=True):
      # Only a scheme is told of moments; and all see the parameters.
      extra = given if isinstance(link, gs.CompressedMean) else {}
      updates, own = link.update(updates, own, params, **extra)
      out.append(own)
    return updates, tuple(out)

  return optax.GradientTransformationExtraArgs(init, update)


def chains():
  """One recipe before one optimizer; slow: all before all."""
  for number, recipe in enumerate(gs.recipes.RECIPES):
    for turn in range(len(OPTIMIZERS)):
      optimizer = list(OPTIMIZERS)[(number + turn) % len(OPTIMIZERS)]
      place = PLACES[(number + turn) % len(PLACES)]
      slow = turn or recipe != 'dgc'
      marks = pytest.mark.slow if slow else ()
      yield pytest.param(recipe, optimizer, place, marks=marks)


@pytest.mark.parametrize('recipe, optimizer, place', list(chains()))
def test_a_chain_does_what_its_links_do(recipe, optimizer, place):
  links = parts(recipe, optimizer, place)
  chained = steps_of(optax.chain(*links), recipe, 3)
  apart = steps_of(by_hand(links), recipe, 3)
  for one, other in zip(chained, apart, strict=True):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
      jax.tree.leaves(one),
      jax.tree.leaves(other),
    )
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(one))
  first, last = chained[0][0], chained[-1][0]
  for name in PARAMS:
    assert np.any(first[name] != last[name])


@pytest.mark.parametrize(
  'recipe', few(gs.recipes.RECIPES, 'dense', 'dgc', 'variance_based')
)
def test_memories_are_the_workers_own_and_optimizers_states_are_not(recipe):
  tx = optax.chain(*parts(recipe, 'adamw', 'after'))
  state = tx.init(PARAMS)
  specs = gs.workers.specs(tx, PARAMS, WORKERS)
  place = 0 if recipe in TAKE_MOMENTS else 1
  scheme, adam = specs[place], specs[-1]
  assert set(jax.tree.leaves(adam, is_leaf=is_spec)) == {P()}
  kept = jax.tree.leaves(scheme.memory, is_leaf=is_spec)
  if jax.tree.leaves(state[place].memory):
    assert P(AXIS) in kept
  else:
    assert not kept
  assert scheme.steps == P()
  assert gs.workers.params_spec(tx, PARAMS) == P()


def is_spec(x):
  return isinstance(x, P)


# --- where weight decay goes ------------------------------------------------


def test_local_decay_is_accumulated_and_decay_after_is_not():
  """Each worker adds the full decay: the mean convention divides nothing."""
  zero = jax.tree.map(np.zeros_like, inputs(0)[0])
  decay = optax.add_decayed_weights(0.5)
  scheme = gs.gradient_dropping(0.1, axis_name=AXIS)

  def run(*links):
    tx = optax.chain(*links)
    specs = gs.workers.specs(tx, PARAMS, WORKERS)
    fn = gs.workers.parallel(
      lambda g, s, p: tx.update(g, s, p),
      runner='simulate',
      num_workers=WORKERS,
      in_specs=(replay.OWN, specs, P()),
      out_specs=(P(), specs),
    )
    return fn(zero, gs.workers.init(tx, PARAMS, WORKERS), PARAMS)

  before, state = run(decay, scheme)
  kernel = np.asarray(before['kernel']).ravel()
  # Six of 53; ties keep the lower index (the bias comes first and is zero).
  np.testing.assert_array_equal(kernel, [0.5] * 6 + [0.0] * 42)
  owed = np.asarray(gs.pending(state)['kernel'])
  np.testing.assert_array_equal(owed.reshape(2, -1)[:, 6:], 0.5)
  after, state = run(scheme, decay)
  np.testing.assert_array_equal(after['kernel'], 0.5)
  assert not np.any(gs.pending(state)['kernel'])


# --- two schemes for two groups of parameters -------------------------------


@pytest.mark.slow
def test_two_precisions_of_qsgd_for_two_groups():
  """4 bits for convolutions, 2 for dense layers (section 4 of the paper)."""
  params = {
    'conv': np.zeros((3, 3, 4, 8), np.float32),
    'dense': np.zeros((30, 20), np.float32),
  }
  qsgd = functools.partial(
    gs.qsgd, bucket_size=1024, min_size=0, axis_name=AXIS
  )
  tx = optax.chain(
    optax.partition(
      {'fine': qsgd(7), 'coarse': qsgd(1)},
      {'conv': 'fine', 'dense': 'coarse'},
    ),
    optax.sgd(1.0, momentum=0.9),
  )
  specs = gs.workers.specs(tx, params, 3)
  fn = gs.workers.parallel(
    tx.update,
    runner='simulate',
    num_workers=3,
    in_specs=(replay.OWN, specs, P()),
    out_specs=(P(), specs),
  )
  rng = np.random.default_rng(0)
  grads = jax.tree.map(
    lambda p: np.float32(rng.uniform(-1, 1, (3, *p.shape))), params
  )
  for g in grads.values():
    g[:, 0, 0] = 1.0  # so that the largest of each bucket is 1
  updates, _ = fn(grads, gs.workers.init(tx, params, 3), params)
  for name, levels in (('conv', 7), ('dense', 1)):
    steps = np.asarray(updates[name]) * 3 * levels
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)
    assert len(np.unique(np.round(steps))) > 3 * levels
    error = np.asarray(updates[name]) + grads[name].mean(axis=0)
    assert 0 < np.max(np.abs(error)) <= 1 / levels + 1e-6
  plan = gs.plan(tx, params, 3)
  by_name = {row.name: row for row in plan.rows}
  bits = {n: 8 * by_name[f"['{n}']"].payload_bytes for n in params}
  # Width, then a norm of 32 bits and a word of health; in whole words.
  assert 4 * 288 <= bits['conv'] - 64 <= 4 * 288 + 31
  assert 2 * 600 <= bits['dense'] - 64 <= 2 * 600 + 31
