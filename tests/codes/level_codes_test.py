"""QSGD's levels on the wire: Elias streams carry what fixed width carries."""

import math

import gradsparse as gs
from gradsparse.codes import level_codes
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.oracles import qsgd as oracle
from tests.wire import bit_strings

# (levels, code, elias): every kind, both codes, and the two automatic ones.
STREAMS = [
  (7, 'elias_dense', 'omega'),
  (7, 'elias_dense', 'gamma'),
  (255, 'elias_dense', 'delta'),
  (65_534, 'elias_dense', 'unary'),
  (1, 'elias_sparse', 'omega'),
  (3, 'elias_sparse', 'gamma'),
  (127, 'elias_sparse', 'delta'),
  (15, 'elias_sparse', 'unary'),
]
N = 600


def levels_drawn(kind, levels):
  """int32[N]: what an encoder can meet."""
  rng = np.random.default_rng(levels)
  signs = rng.choice([-1, 1], N)
  if kind == 'zeros':
    return np.zeros(N, np.int32)
  if kind == 'one nonzero':
    return np.int32(signs * levels * (np.arange(N) == N - 1))
  if kind == 'few':
    where = rng.random(N) < 0.02
    return np.int32(signs * where * rng.integers(1, levels + 1, N))
  if kind == 'gaussian':
    x = rng.normal(size=N)
    return np.int32(np.round(levels * x / np.max(np.abs(x))))
  return np.int32(signs * levels)  # the worst case


KINDS = ('zeros', 'one nonzero', 'few', 'gaussian', 'worst')


