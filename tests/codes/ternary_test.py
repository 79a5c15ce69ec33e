"""TernGrad's fields: packed leaf by leaf, added up as words."""

from gradsparse import codes
from gradsparse import extend
from gradsparse.codes.ternary import field_width
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

# Large leaves that fill words and some that do not, between small ones; and
# each kind alone.
SIZES = [
  (7, 16_384, 20_001, 32_000, 5, 40_960),
  (16_384, 16_400),
  (16_385,),
  (3, 1),
]


@pytest.mark.parametrize('workers', marks.few([1, 3, 4, 8], 3))
@pytest.mark.parametrize('sizes', SIZES, ids=str)
def test_words_of_workers_add_up_to_the_sums_of_their_codes(sizes, workers):
  code = codes.ternary()
  key = jax.random.key(0)
  shapes = tuple((size,) for size in sizes)
  leaves = extend.MessageLeaves(shapes)
  ctx = extend.Context(leaves, workers, jnp.int32(0), key, key)
  rng = np.random.default_rng(workers)
  own = [
    [rng.integers(0, 3, size).astype(np.uint8) for size in sizes]
    for _ in range(workers)
  ]

  @jax.jit
  def added(own):
    words = sum(code.pack(leaves, ctx) for leaves in own)
    return words, code.unpack(words, own[0], ctx)

  words, sums = added(own)
  lanes = 32 // field_width(workers)
  assert words.dtype == jnp.uint32
  assert words.shape == (-(-sum(sizes) // lanes),)
  for number, found in enumerate(sums):
    expected = np.sum([leaves[number] for leaves in own], axis=0)
    np.testing.assert_array_equal(found, expected)
