"""Arguments of recipes: what is a number. What is refused: tests/bad_input.

No program is compiled here: all of it is checked before anything is traced.
"""

from __future__ import annotations

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.bad_input.recipes import ARGUMENTS
from tests.bad_input.recipes import kind_of
from tests.bad_input.recipes import made

PARAMS = {'kernel': jnp.zeros((40, 25)), 'bias': jnp.zeros(11)}


AS_NUMPY = (np.float32, np.float64, np.float16, lambda x: np.array(x))
AS_WHOLE = (np.int64, np.int32, np.uint8, lambda x: np.array(x))


@pytest.mark.parametrize(
  'recipe, name',
  [pair for pair in ARGUMENTS if kind_of(*pair) in ('number', 'whole number')],
)
def test_numpy_scalars_are_numbers(recipe, name):
  more = {'exchange': 'reduce_scatter'} if name == 'bucket_size' else {}
  is_number = kind_of(recipe, name) == 'number'
  kinds, value = (AS_NUMPY, 0.5) if is_number else (AS_WHOLE, 5)
  for kind in kinds:
    made(recipe, **{**more, name: kind(value)})


@pytest.mark.parametrize(
  'recipe, numpy, python',
  [
    # Exactly, float32's 0.1 is a little more, and k would be 101 of 1000.
    ('dgc', {'density': np.float32(0.1)}, {'density': 0.1}),
    (
      'qsgd',
      {'levels': np.int64(3), 'min_size': 0},
      {'levels': 3, 'min_size': 0},
    ),
    *(
      pytest.param(recipe, {name: kind(n)}, {name: n}, marks=pytest.mark.slow)
      for recipe, name, kind, n in (
        ('dgc', 'min_size', np.int64, 5),
        ('power_sgd', 'rank', np.int32, 3),
        ('ada_comp', 'bin_size', np.array, 9),
      )
    ),
  ],
)
def test_a_numpy_scalar_means_what_it_shows(recipe, numpy, python):
  plans = [gs.plan(made(recipe, **k), PARAMS, 2) for k in (numpy, python)]
  assert plans[0] == plans[1]


def test_what_is_known_at_run_time_only_is_taken_where_it_can_be():
  """And refused by name where it shapes the program."""

  def traced(make):
    return jax.eval_shape(lambda x: make(x).init(PARAMS), jnp.float32(0.5))

  traced(lambda x: gs.dgc(x, momentum=x, axis_name=None))
  traced(lambda x: gs.strom(x, axis_name=None))
  traced(lambda x: gs.variance_strom(x, threshold=x, decay=x, axis_name=None))
  traced(lambda x: gs.clip_local_norm(x, axis_name=None))
  for make, name in (
    (lambda x: gs.random_k(x, axis_name=None), 'density'),
    (lambda x: gs.dgc(0.1, sample_rate=x, axis_name=None), 'sample_rate'),
    (lambda x: gs.terngrad(clip=x, axis_name=None), 'clip'),
    (lambda x: gs.dgc(0.1, nesterov=x, axis_name=None), 'nesterov'),
    (lambda x: gs.power_sgd(x, axis_name=None), 'rank'),
  ):
    with pytest.raises(TypeError, match=f'{name} must be .*static_args'):
      traced(make)


def test_an_optax_schedule_is_one_of_ours():
  tx = gs.dgc(optax.linear_schedule(0.5, 0.1, 10), axis_name=None)
  tx.init(PARAMS)
