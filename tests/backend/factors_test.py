"""Orthonormal columns of small factors, on CPUs and elsewhere."""

from gradsparse.backend import factors
from gradsparse.backend import platforms
import jax.numpy as jnp
import numpy as np
import pytest

RNG = np.random.default_rng(5)
# Of different lengths, two of which are about equal.
RANDOM = [RNG.standard_normal((rows, 3)) for rows in (9, 13, 40)]
ONE = RNG.standard_normal((12, 1))


@pytest.fixture(autouse=True, params=['cpu', 'tpu'])
def platform(request, monkeypatch):
  monkeypatch.setattr(platforms, 'name', lambda: request.param)


def orthonormal(*columns):
  """float64[rows, r] of each."""
  turned = [jnp.asarray(x.T[None], jnp.float32) for x in columns]
  made = factors.orthonormal(turned)
  return [np.asarray(x[0], np.float64).T for x in made]


@pytest.mark.parametrize('scale', [1.0, 1e-3])
def test_columns_span_what_they_spanned(scale):
  for p, made in zip(
    RANDOM, orthonormal(*(scale * p for p in RANDOM)), strict=True
  ):
    np.testing.assert_allclose(made.T @ made, np.eye(3), atol=1e-5)
    expected = np.linalg.qr(p)[0]
    np.testing.assert_allclose(made @ made.T, expected @ expected.T, atol=1e-5)


@pytest.mark.parametrize(
  'p',
  [
    np.zeros((12, 3)),
    np.concatenate([ONE, ONE, 2 * ONE], axis=1),
    np.concatenate([ONE, np.zeros((12, 1)), ONE], axis=1),
    np.concatenate([ONE, ONE + 1e-6 * RNG.standard_normal((12, 2))], axis=1),
    np.repeat(np.eye(12, 1, k=-1), 3, axis=1),  # zeros, but for row 1
  ],
  ids=['zeros', 'same', 'zeros between', 'nearly the same', 'one row'],
)
def test_columns_of_which_nothing_is_left_are_replaced(p):
  """With zeros a leaf without a gradient would never be heard again."""
  (made,) = orthonormal(p)
  np.testing.assert_allclose(made.T @ made, np.eye(3), atol=1e-5)
