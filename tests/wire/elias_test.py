"""Elias codes against bit strings, digit by digit."""

from __future__ import annotations

from gradsparse.wire import elias
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks
from tests.wire import bit_strings

_code = jax.jit(elias.code, static_argnums=1)
_parts = jax.jit(elias.parts, static_argnums=1)
_length = jax.jit(elias.length, static_argnums=1)
_read = jax.jit(elias.read, static_argnums=1)

# The tables of Elias's paper (omega, gamma, delta) and of unary codes.
PUBLISHED = {
  'omega': {
    1: '0',
    2: '100',
    3: '110',
    4: '101000',
    8: '1110000',
    16: '10100100000',
    100: '1011011001000',
  },
  'gamma': {1: '1', 2: '010', 3: '011', 4: '00100', 10: '0001010'},
  'delta': {
    1: '1',
    2: '0100',
    3: '0101',
    4: '01100',
    10: '00100010',
    17: '001010001',
  },
  # Ours from 8 on: seven zeros, and omega's code of 1, 2, ...
  'unary': {1: '1', 2: '01', 5: '00001', 7: '0000001', 8: '0' * 8},
}


def _values(limit: int) -> np.ndarray:
  """Small values, all around powers of two, and some between."""
  powers = 2 ** np.arange(31)
  values = np.concatenate(
    [
      np.arange(1, 300),
      powers - 1,
      powers,
      powers + 1,
      np.random.default_rng(0).integers(1, limit + 1, 200),
      [limit],
    ]
  )
  return np.unique(values[(values >= 1) & (values <= limit)])


def _string(bits: int, length: int) -> str:
  assert bits < 2**length
  return format(bits, 'b').zfill(length)[-length:] if length else ''


@pytest.mark.parametrize('kind', elias.KINDS)
def test_published_codes(kind):
  for value, expected in PUBLISHED[kind].items():
    assert bit_strings.CODES[kind](value) == expected
    bits, length = elias.code(jnp.array([value]), kind)
    assert _string(int(bits[0]), int(length[0])) == expected


@pytest.mark.parametrize('kind', elias.KINDS)
def test_codes_up_to_the_limit(kind):
  values = _values(elias.max_value(kind))
  bits, lengths = _code(jnp.asarray(values, jnp.uint32), kind)
  assert bits.dtype == jnp.uint32 and lengths.dtype == jnp.int32
  for value, b, n in zip(values, bits.tolist(), lengths.tolist(), strict=True):
    assert _string(b, n) == bit_strings.CODES[kind](int(value)), value
  np.testing.assert_array_equal(_length(jnp.asarray(values), kind), lengths)
  assert max(lengths.tolist()) <= 32


@pytest.mark.parametrize('kind', elias.KINDS)
def test_the_limit_is_the_last_value_of_32_bits(kind):
  code = bit_strings.CODES[kind]
  limit = elias.max_value(kind)
  assert len(code(limit)) <= 32 < len(code(limit + 1))


@pytest.mark.parametrize('kind', elias.KINDS)
def test_parts_up_to_their_limit(kind):
  values = _values(elias.max_value(kind, parts=True))
  parts = _parts(jnp.asarray(values, jnp.uint32), kind)
  columns = [x.tolist() for x in parts]
  for value, head, n, tail, m in zip(values, *columns, strict=True):
    assert n <= 32 and m <= 32
    expected = bit_strings.CODES[kind](int(value))
    assert _string(head, n) + _string(tail, m) == expected, value


@pytest.mark.parametrize('following', marks.few(['0', '1', '01'], '01'))
@pytest.mark.parametrize('kind', elias.KINDS)
def test_read_takes_the_code_and_nothing_after_it(kind, following):
  values = _values(elias.max_value(kind, parts=True))
  strings = [bit_strings.CODES[kind](int(v)) for v in values]
  windows = np.array(
    [bit_strings.to_words((s + 64 * following)[:64], 2) for s in strings],
    np.uint32,
  )
  expected_lengths = [len(s) for s in strings]
  got, lengths = _read(jnp.asarray(windows[:, 0]), kind, windows[:, 1])
  np.testing.assert_array_equal(got, values)
  np.testing.assert_array_equal(lengths, expected_lengths)
  # One window is enough up to max_value.
  short = values <= elias.max_value(kind)
  got, lengths = _read(jnp.asarray(windows[short, 0]), kind)
  np.testing.assert_array_equal(got, values[short])
  np.testing.assert_array_equal(lengths, np.array(expected_lengths)[short])


@pytest.mark.parametrize('kind', marks.few(elias.KINDS, 'omega'))
def test_read_survives_any_bits(kind):
  rng = np.random.default_rng(1)
  noise = rng.integers(0, 2**32, 500, np.uint32)
  noise = jnp.asarray(np.concatenate([noise, [0, 1, 2**32 - 1]]), jnp.uint32)
  _, lengths = _read(noise, kind, noise)
  assert (lengths >= 1).all() and (lengths <= 95).all()


@pytest.mark.parametrize('kind', elias.KINDS)
def test_zero_has_no_code(kind):
  bits, length = elias.code(jnp.zeros(2, jnp.int32), kind)
  assert bits.tolist() == length.tolist() == [0, 0]


@pytest.mark.parametrize('kind', elias.KINDS)
def test_max_length_is_that_of_the_longest_code(kind):
  code = bit_strings.CODES[kind]
  longest = 0
  for value in range(1, 600):
    longest = max(longest, len(code(value)))
    assert elias.max_length(value, kind) == longest
  assert elias.max_length(2**31 - 1, kind) == len(code(2**31 - 1))


def test_errors():
  with pytest.raises(ValueError, match="kind must be one of .*, got 'rice'"):
    elias.code(jnp.ones(1, jnp.int32), 'rice')
  with pytest.raises(ValueError, match='got 0'):
    elias.max_length(0, 'omega')


@pytest.mark.parametrize('kind', elias.KINDS)
@pytest.mark.parametrize(
  'largest', marks.few([1, 2, 8, 14, 15, 128, 65_535], 15)
)
def test_lengths_up_to_a_known_value(kind, largest):
  values = jnp.asarray([0, *_values(largest)], jnp.int32)
  np.testing.assert_array_equal(
    elias.length(values, kind, largest), elias.length(values, kind)
  )
