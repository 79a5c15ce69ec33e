"""Quantised reduce-scatter beside its oracle; sizes; the vote by parts."""

import math

import gradsparse as gs
from gradsparse import draws
from hypothesis import assume
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
from tests.oracles import checks
from tests.oracles import reduce_scatter

SEED = 11
SCATTER = dict(exchange='reduce_scatter', axis_name=replay.AXIS)


def check(step, mean, oracle):
  for leaf, expected in enumerate(mean):
    checks.close(step.mean[leaf], expected)
    for w in range(len(step.grads)):
      checks.close(step.delivered[w][leaf], oracle.delivered[w][leaf])
      checks.close(step.pending[w][leaf], oracle.pending[w][leaf])


# --- beside the oracle ------------------------------------------------------

# Every number of workers, whole and broken parts, parts that nobody needs.
SPACES = st.lists(
  st.sampled_from([(), (7,), (1, 9), (3, 40, 2), (60, 5), (400,)]),
  min_size=1,
  max_size=4,
)


@pytest.mark.slow
@settings(max_examples=4)
@given(st.integers(1, 8), st.integers(3, 45), SPACES, st.integers(0, 99))
def test_one_bit_does_what_its_oracle_does(workers, bucket, shapes, seed):
  tx = gs.one_bit_sgd(bucket_size=bucket, **SCATTER)
  oracle = reduce_scatter.OneBit(bucket_size=bucket)
  drawn = [replay.draw(workers, seed=seed + t, shapes=shapes) for t in range(4)]
  (row, *_) = gs.plan(tx, drawn[0][0], workers).rows
  assume('dense' not in row.transport)  # else parts would be larger
  for step in replay.replay(tx, [(g, g) for g in drawn]):
    check(step, oracle.step(step.grads), oracle)


@pytest.mark.parametrize('workers', marks.few(range(1, 9), 3))
def test_one_bit_of_a_few_buckets_owes_at_both_ends(workers):
  # 240 elements: the last bucket is a short one.
  tx = gs.one_bit_sgd(bucket_size=14, min_size=12, **SCATTER)
  oracle = reduce_scatter.OneBit(bucket_size=14, dense=(1, 2))
  for step in replay.replay(tx, replay.drawn_steps(workers)):
    check(step, oracle.step(step.grads), oracle)
  owed = [np.asarray(x) for x in step.state.exchange]
  assert not np.any(owed[1]) and not np.any(owed[2])
  flat = np.concatenate([owed[i].reshape(workers, -1) for i in (0, 3)], axis=1)
  # With one worker the second rounding finds its own two means again.
  assert np.max(np.abs(flat)) > 0.1 or workers == 1
  part = reduce_scatter.part_length(flat.shape[1], workers, 14)
  for w in range(workers):
    own = np.zeros(flat.shape[1], bool)
    own[w * part : (w + 1) * part] = True
    np.testing.assert_array_equal(flat[w][~own], 0)


_uniform = jax.jit(draws.uniform, static_argnums=1)


