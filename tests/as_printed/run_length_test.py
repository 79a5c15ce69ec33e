"""Run lengths against a slot-by-slot encoder and decoder in Python."""

from __future__ import annotations

import gradsparse as gs
from gradsparse.as_printed import run_length
from gradsparse.wire import fixed_width
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import pytest
from tests import marks

_encode = jax.jit(run_length.encode, static_argnums=2)
_decode = jax.jit(run_length.decode, static_argnums=2)
_fits = jax.jit(run_length.fits, static_argnums=1)

# (count, size); the last ones need escapes, and more than there is room for.
SHAPES = [
  (0, 5),
  (1, 1),
  (6, 6),
  (8, 1000),
  (1, 70_000),
  (12, 10**6),
  (50, 2**31 - 1),
]


def _oracle(values, indices, size):
  """Slots (value, run) and which elements got one."""
  slots, fits, last = [], [], -1
  for value, index in zip(values, indices, strict=True):
    run = index - last - 1
    escapes = [(0.0, 65_535)] * (run // 65_536)
    room = len(slots) + len(escapes) < len(indices)
    # Elements behind one without room have none either: escapes only grow.
    fits.append(index < size and room and all(fits))
    if fits[-1]:
      slots += [*escapes, (value, run % 65_536)]
      last = index
  slots += [(0.0, 0)] * (len(indices) - len(slots))
  return slots, fits


def _decode_oracle(slots, size):
  out, position = [], -1
  for value, run in slots:
    position += run + 1
    if value:
      out.append((value, position))
  return out + [(0.0, size)] * (len(slots) - len(out))


def _check(indices, size):
  count = len(indices)
  values = [
    float(i + 1) if index < size else 0.0 for i, index in enumerate(indices)
  ]
  slots, fits = _oracle(values, indices, size)
  arrays = jnp.asarray(values, jnp.float32), jnp.asarray(indices, jnp.int32)
  assert _fits(arrays[1], size).tolist() == fits
  sent, runs = _encode(*arrays, size)
  assert runs.shape == (run_length.words(count),)
  assert runs.dtype == jnp.uint32
  assert sent.tolist() == [value for value, _ in slots]
  assert fixed_width.unpack(runs, count, 16).tolist() == [r for _, r in slots]
  got = _decode(sent, runs, size)
  assert got[1].dtype == jnp.int32
  got = list(zip(got[0].tolist(), got[1].tolist(), strict=True))
  assert got == _decode_oracle(slots, size)
  # What fits comes back as it was.
  kept = [(v, i) for v, i, f in zip(values, indices, fits, strict=True) if f]
  assert got[: len(kept)] == kept


@pytest.mark.slow
@given(st.sampled_from(SHAPES), st.data())
def test_round_trip_of_what_fits(shape, data):
  count, size = shape
  some = st.sets(st.integers(0, size - 1), max_size=count)
  indices = sorted(data.draw(some))
  _check(indices + [size] * (count - len(indices)), size)


@pytest.mark.parametrize(
  'gap', marks.few([65_534, 65_535, 65_536, 131_071, 131_072], 65_535)
)
def test_gaps_at_the_edge_of_an_escape(gap):
  size = 10**6
  # Room for the escapes, and not.
  _check([gap, 2 * gap + 1, 2 * gap + 2, *[size] * 5], size)
  _check([0, gap, gap + 1, 2 * gap + 3, 3 * gap, 4 * gap, 7 * gap], size)


@pytest.mark.slow
def test_all_empty_and_all_full():
  for count, size in SHAPES:
    _check([size] * count, size)
    _check(list(range(min(count, size))) + [size] * max(0, count - size), size)


def test_elements_without_a_slot_are_those_of_highest_index():
  size = 10**6
  indices = jnp.array([5, 200_000, 200_001, 200_002, 200_003], jnp.int32)
  # 199,994 zeros are three escapes: two slots for five elements but one.
  assert _fits(indices, size).tolist() == [True, True, False, False, False]


def test_a_slot_is_exactly_48_bits():
  count = 25_504
  assert 32 * count + 32 * run_length.words(count) == 48 * count
  assert run_length.words(7) == 4


def test_a_value_of_zero_decodes_as_empty():
  values = jnp.array([1.0, 0.0, 3.0], jnp.bfloat16)
  indices = jnp.array([4, 7, 9], jnp.int32)
  sent, runs = _encode(values, indices, 20)
  assert sent.dtype == jnp.bfloat16
  values, indices = _decode(sent, runs, 20)
  assert values.tolist() == [1.0, 3.0, 0.0]
  assert indices.tolist() == [4, 9, 20]


def test_nan_is_sent():
  values = jnp.array([jnp.nan, 2.0], jnp.float32)
  sent, runs = _encode(values, jnp.array([0, 1], jnp.int32), 5)
  values, indices = _decode(sent, runs, 5)
  assert jnp.isnan(values).tolist() == [True, False]
  assert indices.tolist() == [0, 1]


def test_positions_past_the_end_are_empty_and_do_not_wrap():
  size, count = 2**31 - 1, 40_000
  runs = fixed_width.pack(jnp.full(count, 65_535, jnp.uint32), 16)
  values, indices = _decode(jnp.ones(count), runs, size)
  inside = size // 65_536  # the last of them has index < size
  expected = [65_536 * (i + 1) - 1 for i in range(inside)]
  assert indices.tolist() == expected + [size] * (count - inside)
  assert values.tolist() == [1.0] * inside + [0.0] * (count - inside)


def test_a_size_out_of_range_is_named():
  none = jnp.zeros(2, jnp.int32)
  for size in (-1, 2**31):
    with pytest.raises(ValueError, match=rf'2\*\*31\), got {size}'):
      run_length.fits(none, size)
    with pytest.raises(ValueError, match=rf'2\*\*31\), got {size}'):
      run_length.decode(none, jnp.zeros(1, jnp.uint32), size)
  with pytest.raises(ValueError, match=r'words must have shape \(1,\)'):
    run_length.decode(jnp.zeros(2), jnp.zeros(2, jnp.uint32), 5)


def test_an_element_of_value_zero_is_left_out_and_is_no_overflow():
  tx = gs.dgc(0.9, indices='run_length', min_size=0, axis_name=None)
  grads = {'w': jnp.asarray([0.0, 0, 1, 2, 3, 4, -5, 6, 7, 8])}
  updates, state = jax.jit(tx.update)(grads, tx.init(grads))
  assert updates['w'].tolist() == grads['w'].tolist()
  told = gs.metrics(state)
  assert (told['sent_elements'], told['overflow_elements']) == (8, 0)
