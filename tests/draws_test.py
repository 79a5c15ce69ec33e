"""Draws are uniform, and independent between elements, keys and their bits."""

from gradsparse import draws
import jax
import jax.numpy as jnp
import numpy as np
import pytest

MANY = 1 << 20
KEYS = 64
# Of a standard normal number, so seldom that no test here fails by chance.
_FAR = 5.5


def keys(number=KEYS):
  """As a scheme makes them: of a seed, the step, the group and the worker."""
  base = jax.random.key(7)
  return [
    jax.random.fold_in(jax.random.fold_in(base, step), worker)
    for step in range(number // 4)
    for worker in range(4)
  ]


@pytest.fixture(scope='module')
def many():
  return np.asarray(draws.bits(jax.random.key(3), (MANY,)))


@pytest.fixture(scope='module')
def rows():
  """float64[KEYS, 16384]: draws of keys that follow one another, centred."""
  drawn = [draws.uniform(key, (1 << 14,)) for key in keys()]
  return np.asarray(drawn, np.float64) - 0.5


def test_moments_are_those_of_the_uniform_distribution(many):
  x = np.asarray(draws.uniform(jax.random.key(3), (MANY,)), np.float64)
  assert 0 <= x.min() and x.max() < 1
  np.testing.assert_array_equal(x, (many >> 8) / 2**24)
  for power in (1, 2, 3, 4):
    mean = 1 / (power + 1)
    spread = np.sqrt(1 / (2 * power + 1) - mean**2)
    off = (np.mean(x**power) - mean) / (spread / np.sqrt(MANY))
    assert abs(off) < _FAR, power


@pytest.mark.parametrize('shift', [0, 5, 12, 20, 24])
def test_every_byte_of_a_word_is_uniform(many, shift):
  counts = np.bincount((many >> shift) & 255, minlength=256)
  chi_squared = np.sum((counts - MANY / 256) ** 2) / (MANY / 256)
  assert abs(chi_squared - 255) / np.sqrt(2 * 255) < _FAR


def test_the_largest_gap_to_the_uniform_distribution_is_small(many):
  x = np.sort(many / 2**32)
  gap = np.max(np.abs(x - (np.arange(MANY) + 0.5) / MANY))
  assert gap * np.sqrt(MANY) < 2.2  # Kolmogorov-Smirnov: 1 in 8,000


def test_neighbours_are_not_correlated(many):
  x = many / 2**32 - 0.5
  for lag in (*range(1, 70), 127, 128, 255, 256, 1023, 1024, 4096, 65536):
    correlation = np.mean(x[lag:] * x[:-lag]) * 12
    assert abs(correlation) * np.sqrt(MANY - lag) < _FAR, lag


def test_pairs_and_triples_fill_their_boxes(many):
  top = (many >> 28).astype(np.int64)
  for size in (2, 3):
    boxes = sum(top[i : MANY - size + 1 + i] << 4 * i for i in range(size))
    counts = np.bincount(boxes[::size], minlength=16**size)
    expected = counts.sum() / 16**size
    chi_squared = np.sum((counts - expected) ** 2) / expected
    freedom = 16**size - 1
    assert abs(chi_squared - freedom) / np.sqrt(2 * freedom) < _FAR


@pytest.mark.slow
def test_steps_and_workers_are_not_correlated(rows):
  correlations = rows @ rows.T * 12 / np.sqrt(rows.shape[1])
  off = correlations[~np.eye(KEYS, dtype=bool)]
  assert np.max(np.abs(off)) < _FAR
  assert 0.9 < np.std(off) < 1.1


@pytest.mark.slow
def test_sums_over_steps_and_workers_spread_as_those_of_independent_draws(rows):
  """What rounding relies on: errors of many steps and workers average out."""
  means = np.mean(rows, axis=0) * np.sqrt(12 * KEYS)
  spread = np.mean(means**2)
  assert abs(spread - 1) * np.sqrt(rows.shape[1] / 2) < _FAR


@pytest.mark.parametrize('of', ['key', 'element'])
def test_one_changed_bit_changes_half_of_all_bits(of):
  numbers = np.arange(1 << 12)
  data = np.uint32([1234567, 7654321])

  def drawn(words):
    key = jax.random.wrap_key_data(jnp.asarray(words))
    return np.asarray(draws.bits(key, (1 << 13,)))

  before = drawn(data)
  for bit in range(32) if of == 'key' else range(12):
    if of == 'key':
      changed = drawn(data ^ np.uint32([1 << bit, 0])) ^ before
    else:
      changed = before[numbers ^ (1 << bit)] ^ before[numbers]
    for out in range(32):
      share = np.mean((changed >> out) & 1)
      # In pairs, elements count twice.
      assert abs(share - 0.5) * 2 * np.sqrt(len(numbers) / 2) < _FAR


def test_the_beginning_of_a_longer_vector_is_the_same():
  key = jax.random.key(0)
  np.testing.assert_array_equal(
    draws.bits(key, (7, 3)).reshape(-1), draws.bits(key, (100,))[:21]
  )
  assert draws.uniform(key, ()).shape == () and draws.bits(key, (0,)).size == 0


def test_any_implementation_of_keys_will_do():
  rbg = jax.random.key(0, impl='rbg')  # of four words
  x = draws.uniform(rbg, (1 << 14,))
  assert abs(float(jnp.mean(x)) - 0.5) * np.sqrt(12 * (1 << 14)) < _FAR
  other = draws.uniform(jax.random.fold_in(rbg, 1), (1 << 14,))
  assert not np.array_equal(x, other)


def test_each_leaf_has_the_draws_of_a_key_of_its_own():
  key = jax.random.key(5)
  shapes = [(7,), (3, 5), (), (7,), (2, 2)]
  together = list(draws.uniform_of_each(key, shapes))
  for number, (shape, own) in enumerate(zip(shapes, together, strict=True)):
    alone = draws.uniform(jax.random.fold_in(key, number), shape)
    np.testing.assert_array_equal(own, alone)


def test_numbers_below_limits_are_uniform():
  limits = np.repeat(np.uint32([1, 3, 1000, 2**31 - 1]), 3000)
  found = np.asarray(draws.below(jax.random.key(0), limits)).reshape(4, -1)
  assert np.all(found >= 0) and not np.any(found[0])
  assert np.all(np.bincount(found[1], minlength=3) > 900)
  for own, limit in zip(found, (1, 3, 1000, 2**31 - 1), strict=True):
    assert np.max(own) < limit
    assert np.mean(own) == pytest.approx((limit - 1) / 2, rel=0.05)


def test_a_number_below_a_limit_is_the_upper_word_of_a_product():
  limits = np.uint32([1, 7, 2**16, 2**16 + 1, 25_600_000, 2**31 - 1] * 50)
  key = jax.random.key(3)
  words = np.asarray(draws.bits(key, limits.shape)).astype(object)
  expected = [int(w) * int(n) >> 32 for w, n in zip(words, limits, strict=True)]
  assert np.asarray(draws.below(key, limits)).tolist() == expected
