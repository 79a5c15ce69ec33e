"""The four-bit code against arithmetic in Python floats, and appendix B."""

from __future__ import annotations

import math

from gradsparse.wire import exponent
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from tests.wire import exponents

_round = jax.jit(exponents.round_values, static_argnums=3)


@jax.jit
def _encode(rounded, segments, top):
  return exponent.encode(rounded, exponents.top_of(top, segments))


@jax.jit
def _decode(codes, segments, top):
  return exponent.decode(codes, exponents.top_of(top, segments))


_SMALLEST = 2.0**-126  # of the normal float32


def _floor_log2(x: float) -> int:
  return math.frexp(x)[1] - 1


def _oracle(values, valid, segments, num_segments):
  rounded, kept = [0.0] * len(values), [False] * len(values)
  tops = [0] * num_segments
  usable = [
    ok and abs(v) >= _SMALLEST for v, ok in zip(values, valid, strict=True)
  ]
  for segment in range(num_segments):
    mine = [
      i for i in range(len(values)) if usable[i] and segments[i] == segment
    ]
    if not mine:
      continue
    e_top = _floor_log2(max(abs(values[i]) for i in mine))
    tops[segment] = e_top + 127
    for i in mine:
      size = abs(values[i])
      low = 2.0 ** _floor_log2(size)
      nearest = low if size < 1.5 * low else 2 * low
      nearest = min(nearest, 2.0**e_top)
      kept[i] = e_top - _floor_log2(nearest) <= 7
      if kept[i]:
        rounded[i] = math.copysign(nearest, values[i])
  return rounded, kept, tops


def test_appendix_b():
  values = jnp.array([0.04, 0.31, -6.25, 22.25, -35.75], jnp.float32)
  segments = jnp.zeros(5, jnp.int32)
  rounded, kept, top = _round(values, jnp.ones(5, bool), segments, 1)
  assert top.tolist() == [5 + 127]
  assert kept.tolist() == [False, True, True, True, True]
  assert rounded.tolist() == [0.0, 0.25, -8.0, 16.0, -32.0]
  codes = _encode(rounded, segments, top)
  assert codes.dtype == jnp.uint32
  assert codes[1:].tolist() == [7, 8 + 2, 1, 8 + 0]
  decoded = _decode(codes, segments, top)
  assert decoded[1:].tolist() == [0.25, -8.0, 16.0, -32.0]


@settings(max_examples=30, deadline=None)
@given(
  st.lists(
    st.tuples(
      st.one_of(
        st.floats(-100, 100, width=32),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        # Exactly between two powers of two, and powers of two.
        st.sampled_from([1.5, -3.0, 0.75, 2.0, 1.0, 192.0, 0.0]),
      ),
      st.booleans(),
      st.integers(0, 3),
    ),
    min_size=12,
    max_size=12,
  )
)
def test_matches_the_definition(entries):
  values, valid, segments = (list(x) for x in zip(*entries, strict=True))
  want_rounded, want_kept, want_top = _oracle(values, valid, segments, 4)
  segments = jnp.asarray(segments, jnp.int32)
  rounded, kept, top = _round(
    jnp.asarray(values, jnp.float32), jnp.asarray(valid), segments, 4
  )
  assert kept.tolist() == want_kept
  assert top.tolist() == want_top
  # By bits: the CPU may flush the smallest powers in arithmetic.
  np.testing.assert_array_equal(
    np.asarray(rounded).view(np.uint32),
    np.asarray(want_rounded, np.float32).view(np.uint32),
  )
  codes = _encode(rounded, segments, top)
  assert (codes < 16).all()
  decoded = np.where(kept, _decode(codes, segments, top), np.float32(0))
  np.testing.assert_array_equal(
    decoded.view(np.uint32), np.asarray(rounded).view(np.uint32)
  )


def test_every_code_means_another_value():
  codes = jnp.arange(16, dtype=jnp.uint32)
  segments = jnp.zeros(16, jnp.int32)
  top = jnp.array([127], jnp.int32)
  values = _decode(codes, segments, top)
  expected = [2.0**-d for d in range(8)]
  assert values.tolist() == expected + [-v for v in expected]
  assert _encode(values, segments, top).tolist() == codes.tolist()


def test_rounding_error_is_at_most_a_third_below_the_top():
  rng = np.random.default_rng(0)
  values = rng.uniform(1, 100, 4096).astype(np.float32)
  values[0] = 128
  rounded, kept, _ = _round(
    jnp.asarray(values), jnp.ones(4096, bool), jnp.zeros(4096, jnp.int32), 1
  )
  assert kept.all()
  assert (np.abs(rounded - values) <= values / 3 + 1e-6).all()


def test_zeros_denormals_and_empty_segments():
  values = jnp.array([0.0, -0.0, 1e-40, 3.0], jnp.float32)
  segments = jnp.array([0, 0, 0, 2], jnp.int32)
  valid = jnp.array([True, True, True, False])
  rounded, kept, top = _round(values, valid, segments, 3)
  assert not kept.any()
  assert rounded.tolist() == [0.0] * 4
  assert top.tolist() == [0, 0, 0]
  # Whatever the code, a segment without values has only zeros.
  for codes in (_encode(rounded, segments, top), jnp.array([0, 7, 8, 15])):
    decoded = _decode(codes.astype(jnp.uint32), segments, top)
    assert decoded.tolist() == [0.0] * 4


def test_the_largest_float_is_clipped_not_overflown():
  largest = float(np.finfo(np.float32).max)
  values = jnp.array([largest, -largest], jnp.float32)
  rounded, kept, top = _round(
    values, jnp.ones(2, bool), jnp.zeros(2, jnp.int32), 1
  )
  assert kept.all() and top.tolist() == [254]
  assert rounded.tolist() == [2.0**127, -(2.0**127)]


def test_what_is_not_finite_arrives_as_infinity():
  values = jnp.array([jnp.nan, -jnp.inf, 1.0], jnp.float32)
  segments = jnp.zeros(3, jnp.int32)
  rounded, kept, top = _round(values, jnp.ones(3, bool), segments, 1)
  assert kept.tolist() == [True, True, False]
  decoded = _decode(_encode(rounded, segments, top), segments, top)
  assert jnp.isinf(decoded[:2]).all()


def test_entries_that_are_not_valid_may_have_any_segment():
  values = jnp.array([1.0, 100.0, 100.0], jnp.float32)
  segments = jnp.array([0, 5, 2**31 - 1], jnp.int32)
  valid = jnp.array([True, False, False])
  rounded, kept, top = _round(values, valid, segments, 2)
  assert top.tolist() == [127, 0]
  assert kept.tolist() == [True, False, False]
  assert rounded.tolist() == [1.0, 0.0, 0.0]


def test_no_entries():
  none = jnp.zeros(0, jnp.float32)
  segments = jnp.zeros(0, jnp.int32)
  rounded, kept, top = _round(none, segments == 0, segments, 2)
  assert rounded.shape == kept.shape == (0,)
  assert top.tolist() == [0, 0]
