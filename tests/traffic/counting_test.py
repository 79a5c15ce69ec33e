"""Counts of bytes that neither round nor wrap."""

from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import pytest

MOST = 2**32 - 1


@pytest.mark.parametrize(
  'counts, expected',
  [
    ((), 0),
    ((2**24 + 1, 3), 2**24 + 4),
    ((MOST, 1), MOST),
    ((7 * 2**32,), MOST),
    ((jnp.uint32(2**31 + 1), 2**31 - 2), MOST),
    ((jnp.uint32(2**31 + 1), jnp.uint32(2**31 + 5)), MOST),
  ],
)
def test_a_total_is_exact_and_never_wraps(counts, expected):
  assert int(counting.total(counts)) == expected
  traced = jax.jit(lambda: counting.total(counts))()
  assert traced.dtype == jnp.uint32 and int(traced) == expected
