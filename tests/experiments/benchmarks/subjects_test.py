"""What is measured: shapes of a model, schemes, their collectives."""

from experiments.benchmarks import collectives
from experiments.benchmarks import subjects
import gradsparse as gs
import jax
import jax.numpy as jnp
import pytest
from tests import marks


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


@pytest.mark.parametrize('workers', marks.few([1, 2, 3, 4], 3))
@pytest.mark.parametrize('name', subjects.SCHEMES)
def test_what_is_left_out_is_what_is_planned(name, workers):
  shapes = {
    k: jax.ShapeDtypeStruct(s, jnp.float32)
    for k, s in subjects.shapes(40_000).items()
  }
  tx = subjects.make(name)
  with collectives.left_out(workers) as calls:
    jax.eval_shape(lambda p: tx.update(p, tx.init(p), p), shapes)
  planned = gs.plan(tx, shapes, workers).sent_bytes
  serial = sum(call.serial_bytes(workers) for call in calls)
  if name.startswith('gtopk'):  # nobody sends in every round of a tree
    assert serial >= planned
  else:
    assert planned <= serial + 1 <= planned + 2 + 8 * workers


def test_all_but_the_collectives_is_computed():
  tx = subjects.make('dgc')
  grads = {'kernel_00': jnp.arange(1.0, 40_001).reshape(200, 200)}

  def step(grads):
    updates, state = tx.update(grads, tx.init(grads))
    return updates, gs.pending(state)

  with collectives.left_out(2):
    updates, pending = jax.jit(step)(grads)
  sent = int(jnp.sum(updates['kernel_00'] != 0))
  assert 0 < sent < 100
  assert int(jnp.sum(pending['kernel_00'] != 0)) == 40_000 - sent
