"""Chunk-wise selection in gradient dropping and DGC, beside their oracles."""

from __future__ import annotations

import gradsparse as gs
from hypothesis import Phase
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import checks
from tests.oracles import chunks
from tests.oracles import dgc
from tests.oracles import gradient_dropping
from tests.oracles import wire_sizes

# Dense by the rule of all leaf-wise schemes: fewer than two dimensions.
DENSE = tuple(i for i, s in enumerate(replay.SHAPES) if len(s) < 2)
# 120 = 3 * 32 + 24: the kernel and the matrix end in a shorter run.
CHUNK = dict(scope='chunk', chunk_size=32)
ALL = dict(axis_name=replay.AXIS, min_size=0)

SCHEMES = {
  'gradient_dropping': (
    gs.gradient_dropping,
    gradient_dropping.GradientDropping,
  ),
  'dgc': (gs.dgc, dgc.DeepGradientCompression),
}


def compare(tx, oracle, steps):
  """Means, what was delivered and what is pending, step by step."""
  for step in replay.replay(tx, [(g, g) for g in steps]):
    for leaf, expected in enumerate(oracle.step(step.grads)):
      checks.close(step.mean[leaf], expected)
      if leaf in oracle.dense:
        continue
      for w in range(len(step.grads)):
        checks.close(step.delivered[w][leaf], oracle.delivered[w][leaf])
        checks.close(step.pending[w][leaf], oracle.pending[w][leaf])


def drawn(num_workers, shapes=replay.SHAPES):
  return [replay.draw(num_workers, seed=t, shapes=shapes) for t in range(4)]


@pytest.mark.parametrize(
  'num_workers',
  [3, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 5, 8))],
)
@pytest.mark.parametrize('name', marks.few(SCHEMES, 'dgc'))
def test_it_does_what_its_oracle_does(name, num_workers):
  recipe, oracle = SCHEMES[name]
  compare(recipe(0.1, **CHUNK, **ALL), oracle(0.1, **CHUNK), drawn(num_workers))


@pytest.mark.slow
@pytest.mark.parametrize('name', SCHEMES)
def test_vectors_and_scalars_stay_dense_by_default(name):
  recipe, oracle = SCHEMES[name]
  tx = recipe(0.1, axis_name=replay.AXIS, **CHUNK)
  compare(tx, oracle(0.1, dense=DENSE, **CHUNK), drawn(2))


@pytest.mark.slow
@pytest.mark.parametrize('factor_masking', [True, False])
@pytest.mark.parametrize('nesterov', [False, True])
def test_dgc_in_all_its_forms(nesterov, factor_masking):
  form = dict(nesterov=nesterov, factor_masking=factor_masking, **CHUNK)
  tx = gs.dgc(0.1, **form, **ALL)
  compare(tx, dgc.DeepGradientCompression(0.1, **form), drawn(3))


@pytest.mark.slow
def test_a_thick_message_changes_the_transport_only():
  """Four workers at 0.7 use a dense all-reduce; the selection stays."""
  tx = gs.gradient_dropping(0.7, **CHUNK, **ALL)
  compare(tx, gradient_dropping.GradientDropping(0.7, **CHUNK), drawn(4))
  params = [np.zeros(s, np.float32) for s in replay.SHAPES]
  plan = gs.plan(tx, params, 4)
  assert plan.payload_bytes == plan.dense_bytes


SHAPES = st.lists(
  st.sampled_from([(), (1,), (7,), (40,), (5, 8), (3, 2, 11), (64, 3)]),
  min_size=1,
  max_size=3,
)


# A program an example: small as they are, they are not shrunk.
@pytest.mark.slow
@settings(max_examples=4, phases=(Phase.generate,))
@given(
  st.integers(1, 8),
  st.integers(1, 70),
  st.sampled_from([0.001, 0.05, 0.25, 0.6, 1.0]),
  SHAPES,
  st.integers(0, 99),
)
def test_any_shapes_with_ties(num_workers, chunk_size, density, shapes, seed):
  """Small whole numbers: their sums are exact, and many are tied."""
  rng = np.random.default_rng(seed)
  steps = [
    [
      [rng.integers(-3, 4, s).astype(np.float32) for s in shapes]
      for _ in range(num_workers)
    ]
    for _ in range(3)
  ]
  chunk = dict(scope='chunk', chunk_size=chunk_size)
  tx = gs.gradient_dropping(density, **chunk, **ALL)
  oracle = gradient_dropping.GradientDropping(density, **chunk)
  compare(tx, oracle, steps)


