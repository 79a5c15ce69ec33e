"""What goes in comes out or is pending, while schemes follow one another.

Numbers of workers follow one another, too.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import chex
import gradsparse as gs
from hypothesis import given
from hypothesis import strategies as st
import jax
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import replay
from tests import schemes
from tests.fuzz import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Their memories are sums of gradients, and take each other's over.
SETTINGS = (
  'dropping',
  'dropping_exponent4',
  'dropping_schedule',
  'gtopk_tree',
  'variance_qsgd4',
  'one_bit_scatter',
  'sign_memory',
  'random_k_memory',
  'power_sgd',
)
# Where nothing but the density changes, the state goes on as it is.
DENSITIES = {'dropping': (0.02, 0.4), 'gtopk_tree': (0.02, 0.4)}


class Program(NamedTuple):
  """One scheme of a sequence, compiled.

  Attributes:
    name: of the setting.
    tx: the scheme, `every` around it.
    dense: which leaves stay dense.
    num_workers: P.
    step: (state, grads, moments) -> (updates, state).
  """

  name: str
  tx: Any
  dense: Any
  num_workers: int
  step: Any


@functools.cache
def compiled(name, density, num_workers, every) -> Program:
  setting = schemes.BY_NAME[name]
  if density is not None:
    setting = setting._replace(args=(density,))
  scheme = setting.make()
  tx = gs.accumulate(scheme, every=every)
  specs = gs.workers.specs(tx, programs.PARAMS, num_workers)
  fn = gs.workers.parallel(
    lambda state, g, m: tx.update(g, state, second_moment=m),
    runner='simulate',
    num_workers=num_workers,
    in_specs=(specs, programs.OWN, programs.OWN),
    out_specs=(P(), specs),
  )
  grads = programs.normal(num_workers, 0)
  state = gs.workers.init(tx, programs.PARAMS, num_workers)
  step = fn.lower(state, grads, programs.moments(grads))
  dense = scheme.layout(programs.PARAMS).is_dense()
  return Program(name, tx, dense, num_workers, step.compile(replay.QUICKLY))


class Segment(NamedTuple):
  """Some exchanges of one scheme between as many workers.

  Attributes:
    setting: name.
    density: or None where it stays that of the setting.
    num_workers: P.
    spoiled: for each exchange the worker whose gradient is, or None.
  """

  setting: str
  density: float | None
  num_workers: int
  spoiled: list[int | None]


@st.composite
def segments(draw):
  name = draw(st.sampled_from(SETTINGS))
  density = draw(st.sampled_from(DENSITIES.get(name, (None,))))
  spoiled = draw(
    st.lists(st.sampled_from((None, None, None, 0, 1)), min_size=1, max_size=4)
  )
  return Segment(name, density, draw(st.sampled_from((2, 3))), spoiled)


class Ledger:
  """Sums in float64, in units of the update: means over workers."""

  def __init__(self):
    zero = programs.wide(programs.PARAMS)
    self.went_in, self.came_out, self.size = zero, zero, zero

  def add(self, grads, updates):
    plus = functools.partial(jax.tree.map, np.add)
    self.went_in = plus(self.went_in, grads)
    self.came_out = plus(self.came_out, updates)
    self.size = plus(self.size, programs.sizes(grads, updates))

  def check(self, state, num_workers):
    pending = programs.wide(gs.pending(state))
    for name, owed in pending.items():
      found = np.sum(owed, axis=0) / num_workers + self.came_out[name]
      expected, size = self.went_in[name], self.size[name]
      # Codes of parts and of matrices mix the elements of a leaf.
      fits = np.abs(found - expected) <= 4e-6 * (np.max(size) + 1)
      assert np.all(fits), (
        f'of {name}, {found[~fits]} is pending or came out, and '
        f'{expected[~fits]} went in'
      )


def taken_in(grads, dense, spoiled, num_workers):
  """What a step adds to what is owed, as a part of the update.

  Of a rejected step nothing but what the healthy workers keep, and they keep
  nothing of leaves that stay dense.
  """

  def one(g, whole):
    g = np.asarray(g, np.float64)
    if spoiled is not None:
      g[spoiled] = 0
      g *= not whole
    return np.sum(g, axis=0) / num_workers

  return jax.tree.map(one, grads, dense)


def exchange(program, state, every, spoiled, seed, ledger):
  """As many mini-steps as lead to an exchange; returns the state after it."""
  number = program.num_workers
  all_grads = []
  for mini in range(every):
    grads = programs.normal(number, [seed, mini])
    all_grads.append(programs.wide(grads))
    second = programs.moments(grads)
    if spoiled is not None and mini == seed % every:
      grads['bias'][spoiled, 3] = np.nan
    updates, state = program.step(state, grads, second)
    if mini < every - 1:
      assert not any(np.any(u) for u in jax.tree.leaves(updates))
  mean = jax.tree.map(lambda *g: sum(g) / every, *all_grads)
  if spoiled is not None:
    assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
    updates = jax.tree.map(np.zeros_like, updates)
  ledger.add(taken_in(mean, program.dense, spoiled, number), updates)
  return state


def owes_what_becomes_dense(old, new, state):
  """Whether a switch would lose something of a leaf."""
  return old.name != new.name and any(
    new.dense[name] and not old.dense[name] and np.any(owed)
    for name, owed in gs.pending(state).items()
  )


def handed_over(old, new, state):
  """The state with which another scheme goes on, or other workers, or both."""
  if old.name != new.name:
    before = gs.pending(state)
    state = gs.switch(old.tx, new.tx, state)
    chex.assert_trees_all_equal(gs.pending(state), before)
  return gs.workers.resize(new.tx, state, new.num_workers)


@programs.budget(40)
@given(
  st.lists(segments(), min_size=2, max_size=4),
  st.sampled_from((1, 3)),
  st.integers(0, 2**32 - 1),
)
def test_what_went_in_is_pending_or_came_out(sequence, every, seed):
  ledger, state, old = Ledger(), None, None
  for segment in sequence:
    number = segment.num_workers
    new = compiled(segment.setting, segment.density, number, every)
    if old is None:
      state = gs.workers.init(new.tx, programs.PARAMS, number)
    else:
      if owes_what_becomes_dense(old, new, state):
        with pytest.raises(ValueError, match='dense, so pending values'):
          gs.switch(old.tx, new.tx, state)
        # As the message says: by way of a step that delivers all of it.
        full = compiled('dropping', 1.0, old.num_workers, every)
        state = handed_over(old, full, state)
        state = exchange(full, state, every, None, seed, ledger)
        ledger.check(state, full.num_workers)
        old = full
      state = handed_over(old, new, state)
      ledger.check(state, number)
    for who in segment.spoiled:
      seed = (seed + 1) % 2**32
      state = exchange(new, state, every, who, seed, ledger)
      ledger.check(state, number)
    old = new
