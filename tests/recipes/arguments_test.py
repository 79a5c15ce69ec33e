"""Arguments of recipes: what is refused, in which words, and numbers.

No program is compiled here: all of it is checked before anything is traced.
"""

from __future__ import annotations

import inspect
import math
import types
import typing

import gradsparse as gs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

NAN, INF = math.nan, math.inf
PARAMS = {'kernel': jnp.zeros((40, 25)), 'bias': jnp.zeros(11)}


def made(recipe: str, **kwargs):
  """The example of a recipe with these arguments, on one worker."""
  return gs.recipes.RECIPES[recipe].make(**{'axis_name': None, **kwargs})


# --- one table of wrong arguments -------------------------------------------

# recipe, argument, wrong values of the right kind, the words of the rule.
OUT_OF_RANGE = (
  ('gradient_dropping', 'density', (0.0, 1.5, -0.1, NAN, INF, 2), '(0, 1]'),
  ('dgc', 'density', (0.0, 1.5, NAN, np.float32(7)), '(0, 1]'),
  ('gtopk', 'density', (0, -1, NAN), '(0, 1]'),
  ('dryden', 'density', (0, 1.5, NAN), '(0, 1]'),
  ('random_k', 'density', (0, 2, NAN), '(0, 1]'),
  ('dgc', 'momentum', (1.0, -0.1, NAN, INF), '[0, 1)'),
  ('dgc', 'sample_rate', (0.0, 2, NAN), '(0, 1]'),
  ('strom', 'threshold', (0.0, -1, INF, NAN), 'a finite number > 0'),
  ('variance_strom', 'threshold', (0, -1, INF, NAN), 'a finite number > 0'),
  ('variance_based', 'alpha', (0, -1, INF, NAN), 'a finite number > 0'),
  ('variance_strom', 'alpha', (0, INF, NAN), 'a finite number > 0'),
  ('variance_based', 'decay', (0, 1.5, NAN), '(0, 1]'),
  ('variance_strom', 'decay', (0, 1.5, NAN), '(0, 1]'),
  ('strom', 'ladder', ((), (0.5, 0.1), (0.1, 0.1)), 'ascending fractions'),
  ('strom', 'ladder', ((0.1, 2), (NAN,), (0.0, 1.0)), '(0, 1]'),
  ('ada_comp', 'bin_size', (0, -5), 'at least 1'),
  ('terngrad', 'clip', (0, -1.0, NAN), 'a number > 0'),
  ('sign_majority', 'scale', (0, -1.0, INF, NAN), 'a finite number > 0'),
  ('power_sgd', 'rank', (0, -1), 'at least 1'),
  ('qsgd', 'levels', (0, 65_535, -7), 'in 1..65534'),
  ('qsgd', 'bucket_size', (0, -1), 'at least 1'),
  ('qsgd', 'norm', ('l1', ''), "('max', 'l2')"),
  ('qsgd', 'code', ('huffman',), "'elias_dense'"),
  ('qsgd', 'elias', ('rice',), "'omega'"),
  ('qsgd', 'exchange', ('ring',), "('all_gather', 'reduce_scatter')"),
  ('one_bit_sgd', 'exchange', ('tree',), "('all_gather', 'reduce_scatter')"),
  ('sign_majority', 'exchange', ('vote',), "('all_gather', 'reduce_scatter')"),
  ('dense', 'wire_dtype', ('float16',), "('float32', 'bfloat16')"),
  ('dgc', 'scope', ('all',), "('leaf', 'global', 'chunk')"),
  ('gtopk', 'scope', ('leaf',), "'global'"),
  ('dgc', 'values', ('float16', 'sign2'), "'exponent4'"),
  ('gradient_dropping', 'values', ('sign2',), "'exponent4'"),
  ('variance_based', 'values', ('int8', 'sign2'), "'exponent4'"),
  ('gtopk', 'values', ('exponent4', 'int8'), "'float32'"),
  ('dgc', 'indices', ('bitmap',), "'elias_fano'"),
  ('gtopk', 'indices', ('run_length',), "'elias_fano'"),
  ('gtopk', 'topology', ('ring',), "'butterfly'"),
  ('gtopk', 'put_back', ('none',), "('exact', 'paper')"),
  ('variance_based', 'rounding', ('up',), "('keep', 'paper')"),
  ('dgc', 'min_size', (-1,), 'at least 0'),
  ('dgc', 'dense_paths', ('(', '*'), 'regular expression'),
  ('dgc', 'seed', (-1, 2**32), 'in 0..4294967295'),
  ('power_sgd', 'seed', (-1, 2**32), 'in 0..4294967295'),
  ('dgc', 'axis_name', ((),), 'must name an axis'),
)