@pytest.mark.slow
def test_each_chunk_sends_its_own_k():
  """The default chunk of 4096, where one chunk has all that is large."""
  rng = np.random.default_rng(0)
  grads = rng.normal(size=10_000).astype(np.float32)
  grads[:4096] *= 1e6
  tx = gs.gradient_dropping(0.001, scope='chunk', **ALL)
  trees = [[grads]]
  (step,) = replay.replay(tx, [(trees, trees)])
  sent = np.flatnonzero(step.mean[0])
  # ceil(4.096), twice, and ceil(1.808) of the last 1808.
  assert chunks.counts(10_000, 0.001, 4096) == [5, 5, 2]
  assert sent.tolist() == chunks.largest(grads, 0.001, 4096)
  assert step.metrics['sent_elements'] == 12


CUT = {
  'gradient_dropping': gs.gradient_dropping,
  'dgc': gs.dgc,
  'ef21': gs.ef21,
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CUT)
def test_a_leaf_cut_between_chunks_gives_the_same_bits(name):
  """One leaf of two chunks, and two leaves of one: as when it is sharded."""
  tx = CUT[name](0.2, scope='chunk', chunk_size=20, **ALL)
  whole = drawn(3, shapes=((40,),))
  cut = [[[g[:20], g[20:]] for (g,) in trees] for trees in whole]
  steps = [replay.replay(tx, [(g, g) for g in grads]) for grads in (whole, cut)]
  for one, two in zip(*steps, strict=True):
    np.testing.assert_array_equal(one.mean[0], np.concatenate(two.mean))
    for w in range(3):
      for field in ('delivered', 'pending'):
        a, b = (getattr(step, field)[w] for step in (one, two))
        np.testing.assert_array_equal(a[0], np.concatenate(b))
        assert np.any(a[0])


# --- what it costs to send ---------------------------------------------------

# Beyond whole words: the ends of the streams that a message is made of.
SLACK = 32


@pytest.mark.parametrize('k', marks.few([4, 5, 41], 5))
@pytest.mark.parametrize('name', marks.few(CUT, 'gradient_dropping'))
def test_an_index_of_whole_chunks_takes_no_more_than_its_place_in_a_chunk(
  name, k
):
  """12 bits and a float32 an element, and the vector as it is."""
  shapes = {'bias': (300,), 'embedding': (10, 8192), 'kernel': (3, 64, 64)}
  params = {leaf: jnp.zeros(shape) for leaf, shape in shapes.items()}
  tx = CUT[name](k / 4096, scope='chunk', axis_name=replay.AXIS)
  del shapes['bias']
  count = wire_sizes.chunk_count(shapes, k / 4096, 4096)
  assert count == 23 * k
  bits = count * (32 + wire_sizes.chunk_index_bits(4096))
  payload = gs.plan(tx, params, 2).payload_bytes
  assert 4 * count < payload - 4 * 300 <= bits / 8 + SLACK


def test_short_runs_cost_no_more_than_sorted_indices_do():
  """One of each run, and the last runs shorter: Elias-Fano of all together."""
  shapes = {'a': (50, 50), 'b': (9, 9), 'c': (13, 100)}
  params = {leaf: jnp.zeros(shape) for leaf, shape in shapes.items()}
  tx = gs.gradient_dropping(0.001, scope='chunk', chunk_size=128, **ALL)
  count = wire_sizes.chunk_count(shapes, 0.001, 128)
  assert count == 20 + 1 + 11
  bits = 32 * count + wire_sizes.elias_fano_bits(count, 2500 + 81 + 1300)
  assert gs.plan(tx, params, 2).payload_bytes <= bits / 8 + SLACK


# --- wrong arguments ---------------------------------------------------------


@pytest.mark.parametrize('name', CUT)
def test_a_chunk_has_at_least_one_element(name):
  with pytest.raises(ValueError, match='chunk_size must be at least 1, got 0'):
    CUT[name](0.1, scope='chunk', chunk_size=0, **ALL)
  with pytest.raises(TypeError, match='chunk_size'):
    CUT[name](0.1, scope='chunk', chunk_size=2.5, **ALL)


def test_gtopk_has_no_chunks():
  """It merges sums over the whole group."""
  with pytest.raises(ValueError, match="scope must be .*'global'"):
    gs.gtopk(0.1, scope='chunk', axis_name=replay.AXIS)