def uniforms(workers, size, bucket, t):
  """Seed, step, 1 + worker; for the second rounding 1 more; then 0."""
  part = reduce_scatter.part_length(size, workers, bucket)
  first, second = [], []
  for w in range(workers):
    key = jax.random.fold_in(jax.random.key(SEED), t)
    key = jax.random.fold_in(key, 1 + w)
    again = jax.random.fold_in(key, 1)
    for out, own, n in ((first, key, workers * part), (second, again, part)):
      drawn = _uniform(jax.random.fold_in(own, 0), (n // bucket, bucket))
      out.append(np.asarray(drawn).ravel())
  return [x[:size] for x in first], second


@pytest.mark.parametrize(
  'workers, levels, bucket, norm',
  marks.few(
    [
      (1, 7, 16, 'max'),
      (3, 7, 16, 'max'),
      (8, 2, 24, 'max'),
      (5, 5, 16, 'l2'),
      # What these lose could pile up, and is not kept.
      (3, 4, 16, 'l2'),
      (2, 1, 16, 'max'),
    ],
    (3, 7, 16, 'max'),
  ),
)
def test_qsgd_does_what_its_oracle_does(workers, levels, bucket, norm):
  tx = gs.qsgd(
    levels, bucket_size=bucket, norm=norm, min_size=0, seed=SEED, **SCATTER
  )
  oracle = reduce_scatter.QSGD(levels, bucket_size=bucket, norm=norm)
  owed = 0
  for t, step in enumerate(replay.replay(tx, replay.drawn_steps(workers))):
    size = sum(g.size for g in step.grads[0])
    mean = oracle.step(step.grads, *uniforms(workers, size, bucket, t))
    check(step, mean, oracle)
    owed += sum(np.count_nonzero(x) for x in step.pending[0])
    assert bool(step.metrics['residual_norm']) == oracle.feedback
  assert bool(jax.tree.leaves(step.state.exchange)) == oracle.feedback
  assert bool(owed) == oracle.feedback


@pytest.mark.slow
@pytest.mark.parametrize(
  'norm, levels',
  [('max', 2), ('l2', 5), ('l2', 1)],
)
def test_what_qsgd_owes_does_not_grow(norm, levels):
  """With norm 'l2' and one level it would, if it were kept."""
  tx = gs.qsgd(levels, bucket_size=16, norm=norm, min_size=0, **SCATTER)
  drawn = [replay.draw(2, seed=t, shapes=[(64,)]) for t in range(60)]
  norms = [
    step.metrics['residual_norm']
    for step in replay.replay(tx, [(g, g) for g in drawn])
  ]
  assert np.mean(norms[-20:]) <= 2 * np.mean(norms[1:21])


# --- sizes ------------------------------------------------------------------

# Two leaves of 21,500 elements together.
PARAMS = {'a': jnp.zeros((150, 100)), 'b': jnp.zeros(6500)}


@pytest.mark.parametrize('workers', marks.few([1, 2, 5, 8], 5))
@pytest.mark.parametrize(
  'make, bucket, words_of_a_part',
  [
    # 9 bits a level: s = 255.
    (
      lambda **k: gs.qsgd(255, bucket_size=100, min_size=0, **k),
      100,
      lambda n: n // 100 + math.ceil(9 * n / 32),
    ),
    (
      lambda **k: gs.qsgd(7, min_size=0, **k),
      512,
      lambda n: n // 512 + math.ceil(4 * n / 32),
    ),
    (gs.one_bit_sgd, 512, lambda n: 2 * n // 512 + math.ceil(n / 32)),
    (
      lambda **k: gs.one_bit_sgd(bucket_size=33, **k),
      33,
      lambda n: 2 * n // 33 + math.ceil(n / 32),
    ),
  ],
)
def test_two_halves_of_the_packed_vector_are_sent(
  make, bucket, words_of_a_part, workers
):
  words = words_of_a_part(reduce_scatter.part_length(21_500, workers, bucket))
  plan = gs.plan(make(**SCATTER), PARAMS, workers)
  assert plan.payload_bytes == 4 * workers * (1 + words)
  # A word of health goes with each part, there and not back.
  assert plan.sent_bytes == 4 * (workers - 1) * (1 + words + words)


def test_more_workers_hardly_send_more():
  params = {'w': jnp.zeros((512, 2048))}

  def sent(workers, **kwargs):
    return gs.plan(gs.one_bit_sgd(**kwargs), params, workers).sent_bytes

  few, many = (sent(p, axis_name=replay.AXIS) for p in (2, 8))
  assert many == 7 * few
  few, many = (sent(p, **SCATTER) for p in (2, 8))
  # A long message fills rows of 128 words, and a worker of eight sends more.
  assert many == pytest.approx(7 / 4 * few, rel=0.01)


def test_the_signs_sizes():
  # 132 signs are five words, and so two for each of three workers.
  plan = gs.plan(gs.sign_majority(**SCATTER), {'w': jnp.zeros((12, 11))}, 3)
  assert plan.payload_bytes == 4 * 3 * (1 + 2)
  assert plan.sent_bytes == 4 * 2 * (1 + 2 + 2)


# --- the vote ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('workers', range(1, 9))
def test_the_vote_by_parts_is_the_vote_of_all(workers):
  """To the bit; whole numbers, so that there are ties and zeros."""
  rng = np.random.default_rng(workers)
  drawn = []
  for _ in range(3):
    trees = [
      [np.float32(rng.integers(-1, 2, s)) for s in replay.SHAPES]
      for _ in range(workers)
    ]
    drawn.append((trees, trees))
  make = lambda exchange: gs.sign_majority(
    scale=0.5, memory=True, exchange=exchange, axis_name=replay.AXIS
  )
  for whole, parts in zip(
    replay.replay(make('all_gather'), drawn),
    replay.replay(make('reduce_scatter'), drawn),
    strict=True,
  ):
    for name in ('mean', 'delivered', 'pending'):
      jax.tree.map(
        np.testing.assert_array_equal,
        getattr(whole, name),
        getattr(parts, name),
      )


# --- what is around it ------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize('runner', gs.workers.RUNNERS)
def test_what_the_exchange_owes_is_local_inside_of_multi_steps_too(runner):
  tx = optax.MultiSteps(
    optax.chain(
      gs.qsgd(7, bucket_size=32, min_size=0, **SCATTER), optax.sgd(1.0)
    ),
    2,
  )
  params = {'w': jnp.zeros((6, 5))}
  specs = gs.workers.specs(tx, params, 2)
  assert specs.inner_opt_state[0].exchange == {'w': P(replay.AXIS)}
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state, params),
    runner=runner,
    num_workers=2,
    in_specs=(specs, replay.OWN),
    out_specs=(P(), specs),
  )
  state = gs.workers.init(tx, params, 2)
  for t in range(2):
    grads = {'w': np.stack([x[0] for x in replay.draw(2, seed=t)])[:, :, 0, 0]}
    grads = {'w': np.resize(grads['w'], (2, 6, 5)) * np.float32(t + 1)}
    updates, state = fn(state, grads)
  assert np.any(updates['w'])
  pending = np.asarray(gs.pending(state)['w']).reshape(2, -1)
  assert np.any(pending[0]) and not np.any(pending[1])


def test_a_code_that_is_not_of_parts_is_refused():
  compressor = gs.extend.compressors.identity(
    'one_bit_sgd', gs.extend.codes.one_bit.of_leaves()
  )
  with pytest.raises(ValueError, match='one_bit_sgd cannot go through reduce'):
    gs.compressed_mean(
      gs.extend.memories.residual(),
      compressor,
      gs.extend.exchanges.reduce_scatter(),
      axis_name=None,
    )