@pytest.mark.parametrize(
  'recipe, name, value, rule',
  [
    pytest.param(recipe, name, value, rule, id=f'{recipe}-{name}-{value}')
    for recipe, name, values, rule in OUT_OF_RANGE
    for value in values
  ],
)
def test_a_value_out_of_range_is_named_with_its_rule(recipe, name, value, rule):
  with pytest.raises(ValueError) as e:
    made(recipe, **{name: value})
  text = str(e.value)
  assert name in text and rule in text and 'got ' in text
  if not isinstance(value, tuple):
    assert str(value) in text


def kind_of(recipe, name):
  """'number', 'whole number', 'word', 'flag', or the name of another kind."""
  factory = gs.recipes.RECIPES[recipe].factory
  annotation = typing.get_type_hints(factory)[name]
  union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  for kind in typing.get_args(annotation) if union else (annotation,):
    if typing.get_origin(kind) is typing.Literal:
      return 'word'
    if kind in KINDS:
      return KINDS[kind]
  return name


KINDS = {float: 'number', int: 'whole number', bool: 'flag'}
ARGUMENTS = [
  (recipe, name)
  for recipe, line in gs.recipes.RECIPES.items()
  for name in inspect.signature(line.factory).parameters
]


def wrong_kinds(kind):
  """Values that are not even of this kind."""
  if kind == 'number':
    return (True, '0.1', object(), 1j, np.ones(2, np.float32), np.bool_(True))
  if kind == 'whole number':
    return (1.5, 7.0, True, '7', object(), np.float32(7), np.ones(2, int))
  if kind == 'word':
    return (3, object(), True, ('fixed',))
  if kind == 'flag':
    return (1, 0.0, 'yes', None, object())
  if kind == 'ladder':
    return (0.5, '0.5', None, object(), ('a', 'b'))
  assert kind in ('axis_name', 'dense_paths')
  return (3, 0.5, object(), ['w'])


@pytest.mark.parametrize('recipe, name', ARGUMENTS)
def test_another_kind_is_a_type_error_that_names_the_argument(recipe, name):
  """Every argument of every recipe, by its type."""
  more = {'exchange': 'reduce_scatter'} if name == 'bucket_size' else {}
  for value in wrong_kinds(kind_of(recipe, name)):
    with pytest.raises(TypeError, match=name):
      made(recipe, **{**more, name: value})


# --- what does not go together ----------------------------------------------


def test_combinations_without_a_meaning_are_refused():
  for recipe, kwargs, said in (
    ('dgc', dict(indices='run_length', values='bfloat16'), 'run_length'),
    ('qsgd', dict(code='elias', exchange='reduce_scatter'), "'fixed'"),
    ('one_bit_sgd', dict(bucket_size=64), 'bucket_size.*all_gather.*64'),
    (
      'one_bit_sgd',
      dict(bucket_size=0, exchange='reduce_scatter'),
      'bucket_size must be at least 1, got 0',
    ),
  ):
    with pytest.raises(ValueError, match=said):
      made(recipe, **kwargs)


# The beginning of the message, and the call.
COMBINATIONS = {
  'ladder must be': lambda: gs.strom(1.0, ladder=(), axis_name=None),
  "rounding='paper' describes the four-bit code": lambda: gs.variance_based(
    1.0, rounding='paper', values='float32', axis_name=None
  ),
  'values must be one of': lambda: gs.variance_based(
    1.0, values='int8', axis_name=None
  ),
  "needs values='exponent4'": lambda: gs.variance_based(
    1.0, values='float32', indices='word28', axis_name=None
  ),
  'alpha must be': lambda: gs.variance_strom(
    0.0, threshold=1.0, axis_name=None
  ),
  'threshold must be': lambda: gs.variance_strom(
    1.0, threshold=-1.0, axis_name=None
  ),
}


@pytest.mark.parametrize('message', COMBINATIONS)
def test_what_does_not_go_together_is_an_error(message):
  with pytest.raises(ValueError, match=message):
    COMBINATIONS[message]()


def test_random_k_refuses_a_density_that_changes():
  with pytest.raises(TypeError, match='must be a number'):
    gs.random_k(lambda step: 0.5, axis_name=None)


# --- what is a number -------------------------------------------------------

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
    ('dgc', {'min_size': np.int64(5)}, {'min_size': 5}),
    (
      'qsgd',
      {'levels': np.int64(3), 'min_size': 0},
      {'levels': 3, 'min_size': 0},
    ),
    ('power_sgd', {'rank': np.int32(3)}, {'rank': 3}),
    ('ada_comp', {'bin_size': np.array(9)}, {'bin_size': 9}),
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
