"""Elements coded before it is known how many are sent."""

import functools

from gradsparse import codes
from gradsparse.backend import platforms
from gradsparse.codes import value_codes
from gradsparse.codes.marked_vector import PackedLeaves
from gradsparse.sockets import Context
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests import replay
from tests.wire import exponents

# Rows of 32 in which one leaf ends, or two, and leaves of whole rows.
SHAPES = ((6, 5), (41,), (2, 32), (3,), (64,))
SPACE = Space.whole(SHAPES)
CODES = {
  **{
    name: codes.sparse(values=name)
    for name in value_codes.BY_NAME
    if name != 'table4'  # it needs the selected values of a leaf
  },
  'word28': codes.sparse('word28', 'exponent4'),
  'run_length': codes.sparse('run_length'),
  'constant': codes.signs_of(0.5),
}
# Signs need one magnitude, and two for 'sign2'.
SIGNS = ('constant', 'sign2')
SLOTS = 70


def context(seed=0):
  key = jax.random.key(seed)
  return Context(
    MessageLeaves(SHAPES),
    workers=2,
    step=jnp.int32(0),
    key=key,
    shared_key=key,
  )


def drawn(seed, share, name):
  """Values of all elements, and which of them are to be sent."""
  rng = np.random.default_rng(seed)
  values = rng.normal(size=SPACE.size).astype(np.float32)
  if name in SIGNS:
    values = np.sign(values) * np.float32(0.5)
  return values, rng.random(SPACE.size) < share


def leaves_of(sent):
  return SPACE.split(sent.add_to(sent.zeros()))


def flat(leaves):
  return np.concatenate([np.ravel(x) for x in leaves])


@functools.cache
def there_and_back(name):
  """Compiled: what is delivered, and per size (sent, what arrives of it)."""
  code = CODES[name]

  def fn(values, wanted, seed):
    ctx = context(seed)
    leaves = zip(SPACE.split(values), SPACE.split(wanted), strict=True)
    coded = CODES[name].mark(list(leaves), ctx)
    joined = coded.joined()
    ways = []
    sizes = joined.at_most(SLOTS), joined.entries(SLOTS)
    for selected in (joined.at_most(SPACE.size), *sizes):
      assert isinstance(selected, code.takes)
      rounded = code.round(selected, ctx)
      got = code.unpack(code.pack(rounded, ctx), rounded, ctx)
      own, theirs = (code.decode(x, ctx, 1) for x in (rounded, got))
      ways.append((rounded, got, leaves_of(own), leaves_of(theirs)))
    delivered = [
      d.dense(s) for d, s in zip(coded.deliveries(), SHAPES, strict=True)
    ]
    return delivered, coded.count(), joined.count(), ways

  args = jnp.zeros(SPACE.size), jnp.zeros(SPACE.size, bool), jnp.int32(0)
  return jax.jit(fn).lower(*args).compile(replay.QUICKLY)


@pytest.mark.parametrize('name', marks.few(CODES, 'exponent4'))
@pytest.mark.parametrize('share', marks.few([0.0, 0.3, 1.0], 0.3))
def test_what_arrives_is_what_is_delivered_whatever_the_size(name, share):
  for seed in range(3):
    values, wanted = drawn(seed, share, name)
    delivered, count, same_count, ways = there_and_back(name)(
      values, wanted, np.int32(seed)
    )
    assert count == same_count <= wanted.sum()
    assert not np.any(flat(delivered)[~wanted])
    for rounded, got, own, theirs in ways[: 1 if count > SLOTS else 3]:
      jax.tree.map(np.testing.assert_array_equal, got, rounded)
      np.testing.assert_array_equal(flat(own), flat(delivered))
      np.testing.assert_array_equal(flat(theirs), flat(delivered))


@pytest.mark.parametrize(
  'name',
  marks.few(
    [x for x in CODES if x not in ('qsgd4', 'ternary')],
    'exponent4',
  ),
)
def test_it_stands_for_what_selected_entries_stand_for(name):
  code, ctx = CODES[name], context()
  values, wanted = drawn(3, 0.5, name)
  delivered, *_ = there_and_back(name)(values, wanted, np.int32(0))
  indices = np.where(wanted, np.arange(SPACE.size), SPACE.size)
  sparse = Sparse.of(jnp.where(wanted, values, 0), jnp.asarray(indices), SPACE)
  np.testing.assert_array_equal(
    flat(delivered),
    flat(jax.jit(lambda x: leaves_of(code.round(x, ctx)))(sparse)),
  )


