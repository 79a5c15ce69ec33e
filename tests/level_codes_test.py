"""QSGD's levels on the wire: Elias streams carry what fixed width carries."""

import gradsparse as gs
from gradsparse.compressors import level_codes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay

# (levels, code, elias): every kind, both codes, and the two automatic ones.
STREAMS = [
  (7, 'elias_dense', 'omega'),
  (7, 'elias_dense', 'gamma'),
  (255, 'elias_dense', 'delta'),
  (3, 'elias_dense', 'unary'),
  (1, 'elias_sparse', 'omega'),
  (3, 'elias_sparse', 'gamma'),
  (127, 'elias_sparse', 'delta'),
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


@pytest.mark.parametrize('levels, code, elias', STREAMS)
def test_a_stream_is_exact_at_the_smallest_rung_that_holds_it(
  levels, code, elias
):
  stream = level_codes.level_code(code, levels, 512, elias)
  fixed = level_codes.level_code('fixed', levels, 512, elias)
  rungs = stream.rungs(N)
  assert list(rungs) == sorted(set(rungs))
  assert rungs[-1:] == fixed.rungs(N)
  words = jax.jit(stream.words)
  used = set()
  for kind in KINDS:
    signed = levels_drawn(kind, levels)
    need = int(words(signed))
    number = min(sum(r < need for r in rungs[:-1]), len(rungs) - 1)
    used.add(number)

    def through(x, rung=rungs[number]):
      payload = stream.encode(x, rung)
      size = sum(leaf.size for leaf in jax.tree.leaves(payload))
      return stream.decode(payload, N, rung), size

    compiled = jax.jit(through).lower(signed).compile(replay.QUICKLY)
    back, size = compiled(signed)
    np.testing.assert_array_equal(back, signed)
    # Block lengths included, no rung costs more than the fixed width.
    assert size <= rungs[-1]
  assert 0 in used
  if elias != 'unary':
    assert len(rungs) - 1 in used
  assert len(used) >= 2


@pytest.mark.parametrize(
  'levels, bucket_size, same_as',
  [
    (1, 512, 'elias_sparse'),
    (22, 512, 'elias_sparse'),
    (23, 512, 'elias_dense'),
    (7, 49, 'elias_dense'),
  ],
)
def test_elias_takes_the_sparse_code_where_most_levels_are_zero(
  levels, bucket_size, same_as
):
  """Where levels^2 < bucket_size: the codes' streams differ in length."""
  signed = levels_drawn('few', levels)
  lengths = {
    code: int(
      level_codes.level_code(code, levels, bucket_size, 'omega').words(signed)
    )
    for code in ('elias', 'elias_sparse', 'elias_dense')
  }
  assert lengths['elias_sparse'] != lengths['elias_dense']
  assert lengths['elias'] == lengths[same_as]


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


@pytest.mark.parametrize(
  'levels, code, elias, first, rungs',
  [
    # 1/4 of 4 bits: exactly the bit an element that zeros take.
    (7, 'elias_dense', 'omega', 1 / 4, [0, 1, 2, 1]),
    (1, 'elias_sparse', 'omega', 1 / 4, [0, 0, 2, 1]),
    pytest.param(
      3, 'elias', 'gamma', 3 / 8, [0, 0, 2, 1], marks=pytest.mark.slow
    ),
    pytest.param(
      3, 'elias_dense', 'unary', 3 / 8, [0, 0, 2, 1], marks=pytest.mark.slow
    ),
    pytest.param(
      127, 'elias', 'delta', 3 / 8, [0, 0, 2, 2], marks=pytest.mark.slow
    ),
  ],
)
def test_streams_and_fixed_width_give_the_same_updates(
  levels, code, elias, first, rungs, monkeypatch
):
  """To the bit: only the wire differs, and the draws are of the same seed."""
  # Compiling is what costs here: three rungs instead of nine.
  monkeypatch.setattr(level_codes, '_LADDER', (first, 3 / 4))
  fixed, stream = schemes(levels, code, elias)
  params = [jnp.zeros(s) for s in SHAPES]
  payloads = [payload for payload, _ in gs.plan(stream, params, 3).rungs]
  assert len(payloads) == 3 and payloads == sorted(set(payloads))
  widest = gs.plan(fixed, params, 3).payload_bytes
  assert payloads[-1] == widest
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
  # Where the numbers of a bucket are equal all are at the highest level, and
  # that is what fixed width is for.
  assert used[:4] == rungs


def test_the_ladder_begins_where_the_code_can():
  """Nine sizes down to a sixteenth; but dense codes take a bit an element."""
  n = 100_000
  for code, least in (('elias_dense', 1), ('elias_sparse', 4 / 16)):
    rungs = level_codes.level_code(code, 7, 512, 'omega').rungs(n)
    assert abs(rungs[0] - n * least / 32) <= 1
    assert rungs[-1] == n * 4 / 32
    assert len(rungs) == {'elias_dense': 7, 'elias_sparse': 9}[code]
