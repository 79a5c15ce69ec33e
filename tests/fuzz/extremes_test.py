"""Adversarial gradients: accepted by all or rejected by all, never poisoned."""

from __future__ import annotations

import chex
import gradsparse as gs
from gradsparse import health
from gradsparse.sockets import ownership
from hypothesis import given
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
from tests.fuzz import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# What a gradient can hold; the first are no normal numbers in float32.
MAGNITUDES = (0.0, 1e-45, 1e-38, 1e-30, 1e-7, 1.0, 65504.0, 1e19, 1e30, 3e38)
# Nobody has a reason to reject these.
HARMLESS = 65504.0
# And shares of the largest number that a worker can take in, which fill a
# memory as far as it goes.
BRIM = tuple(x * health.LARGEST_GRADIENT for x in (0.1, 0.4, 0.6, 0.9, 1.5))
# What an exchange that rounds owes is cut off here, so that it never makes the
# mean overflow: the one place where gradient is lost, and by intention.
MOST_OWED = float(np.finfo(np.float32).max) / 8
SPOILED = (None, None, None, None, np.inf, -np.inf, np.nan)

# One of each memory, code and exchange; few, because each is compiled.
SETTINGS = (
  'dense',
  'dropping_leaf',
  'dropping_bfloat16',
  'dgc_nesterov',
  'dgc_exponent4',
  'dgc_unmasked',
  'ef21',
  'gtopk',
  'strom',
  'variance',
  'variance_qsgd4',
  'ada_comp',
  'qsgd_l2',
  'qsgd_scatter',
  'terngrad',
  'one_bit',
  'one_bit_scatter',
  'sign_memory',
  'dryden',
  'random_k_memory',
  'power_sgd',
)

STEPS = st.lists(
  st.tuples(
    st.lists(
      st.sampled_from((*MAGNITUDES, *BRIM)), min_size=1, max_size=4, unique=True
    ),
    st.sampled_from(SPOILED),
    st.integers(0, 2**32 - 1),
  ),
  min_size=2,
  max_size=5,
)


def extremes(program, palette, spoiled, seed):
  """Numbers of these magnitudes and of both signs; one may be spoiled."""
  rng = np.random.default_rng(seed)

  def draw(p):
    shape = (program.num_workers, *p.shape)
    signs = rng.choice((-1.0, 1.0), shape)
    return np.asarray(signs * rng.choice(palette, shape), np.float32)

  grads = jax.tree.map(draw, programs.PARAMS)
  if spoiled is not None:
    leaf = grads[rng.choice(sorted(grads))]
    leaf.reshape(program.num_workers, -1)[rng.choice(len(leaf)), 0] = spoiled
  return grads


def check_rejected(program, before, after, outcome, grads):
  """NaN on all; no trace but of what the healthy ones took in."""
  updates, delivered, owed = outcome
  for u, d in zip(*map(jax.tree.leaves, (updates, delivered)), strict=True):
    assert np.all(np.isnan(u)) and not np.any(d)
  for name, default in (('memory', True), ('compressor', False)):
    old, new = getattr(before, name), getattr(after, name)
    local = jax.tree.leaves(ownership.is_local(old, default=default))
    pairs = zip(*map(jax.tree.leaves, (old, new)), strict=True)
    for (a, b), own in zip(pairs, local, strict=True):
      for w in range(program.num_workers):
        left_alone = np.array_equal(a[w], b[w]) if own else np.array_equal(a, b)
        sound = all(np.all(np.isfinite(g[w])) for g in grads.values())
        assert left_alone or (own and sound), f'state.{name} of worker {w}'
  chex.assert_trees_all_equal(before.exchange, after.exchange)
  if program.tx.scheme.memory.sums:
    # Each owes what it did, or what it took in besides.
    was, now = gs.pending(before), gs.pending(after)
    took = jax.tree.map(lambda a, b, o: np.where(a == b, b, o), was, now, owed)
    program.check('what is owed', now, took, programs.sizes(took))


def check_accepted(program, before, after, outcome, grads):
  """Finite, equal on all, and nothing is lost."""
  updates, delivered, owed = outcome
  for u, d in zip(*map(jax.tree.leaves, (updates, delivered)), strict=True):
    assert np.all(np.isfinite(u)) and np.all(np.isfinite(d))
    assert all(own.tobytes() == u[0].tobytes() for own in u)
  memory = program.tx.scheme.memory
  if not memory.facts.lossless:
    return
  now = programs.wide(gs.pending(after))
  size = programs.sizes(owed, delivered, now)
  owed_before = jax.tree.leaves(before.exchange)
  if any(np.any(np.abs(x) > MOST_OWED) for x in owed_before):
    return
  if owed_before:
    # It passes through sums over all workers and means of whole buckets.
    most = max(np.max(x) for x in size.values())
    size = jax.tree.map(lambda x: np.full_like(x, most), size)
  left = jax.tree.map(
    lambda o, d: o - d, *map(programs.wide, (owed, delivered))
  )
  program.check('what is pending', now, left, size)
  if not memory.sums or memory.facts.momentum:
    return
  was = programs.wide(gs.pending(before))
  mean = lambda tree: jax.tree.map(lambda x: np.mean(x, axis=0), tree)
  expected = jax.tree.map(
    lambda e, g, n: e + g - n, *map(mean, (was, programs.wide(grads), now))
  )
  size = mean(programs.sizes(was, grads, now, size))
  update = jax.tree.map(lambda u: np.float64(u[0]), updates)
  program.check('the update', update, expected, size)


def take(program, state, grads, must_accept):
  """A step; returns the state after it."""
  updates, after, delivered, owed = program.run(state, grads)
  rejected = after.stats.rejected_steps - state.stats.rejected_steps
  assert np.all(rejected == rejected[0]) and rejected[0] in (0, 1)
  assert not (must_accept and rejected[0]), 'rejected without a reason'
  outcome = updates, delivered, owed
  check = check_rejected if rejected[0] else check_accepted
  check(program, state, after, outcome, grads)
  form = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
  assert form(after) == form(state)
  for path, x in jax.tree_util.tree_leaves_with_path(after):
    assert np.all(np.isfinite(x)), jax.tree_util.keystr(path)
  return after


@programs.budget(150)
@given(st.sampled_from(SETTINGS), st.sampled_from((1, 3)), STEPS)
def test_a_step_counts_for_all_or_for_none_and_the_next_goes_on(
  name, num_workers, steps
):
  program = programs.program(name, num_workers)
  state, harmless = program.state, True
  for palette, spoiled, seed in steps:
    grads = extremes(program, palette, spoiled, seed)
    largest = max(np.max(np.abs(g)) for g in grads.values())
    harmless &= bool(largest <= HARMLESS) or spoiled is not None
    state = take(
      program, state, grads, must_accept=harmless and spoiled is None
    )
  for seed in range(2):
    ordinary = programs.normal(num_workers, seed)
    state = take(program, state, ordinary, must_accept=True)