@pytest.mark.slow
@pytest.mark.parametrize('levels, code, elias', STREAMS)
def test_the_first_words_of_a_message_are_all_that_is_needed(
  levels, code, elias
):
  stream = level_codes.level_code(code, levels, 512, elias)
  sizes = stream.sizes(N)
  width = math.ceil(math.log2(2 * levels + 1))
  # One word beside the fixed width says which of the two it is.
  assert sizes[-1] == 1 + -(-N * width // 32)

  @jax.jit
  def through(signed):
    words, used = stream.encode([signed])
    travelled = jnp.where(jnp.arange(sizes[-1]) < used, words, 0)
    (back,) = stream.decode(travelled, [(N,)])
    return back, used, words.shape

  shortest = sizes[-1]
  for kind in KINDS:
    signed = levels_drawn(kind, levels)
    back, used, shape = through(signed)
    np.testing.assert_array_equal(back, signed)
    assert shape == (sizes[-1],) and used <= sizes[-1]
    shortest = min(shortest, int(used))
    if kind == 'worst' and elias != 'unary':
      assert used == sizes[-1]
  # A sparse stream of nothing: which code it is, and how many nonzeros.
  assert shortest == (2 if code == 'elias_sparse' else sizes[0])


@pytest.mark.parametrize(
  'levels, bucket_size, same_as',
  [
    pytest.param(1, 512, 'elias_sparse', marks=pytest.mark.slow),
    (22, 512, 'elias_sparse'),
    (23, 512, 'elias_dense'),
    (7, 49, 'elias_dense'),
  ],
)
def test_elias_takes_the_sparse_code_where_most_levels_are_zero(
  levels, bucket_size, same_as
):
  """Where levels^2 < bucket_size: the codes' streams differ in length."""
  signed = jnp.asarray(levels_drawn('few', levels))

  @jax.jit
  def words(signed):
    streams = (
      level_codes.level_code(code, levels, bucket_size, 'omega')
      for code in ('elias', 'elias_sparse', 'elias_dense')
    )
    return [stream.encode([signed])[1] for stream in streams]

  used = dict(
    zip(('elias', 'elias_sparse', 'elias_dense'), words(signed), strict=True)
  )
  assert used['elias_sparse'] != used['elias_dense']
  assert used['elias'] == used[same_as]


@pytest.mark.parametrize('least, most', [(1, 187_501), (2, 20), (5, 5)])
def test_a_ladder_wastes_little(least, most):
  """2 % over three octaves, and 12 % over seven more."""
  sizes = level_codes.ladder(least, most)
  assert sizes[-1] == most and least <= sizes[0]
  assert sizes[0] <= max(least, math.ceil(most / 1024))
  assert list(sizes) == sorted(set(sizes))
  # docs/architecture.md says why these are no rungs of a `Ladder`.
  assert len(sizes) in (range(101, 141) if most > 1000 else range(1, 30))
  for small, large in zip(sizes[:-1], sizes[1:], strict=True):
    step = 1.023 if small >= most / 8 else 1.123
    # Of whole words; whoever needs one more than `small` gets `large`.
    assert large <= step * (small + 1)


# --- the whole scheme -------------------------------------------------------

SHAPES = ((9, 8), (500,))


def schemes(levels, code, elias):
  arguments = dict(bucket_size=64, min_size=0, axis_name=replay.AXIS, seed=2)
  return (
    gs.qsgd(levels, code='fixed', **arguments),
    gs.qsgd(levels, code=code, elias=elias, **arguments),
  )


def data():
  """Nothing; a few numbers; all equal; mostly small; normal."""
  zeros = [[np.zeros(s, np.float32) for s in SHAPES] for _ in range(3)]
  few = [[x.copy() for x in tree] for tree in zeros]
  few[1][0][3, 4] = 0.25
  few[2][1][17] = -2.0
  equal = [[np.full(s, 0.5, np.float32) for s in SHAPES] for _ in range(3)]
  rng = np.random.default_rng(0)
  small = [
    [np.float32(rng.uniform(0.02, 0.1, s)) for s in SHAPES] for _ in range(3)
  ]
  for tree in small:
    for x in tree:
      x.flat[::64] = -1
  normal = replay.draw(3, seed=0, shapes=SHAPES)
  return [(g, g) for g in (zeros, few, equal, small, normal)]


@pytest.mark.slow
@pytest.mark.parametrize(
  'levels, code, elias',
  [
    (7, 'elias_dense', 'omega'),
    pytest.param(1, 'elias_sparse', 'omega', marks=pytest.mark.slow),
    pytest.param(3, 'elias', 'gamma', marks=pytest.mark.slow),
    pytest.param(65_534, 'elias_dense', 'unary', marks=pytest.mark.slow),
    pytest.param(127, 'elias', 'delta', marks=pytest.mark.slow),
  ],
)
def test_streams_and_fixed_width_give_the_same_updates(levels, code, elias):
  """To the bit: only the wire differs, and the draws are of the same seed."""
  fixed, stream = schemes(levels, code, elias)
  params = [jnp.zeros(s) for s in SHAPES]
  payloads = [payload for payload, _ in gs.plan(stream, params, 3).rungs]
  assert payloads == sorted(set(payloads))
  widest = gs.plan(fixed, params, 3).payload_bytes
  assert payloads[-1] == 4 + widest
  used = []
  pairs = zip(
    replay.replay(fixed, data()), replay.replay(stream, data()), strict=True
  )
  for number, (plain, coded) in enumerate(pairs):
    for a, b in zip(plain.mean, coded.mean, strict=True):
      np.testing.assert_array_equal(a, b)
      assert np.any(a) == (number > 0)
    both = plain.delivered, coded.delivered
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert plain.metrics['payload_bytes'] == widest
    used.append(payloads.index(coded.metrics['payload_bytes']))
    assert coded.metrics['overflow_elements'] == 0
  zeros, few, equal, *_ = used
  assert zeros <= few < equal
  if elias != 'unary':
    # Where the numbers of a bucket are equal all are at the highest level, and
    # that is what fixed width is for.
    assert equal == len(payloads) - 1


# --- bits on the wire -------------------------------------------------------


def message_bits(tx, all_grads):
  """(Bits of a worker's message, what each delivered) of each step."""
  params = [np.zeros_like(all_grads[0][0][0])]
  planned = [payload for payload, _ in gs.plan(tx, params, 2).rungs]
  out = []
  for step in replay.replay(tx, [(grads, grads) for grads in all_grads]):
    assert step.metrics['payload_bytes'] in planned
    out.append((8 * step.metrics['payload_bytes'], step.delivered))
  return out


def signed_levels(v, delivered, levels):
  scale = np.linalg.norm(v.astype(np.float64))
  exact = delivered.astype(np.float64) * levels / scale
  signed = np.round(exact).astype(int)
  np.testing.assert_allclose(signed, exact, atol=0.01)
  return signed


def gaussians(n, seed=0):
  rng = np.random.default_rng([n, seed])
  return [[rng.normal(size=n).astype(np.float32)] for _ in range(2)]


def whole_vector(n, levels, code, elias='omega'):
  return gs.qsgd(
    levels,
    bucket_size=n,
    norm='l2',
    code=code,
    elias=elias,
    min_size=0,
    axis_name=replay.AXIS,
  )


# Words beside the stream that say how long it is, and whether its sender is
# healthy; block lengths come on top.
BESIDE = 32 * 2


@pytest.mark.slow
@pytest.mark.parametrize(
  'n, levels',
  [
    (1000, 1),
    pytest.param(10_000, 1, marks=pytest.mark.slow),
    pytest.param(1000, 4, marks=pytest.mark.slow),
    pytest.param(100_000, 1, marks=pytest.mark.slow),
    pytest.param(10_000, 16, marks=pytest.mark.slow),
    pytest.param(100_000, 16, marks=pytest.mark.slow),
    pytest.param(1_000_000, 1, marks=pytest.mark.slow),
  ],
)
def test_the_sparse_code_travels_within_the_bound_of_theorem_3_2(n, levels):
  """In expectation: the mean of some steps, of the longer of two messages."""
  steps = message_bits(
    whole_vector(n, levels, 'elias_sparse'),
    [gaussians(n, seed) for seed in range(8)],
  )
  most = max(np.count_nonzero(q[0]) for _, both in steps for q in both)
  # A word for the number of nonzeros, and at most 14 bits a block of 128.
  lengths = 32 * (1 + -(-(most // 128) * 14 // 32))
  bound = oracle.expected_bits_bound(n, levels)
  mean = np.mean([bits for bits, _ in steps])
  assert mean <= 1.03 * bound + lengths + BESIDE


@pytest.mark.slow
@pytest.mark.parametrize(
  'elias, expected',
  marks.few([('omega', 2.94), ('unary', 2.43)], ('omega', 2.94)),
)
@pytest.mark.parametrize(
  'n',
  [
    10_000,
    pytest.param(1000, marks=pytest.mark.slow),
    pytest.param(100_000, marks=pytest.mark.slow),
  ],
)
def test_the_dense_code_travels_within_3_percent_of_its_stream(
  n, elias, expected
):
  """With s = sqrt(n). Unary is within corollary 3.3's 2.8 n + 32 too."""
  grads, levels = gaussians(n), math.ceil(math.sqrt(n))
  tx = whole_vector(n, levels, 'elias_dense', elias)
  ((bits, delivered),) = message_bits(tx, [grads])
  code = bit_strings.CODES[elias]
  lengths = np.array([len(code(k + 1)) + (k > 0) for k in range(levels + 1)])
  streams = [
    np.sum(lengths[np.abs(signed_levels(v[0], q[0], levels))])
    for v, q in zip(grads, delivered, strict=True)
  ]
  assert max(streams) / n == pytest.approx(expected, rel=0.03)
  # At most 13 bits a block of 256.
  words = 32 * -(-(n // 256) * 13 // 32)
  assert max(streams) <= bits - 32 <= 1.03 * max(streams) + words + BESIDE
  if elias == 'unary':
    assert bits <= 1.03 * (2.8 * n + 32) + words + BESIDE


@pytest.mark.slow
def test_as_many_levels_as_theory_asks_for():
  """s = sqrt(n) above n = 65,025: neighbours of the exact level, unbiased."""
  n, levels = 1000, 65_534
  grads = gaussians(n)
  tx = whole_vector(n, levels, 'elias_dense', 'unary')
  ((_, delivered),) = message_bits(tx, [grads])
  for v, q in zip(grads, delivered, strict=True):
    step = np.linalg.norm(v[0]) / levels
    assert np.max(np.abs(v[0] - q[0])) < 1.01 * step
    # The error of a rounding that is unbiased, and not of one to nearest.
    assert abs(np.mean(v[0] - q[0])) < 4 * step / math.sqrt(n)
    assert np.max(np.abs(v[0] - q[0])) > 0.8 * step


@pytest.mark.slow
def test_plan_and_audit_list_every_size_of_a_message():
  """On devices, and beside a leaf that stays dense."""
  tx = gs.qsgd(
    7,
    bucket_size=64,
    code='elias_dense',
    dense_paths='bias',
    min_size=0,
    axis_name=replay.AXIS,
  )
  params = {'kernel': np.zeros((20, 25), np.float32), 'bias': np.zeros(3)}
  plan = gs.plan(tx, params, 2)
  # Health, a norm for each of 8 buckets, which code it is, 500 levels.
  beside = 4 * (1 + 8)
  fixed = 4 * (1 + 500 * 4 // 32 + 1)
  payload, sent = zip(*plan.rungs, strict=True)
  assert payload[-1] == plan.payload_bytes == beside + fixed + 12
  assert [p - 12 for p in payload] == list(sent)
  specs = gs.workers.specs(tx, params, 2)
  state = gs.workers.init(tx, params, 2)
  fn = gs.workers.parallel(
    lambda state, g: tx.update(g, state),
    runner='shard_map',
    num_workers=2,
    in_specs=(specs, replay.OWN),
    out_specs=(P(), specs),
  )
  grads = jax.tree.map(lambda p: np.ones((2, *p.shape), np.float32), params)
  grads['kernel'][1, 4:] = 0
  compiled = fn.lower(state, grads).compile(replay.QUICKLY)
  audit = gs.audit(compiled)
  assert audit.branches == (sent,)
  assert audit.sent_bytes == plan.sent_bytes
  mean, state = compiled(state, grads)
  np.testing.assert_allclose(mean['kernel'][:4], 1, rtol=1e-6)
  np.testing.assert_allclose(mean['kernel'][4:], 0.5, rtol=1e-6)
  # The first worker's levels are all the largest: no stream is as short.
  assert gs.metrics(state)['payload_bytes'] == plan.payload_bytes
  grads['kernel'][0] = 0
  _, state = compiled(state, grads)
  assert gs.metrics(state)['payload_bytes'] in payload[:-1]
