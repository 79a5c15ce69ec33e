"""`Marked`: whole leaves, of which a bitmap says what is sent."""

import functools

from gradsparse import codes
from gradsparse.codes import sparse_values
from gradsparse.sockets import Context
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import replay

SHAPES = ((6, 5), (41,))
SPACE = Space.whole(SHAPES)
CODES = {
  **{name: codes.sparse(values=name) for name in sparse_values.BY_NAME},
  'word28': codes.sparse('word28', 'exponent4'),
  'run_length': codes.sparse('run_length'),
  'constant': codes.signs_of(0.5),
}


def context(seed=0):
  key = jax.random.key(seed)
  return Context(
    shapes=SHAPES,
    workers=2,
    step=jnp.int32(0),
    key=key,
    shared_key=key,
    state=(),
    cuts=(),
    shards=None,
  )


def drawn(seed, share, magnitude=None):
  """Values of all elements, and which of them are sent."""
  rng = np.random.default_rng(seed)
  values = rng.normal(size=SPACE.size).astype(np.float32)
  if magnitude is not None:
    values = np.sign(values) * np.float32(magnitude)
  return values, rng.random(SPACE.size) < share


def both_forms(values, there):
  """The same as a `Marked`, and as a `Sparse` with a slot for every element."""
  marked = Marked.of(SPACE.split(jnp.asarray(values)), SPACE.split(there))
  indices = np.where(there, np.arange(SPACE.size), SPACE.size)
  sparse = Sparse.of(jnp.where(there, values, 0), jnp.asarray(indices), SPACE)
  return marked, sparse


@functools.cache
def there_and_back(name):
  """(Marked, seed) -> (what is rounded, what arrives)."""
  code = CODES[name]

  def fn(marked, seed):
    ctx = context(seed)
    rounded = code.round(marked, ctx)
    return rounded, code.unpack(code.pack(rounded, ctx), rounded, ctx)

  return jax.jit(fn, compiler_options=replay.QUICKLY)


@pytest.mark.parametrize('name', CODES)
@pytest.mark.parametrize('share', [0.0, 0.3, 1.0])
def test_what_is_packed_is_what_was_rounded(name, share):
  # Signs need one magnitude, and two for 'sign2'.
  magnitude = 0.5 if name in ('constant', 'sign2') else None
  for seed in range(5):
    values, there = drawn(seed, share, magnitude)
    marked, _ = both_forms(values, there)
    rounded, got = there_and_back(name)(marked, seed)
    assert got.count() == rounded.count() <= there.sum()
    jax.tree.map(np.testing.assert_array_equal, got, rounded)
    for a, b in zip(rounded.marks, SPACE.split(there), strict=True):
      assert not np.any(a & ~b)


@pytest.mark.parametrize(
  'name', [x for x in CODES if x not in ('qsgd4', 'ternary', 'sign2')]
)
def test_it_stands_for_what_a_sparse_one_stands_for(name):
  """Both forms round alike, but where they draw."""
  code, ctx = CODES[name], context()
  values, there = drawn(3, 0.5, 0.5 if name == 'constant' else None)
  ours, theirs = (code.round(x, ctx) for x in both_forms(values, there))
  for a, b in zip(ours.leaves(), theirs.leaves(), strict=True):
    np.testing.assert_array_equal(a, b)
  assert ours.count() == theirs.count()


# Six times the standard deviation of a mean of 400: levels are 1/7 of the
# largest value apart, and the whole of it.
@pytest.mark.parametrize(
  'name, tolerance', [('qsgd4', 0.06), ('ternary', 0.35)]
)
def test_drawn_values_are_right_on_average(name, tolerance):
  code = CODES[name]
  values, there = drawn(5, 0.7)
  marked, _ = both_forms(values, there)

  @jax.jit
  def one(seed):
    ctx = context()._replace(key=jax.random.key(seed))
    return Leaves(code.round(marked, ctx).values).joined()

  mean = np.mean([one(seed) for seed in range(400)], axis=0)
  np.testing.assert_allclose(mean, np.where(there, values, 0), atol=tolerance)


def test_bits_on_the_wire():
  """One of the bitmap and the code's for each element, rounded up by leaf."""
  for name, width in {'float32': 32, 'exponent4': 4, 'constant': 1}.items():
    code, ctx = CODES[name], context()
    marked, _ = both_forms(*drawn(0, 0.5, 0.5))
    words = code.pack(code.round(marked, ctx), ctx)
    assert sum(x.size for x in words.marks) == sum(
      -(-n // 32) for n in SPACE.sizes
    )
    assert sum(x.size for x in words.codes) == sum(
      -(-n * width // 32) for n in SPACE.sizes
    )
  assert sparse_values.exponent4().width == 4


def test_joined_and_cut_again():
  marked, sparse = both_forms(*drawn(1, 0.4))
  for x in (marked, sparse):
    again = x.joined().cut(SHAPES)
    for a, b in zip(again.values, marked.values, strict=True):
      np.testing.assert_array_equal(a, b)
    for a, b in zip(again.marks, marked.marks, strict=True):
      np.testing.assert_array_equal(a, b)
  nothing = marked.only_if(jnp.bool_(False))
  assert nothing.count() == 0 and not any(map(np.any, nothing.leaves()))
