"""Numbers are repeated along rows in two forms, which agree to the bit."""

from gradsparse.backend import repeating
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks


@pytest.mark.parametrize(
  'times, rows, columns',
  marks.few(
    [
      (512, 128, 1000),  # a row ends within a run
      (56, 64, 64),
      (512, 64, 64),  # a run has several rows
      (7, 5, 3),
      (16, 50, 3),
      (5, 4, 5),
    ],
    (512, 64, 64),
    (7, 5, 3),
  ),
)
def test_both_forms_agree(times, rows, columns):
  number = -(-rows * columns // times)
  x = np.random.default_rng(0).normal(size=number).astype(np.float32)
  expected = np.repeat(x, times)[: rows * columns].reshape(1, rows, columns)
  for form in (repeating.in_rows, repeating.by_comparison):
    found = form(jnp.asarray(x), times, rows, columns)
    np.testing.assert_array_equal(found, expected)
    cut = form(jnp.asarray(x), times, rows, columns, lambda x: (x[:, 2:], x))
    np.testing.assert_array_equal(cut[0], expected[:, 2:])
    np.testing.assert_array_equal(cut[1], expected)


@pytest.mark.parametrize('times, rows, columns', [(56, 512, 512), (3, 9, 64)])
def test_many_numbers_in_a_row_are_not_compared(times, rows, columns):
  number = -(-rows * columns // times)
  x = jnp.arange(number, dtype=jnp.float32)
  assert repeating.by_comparison(x, times, rows, columns) is None
