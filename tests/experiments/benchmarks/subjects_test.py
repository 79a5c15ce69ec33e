"""What is measured: shapes of a model, schemes, their collectives."""

from experiments.benchmarks import subjects
import pytest


@pytest.mark.parametrize(
  'wanted, kernels',
  [(32_000, 2), (399_999, 2), (10**6, 53), (10**7, 53), (25_600_000, 53)],
)
def test_shapes_add_up(wanted, kernels):
  shapes = subjects.shapes(wanted)
  assert abs(subjects.size(shapes) - wanted) < 0.01 * wanted
  assert sum(name.startswith('kernel') for name in shapes) == kernels
  assert shapes == subjects.shapes(wanted)
  sizes = [a * b for a, b in shapes.values()]
  assert sum(n % 64 == 0 for n in sizes) >= len(sizes) - 1


def test_the_largest_is_resnet_50():
  shapes = subjects.shapes(25_600_000)
  assert shapes['kernel_00'] == (147, 64)
  assert shapes['kernel_52'] == (512, 2048)
  assert shapes['classifier'][0] == 2048


def test_refuses_too_few_floats():
  with pytest.raises(ValueError, match='at least 32,000'):
    subjects.shapes(10_000)
