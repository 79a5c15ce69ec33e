"""Planar packing: each word holds elements that are far apart in a leaf."""

from gradsparse.backend import platforms
from gradsparse.wire import planar
from gradsparse.wire import planar_vector
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

# Large leaves whose rows fill slabs, or leave some over; those with fewer rows
# than fields, or too few for eight in a slab; vectors, and small ones.
SHAPES = [
  (3, 7),
  (64, 512),
  (),
  (20_000,),
  (3, 3, 64, 65),
  (5, 5, 7, 131),
  (300, 70),
  (3, 100, 64),
]


def by_hand(codes, width):
  """uint32 words, element by element, from the page on wire formats."""
  fields = 32 // width
  words, rest = [], []
  for x in codes:
    height = 0
    if x.ndim > 1 and x.size >= 1 << 14:
      height = x.shape[-2] // fields
      if height > 8:
        height -= height % 8
    if not height:
      rest += np.ravel(x).tolist()
      continue
    for block in x.reshape(-1, *x.shape[-2:]):
      slabs = [block[j * height :][:height].ravel() for j in range(fields)]
      words += of_slabs(slabs, width)
      rest += block[fields * height :].ravel().tolist()
  # The blocks' words follow each other; all their rests come last.
  length = -(-len(rest) // fields)
  rest += [0] * (length * fields - len(rest))
  return words + of_slabs(np.reshape(rest, (fields, length)), width)


def of_slabs(slabs, width):
  """One word for each element of a slab."""
  return [
    sum(int(code) << (j * width) for j, code in enumerate(codes))
    for codes in zip(*slabs, strict=True)
  ]


def drawn(shapes, width, seed=0):
  rng = np.random.default_rng(seed)
  return [
    np.asarray(rng.integers(0, 2**width, s, np.uint64), np.uint32)
    for s in shapes
  ]


@pytest.mark.parametrize('width', marks.few([1, 3, 4, 32], 3))
def test_words_are_those_of_the_format(width):
  codes = drawn(SHAPES, width)

  @jax.jit
  def through(codes):
    words = planar.pack_each(codes, width)
    return words, planar.unpack_each(words, SHAPES, width)

  words, back = through(codes)
  assert words.tolist() == by_hand(codes, width)
  assert words.size == -(-sum(x.size for x in codes) // (32 // width))
  for x, own in zip(codes, back, strict=True):
    np.testing.assert_array_equal(own, x)


@pytest.mark.slow
@hypothesis.given(
  st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=4),
  st.integers(1, 32),
)
def test_small_leaves_come_back(shapes, width):
  shapes = [tuple(shape) for shape in shapes]
  codes = drawn(shapes, width)
  words = planar.pack_each(list(map(jnp.asarray, codes)), width)
  assert words.tolist() == by_hand(codes, width)
  back = planar.unpack_each(words, shapes, width)
  for x, own in zip(codes, back, strict=True):
    np.testing.assert_array_equal(own, x)


def test_in_slabs_a_leaf_is_not_joined(monkeypatch):
  """Slabs that fill a leaf, or leave rows over; and a leaf without slabs."""
  shapes = [(64, 512), (3, 3, 64, 65), (3, 100, 64), (3, 7)]
  codes = drawn(shapes, 4)
  monkeypatch.setattr(platforms, 'name', lambda: 'tpu')

  @jax.jit
  def through(codes):
    words = planar.pack_each(codes, 4)
    slabs = planar.unpack_each(words, shapes, 4, in_slabs=True)
    *those, small = slabs
    whole = [x.reshape(-1, *x.shape[-2:]) for x in codes[:3]]
    # Numbers of rows, of one block for all, are cut in the same way.
    rows = [x.cut(y[:1, :, 0]) for x, y in zip(those, whole, strict=True)]
    back = [x.joined(s) for x, s in zip(those, shapes[:3], strict=True)]
    cut = [x.cut(y) for x, y in zip(those, whole, strict=True)]
    return slabs, [*back, small], cut, rows

  slabs, back, cut, rows = through(codes)
  for x, own in zip(codes, back, strict=True):
    np.testing.assert_array_equal(own, x)
  assert [own.rest.shape[1] for own in slabs[:3]] == [0, 0, 36]
  for own, same, few in zip(slabs[:3], cut, rows, strict=True):
    assert isinstance(own, planar.Slabs)
    jax.tree.map(np.testing.assert_array_equal, own, same)
    first = jax.tree.map(lambda x: x[:1, ..., 0], own)
    jax.tree.map(np.testing.assert_array_equal, few, first)


def test_leaves_as_matrices_have_more_rows():
  leaves = [np.zeros((3, 3, 64, 65)), np.zeros((2, 5)), np.zeros(7)]
  assert [x.shape for x in planar.matrices(leaves)] == [(576, 65), (2, 5), (7,)]


def test_sums_of_words_hold_sums_of_codes():
  """A field never crosses a word."""
  first, second = drawn([(70, 9)], 2), drawn([(70, 9)], 2, seed=1)
  words = planar.pack_each(first, 3) + planar.pack_each(second, 3)
  (both,) = planar.unpack_each(words, [(70, 9)], 3)
  np.testing.assert_array_equal(both, first[0] + second[0])


@pytest.mark.parametrize('size', marks.few([0, 5, 40_000, 32_768], 5, 40_000))
@pytest.mark.parametrize('width', marks.few([1, 4], 4))
def test_a_vector_is_a_head_of_whole_units_and_a_tail(size, width):
  (codes,) = drawn([(size,)], width)
  halves = jnp.asarray(codes[: size // 3]), jnp.asarray(codes[size // 3 :])
  parts = planar_vector.joined(halves)
  words = planar_vector.pack_parts(parts, width)
  at = planar_vector.head(size)
  expected = by_hand([codes[:at]], width) + by_hand([codes[at:]], width)
  assert words.tolist() == expected
  head, tail = planar_vector.cut_parts(words, size, width)
  found = planar_vector.unpack_head(head, width, width).reshape(-1)
  np.testing.assert_array_equal(found, codes[:at])
  left = planar_vector.unpack_tail(tail, width)[: size - at]
  np.testing.assert_array_equal(left, codes[at:])


def test_bits_and_codes_of_a_head_are_combined_element_by_element():
  size, width = 1 << 16, 4
  bits, codes = drawn([(size,)], 1)[0], drawn([(size,)], width, 1)[0]
  words = [
    planar_vector.pack_parts([jnp.asarray(x)], n)
    for x, n in ((bits, 1), (codes, 4))
  ]
  unpacked = [
    planar_vector.unpack_head(x, n, width)
    for x, n in zip(words, (1, width), strict=True)
  ]
  np.testing.assert_array_equal(
    (unpacked[0] * unpacked[1]).reshape(-1), bits * codes
  )
  rows = np.array([0, 3, 511])
  found = planar_vector.rows_of_head(words[1], rows, width, size)
  np.testing.assert_array_equal(found, codes.reshape(-1, 128)[rows])