@pytest.mark.parametrize(
  'name', marks.few(['exponent4', 'float32', 'constant'], 'exponent4')
)
def test_leaves_that_tpus_pack_are_those_of_other_platforms(name, monkeypatch):
  ctx = context()

  def messages(platform):
    monkeypatch.setattr(platforms, 'name', lambda: platform)

    def fn(values, wanted):
      leaves = zip(SPACE.split(values), SPACE.split(wanted), strict=True)
      coded = CODES[name].mark(list(leaves), ctx)
      joined = coded.joined()
      assert isinstance(joined, PackedLeaves) == (platform != 'tpu')
      sent = [
        joined.at_most(slots, first and jnp.int32(first))
        for slots, first in ((202, None), (SLOTS, None), (5, None), (5, 61))
      ]
      gone = coded.only_if(jnp.bool_(False)).count()
      return sent, joined.count(), coded.count(), gone, coded.deliveries()

    args = jnp.zeros(SPACE.size), jnp.zeros(SPACE.size, bool)
    return jax.jit(fn).lower(*args).compile(replay.QUICKLY)

  both = messages('gpu'), messages('tpu')
  for share in (0.0, 0.04, 0.5, 1.0):
    values, wanted = drawn(7, share, name)
    own, theirs = (fn(values, wanted) for fn in both)
    jax.tree.map(np.testing.assert_array_equal, own, theirs)
    assert own[1] == own[2] and not own[3]


def test_what_the_code_cannot_say_is_not_marked():
  values, wanted = drawn(4, 1.0, 'exponent4')
  values[::3] *= 1e-4
  leaf = np.repeat(np.arange(len(SHAPES)), SPACE.sizes)
  _, kept, _ = exponents.round_values(
    jnp.asarray(values), jnp.asarray(wanted), jnp.asarray(leaf), len(SHAPES)
  )
  _, count, *_ = there_and_back('exponent4')(values, wanted, np.int32(0))
  assert 0 < int(np.sum(kept)) == count < wanted.sum()


# A head of whole units, within whose rows leaves end, and a tail.
LONG = ((33, 999), (64,), (7,), (5, 13_000), (100,))


@pytest.mark.parametrize('name', marks.few(CODES, 'constant'))
def test_long_messages_add_up_as_their_payloads_do(name):
  code, space = CODES[name], Space.whole(LONG)
  rng = np.random.default_rng(6)

  @jax.jit
  def run(values, wanted):
    ctx = context()
    coded = CODES[name].mark(
      list(zip(space.split(values), space.split(wanted), strict=True)), ctx
    )
    dense = [d.dense(s) for d, s in zip(coded.deliveries(), LONG, strict=True)]
    found = []
    for slots in (space.size, space.size // 4):
      sent = code.round(coded.joined().at_most(slots), ctx)
      sent = code.unpack(code.pack(sent, ctx), sent, ctx)
      own = code.decode(sent, ctx, 1)
      found.append(own.add_to(own.zeros()))
      if adder := code.shortcuts.adder(sent):
        total = functools.reduce(adder.add, [sent, sent], adder.start(sent))
        found.append(adder.finish(total, sent) / 2)
    return dense, found

  values = rng.normal(size=space.size).astype(np.float32)
  if name in SIGNS:
    values = np.sign(values) * np.float32(0.5)
  dense, found = run(values, rng.random(space.size) < 0.2)
  for x in found:
    np.testing.assert_array_equal(x, flat(dense))


@pytest.mark.slow
# Six times the standard deviation of a mean of 400: levels are 1/7 of the
# largest value apart, and the whole of it.
@pytest.mark.parametrize(
  'name, tolerance',
  [('qsgd4', 0.06), ('ternary', 0.35)],
)
def test_drawn_values_are_right_on_average(name, tolerance):
  values, wanted = drawn(5, 0.7, name)
  fn = there_and_back(name)
  mean = np.mean(
    [flat(fn(values, wanted, np.int32(s))[0]) for s in range(400)], axis=0
  )
  np.testing.assert_allclose(mean, np.where(wanted, values, 0), atol=tolerance)


@pytest.mark.parametrize(
  'name, width', [('float32', 32), ('exponent4', 4), ('constant', 1)]
)
def test_bits_on_the_wire(name, width):
  """One of the bitmap and the code's for each element, rounded up once."""
  code, ctx = CODES[name], context()
  values, wanted = drawn(0, 0.5, name)

  def pack(values, wanted):
    leaves = zip(SPACE.split(values), SPACE.split(wanted), strict=True)
    return code.pack(
      CODES[name].mark(list(leaves), ctx).joined().at_most(SPACE.size), ctx
    )

  words = jax.eval_shape(pack, values, wanted)
  assert words.marks.size == -(-SPACE.size // 32)
  assert words.codes.size == -(-SPACE.size * width // 32)
