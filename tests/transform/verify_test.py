"""Messages with a checksum: the same results, and no damaged one counts."""

import functools

import chex
import gradsparse as gs
from gradsparse.collectives import Comm
from gradsparse.collectives import checksum
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import simulation
from tests.schemes import example

AXIS = gs.workers.AXIS
WORKERS = 3
_ALL = dict(min_size=0, axis_name=AXIS)

# A scheme, and what carries its messages: Comm's method.
SCHEMES = {
  'all_gather': (lambda **v: gs.dgc(0.1, **_ALL, **v), 'gather'),
  'rungs': (
    lambda **v: gs.strom(1.5, ladder=(0.1, 0.5), **_ALL, **v),
    'gather',
  ),
  'streams': (lambda **v: gs.qsgd(3, code='elias', **_ALL, **v), 'gather'),
  'dense_transport': (
    lambda **v: gs.gradient_dropping(0.9, **_ALL, **v),
    'sum',
  ),
  'dense_leaves': (lambda **v: gs.dgc(0.1, axis_name=AXIS, **v), 'sum'),
  'dense': (lambda **v: gs.dense(axis_name=AXIS, **v), 'sum'),
  'power_sgd': (lambda **v: gs.power_sgd(1, axis_name=AXIS, **v), 'sum'),
  'butterfly': (lambda **v: gs.gtopk(0.1, **_ALL, **v), 'permute'),
  'tree': (lambda **v: gs.gtopk(0.1, topology='tree', **_ALL, **v), 'permute'),
  'allgather': (
    lambda **v: gs.gtopk(0.1, topology='allgather', **_ALL, **v),
    'gather',
  ),
  'vote': (lambda **v: gs.sign_majority(**_ALL, **v), 'gather'),
  'parts': (
    lambda **v: gs.one_bit_sgd(exchange='reduce_scatter', **_ALL, **v),
    'all_to_all',
  ),
}
NAMES = marks.few(SCHEMES, 'all_gather')


@functools.cache
def outcome(name, verify):
  """(updates, state) after two steps."""
  tx = SCHEMES[name][0](verify=verify)
  state, step = simulation.simulated(tx, WORKERS)
  for seed in range(2):
    updates, state = step(simulation.gradients(WORKERS, seed), state)
  return jax.device_get((updates, state))


def without_bytes(state):
  return state._replace(stats=state.stats._replace(sent_bytes=0))


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_whole_messages_are_what_they_were(name):
  (updates, state), (plain, expected) = (
    outcome(name, v) for v in (True, False)
  )
  chex.assert_trees_all_equal(updates, plain)
  chex.assert_trees_all_equal(without_bytes(state), without_bytes(expected))
  np.testing.assert_array_equal(state.stats.rejected_steps, 0)
  assert np.all(state.stats.sent_bytes > expected.stats.sent_bytes)


def flipped(x, where):
  """x with a bit of one of its numbers changed, if `where` holds."""
  words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
  place = words.shape[0] // 2
  words = words.at[place].set(words[place] ^ where.astype(jnp.uint32))
  return jax.lax.bitcast_convert_type(words, x.dtype).reshape(x.shape)


def damage(method, worker):
  """Comm's method, of which one worker gets something else than was sent."""
  original = getattr(Comm, method)

  def changed(self, x, *args):
    out = original(self, x, *args)
    leaves, treedef = jax.tree.flatten(out)
    if not leaves:
      return out
    leaves[0] = flipped(leaves[0], self.index() == worker)
    return jax.tree.unflatten(treedef, leaves)

  return changed


@pytest.mark.parametrize('name', NAMES)
def test_all_reject_a_step_of_which_one_worker_got_something_else(
  name, monkeypatch
):
  make, method = SCHEMES[name]
  monkeypatch.setattr(Comm, method, damage(method, worker=1))
  state, step = simulation.simulated(make(verify=True), WORKERS)
  updates, after = step(simulation.gradients(WORKERS), state)
  assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(updates))
  np.testing.assert_array_equal(after.stats.rejected_steps, 1)
  chex.assert_trees_all_equal(after.compressor, state.compressor)


@pytest.mark.slow
def test_without_a_checksum_it_goes_unseen(monkeypatch):
  """So that the test above tests the checksum."""
  make, method = SCHEMES['all_gather']
  monkeypatch.setattr(Comm, method, damage(method, worker=1))
  state, step = simulation.simulated(make(), WORKERS)
  _, after = step(simulation.gradients(WORKERS), state)
  np.testing.assert_array_equal(after.stats.rejected_steps, 0)


@pytest.mark.slow
@pytest.mark.parametrize('check_vma', [True, False])
def test_the_plan_has_its_bytes(check_vma):
  tx = gs.dgc(0.1, axis_name=AXIS, verify=True)
  specs = gs.workers.specs(tx, simulation.PARAMS, WORKERS)
  own = jax.sharding.PartitionSpec(AXIS)
  step = gs.workers.parallel(
    lambda grads, state: tx.update(grads, state),
    runner='shard_map',
    num_workers=WORKERS,
    in_specs=(own, specs),
    out_specs=(jax.sharding.PartitionSpec(), specs),
    check_vma=check_vma,
  )
  state = gs.workers.init(tx, simulation.PARAMS, WORKERS)
  grads = simulation.gradients(WORKERS)
  audit = gs.audit(step.lower(grads, state).compile())
  plan = gs.plan(tx, simulation.PARAMS, WORKERS)
  plain = gs.plan(gs.dgc(0.1, axis_name=AXIS), simulation.PARAMS, WORKERS)
  assert audit.sent_bytes == plan.sent_bytes
  # A word to each of the others, and an all-reduce of three.
  assert plan.sent_bytes - plain.sent_bytes == 4 * (WORKERS - 1) + 16
  updates, state = step(grads, state)
  np.testing.assert_array_equal(state.stats.rejected_steps, 0)
  assert np.all(np.isfinite(updates['kernel']))


def test_verify_is_true_or_false():
  with pytest.raises(TypeError, match='verify must be True or False, got 1'):
    gs.dense(axis_name=AXIS, verify=1)


@pytest.mark.parametrize('name', gs.recipes.RECIPES)
def test_every_recipe_can(name):
  tx = example(name, axis_name=AXIS, verify=True)
  assert tx.scheme.verify


@pytest.mark.slow
@given(
  st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8),
  st.data(),
)
def test_every_changed_word_changes_the_checksum(words, data):
  x = np.array(words, np.uint32)
  place = data.draw(st.integers(0, len(words) - 1))
  y = x.copy()
  y[place] ^= np.uint32(data.draw(st.integers(1, 2**32 - 1)))
  assert checksum.of(x) != checksum.of(y)
