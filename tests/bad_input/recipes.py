"""Arguments of recipes: each of every recipe, and combinations.

All of it is refused before anything is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
import inspect
import types
import typing

import gradsparse as gs
import jax.numpy as jnp
import numpy as np
from tests.bad_input.cases import INF
from tests.bad_input.cases import NAN
from tests.bad_input.cases import NOT_POSITIVE
from tests.bad_input.cases import POSITIVE
from tests.bad_input.cases import SEEDS
from tests.bad_input.cases import Case
from tests.bad_input.cases import label
from tests.bad_input.cases import values


def made(recipe: str, **kwargs):
  """The example of a recipe with these arguments, on one worker."""
  return gs.recipes.RECIPES[recipe].make(**{'axis_name': None, **kwargs})


# recipe, argument, wrong values of the right kind, the words of the rule.
OUT_OF_RANGE = (
  ('gradient_dropping', 'density', (0.0, 1.5, -0.1, NAN, INF, 2), '(0, 1]'),
  ('dgc', 'density', (0.0, 1.5, NAN, np.float32(7), jnp.float32(2)), '(0, 1]'),
  ('gtopk', 'density', (0, -1, NAN), '(0, 1]'),
  ('dryden', 'density', (0, 1.5, NAN), '(0, 1]'),
  ('random_k', 'density', (0, 2, NAN), '(0, 1]'),
  ('ef21', 'density', (0, 2, NAN), '(0, 1]'),
  ('dgc', 'momentum', (1.0, -0.1, NAN, INF), '[0, 1)'),
  ('dgc', 'sample_rate', (0.0, 2, NAN), '(0, 1]'),
  ('strom', 'threshold', NOT_POSITIVE, POSITIVE),
  ('variance_strom', 'threshold', NOT_POSITIVE, POSITIVE),
  ('variance_based', 'alpha', NOT_POSITIVE, POSITIVE),
  ('variance_strom', 'alpha', NOT_POSITIVE, POSITIVE),
  ('variance_based', 'decay', (0, 1.5, NAN), '(0, 1]'),
  ('variance_strom', 'decay', (0, 1.5, NAN), '(0, 1]'),
  ('strom', 'ladder', ((), (0.5, 0.1), (0.1, 0.1)), 'ascending fractions'),
  ('ada_comp', 'bin_size', (0, -5), 'at least 1'),
  ('terngrad', 'clip', (0, -1.0, NAN), 'a number > 0'),
  ('sign_majority', 'scale', NOT_POSITIVE, POSITIVE),
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
  ('dgc', 'scope', ('all',), "('leaf', 'global', 'chunk', 'tile')"),
  ('dgc', 'mean', ('all',), "('workers', 'senders')"),
  ('strom', 'mean', ('all',), "('workers', 'senders')"),
  ('dryden', 'error_decay', (1.1, -0.1), '[0, 1]'),
  ('dgc', 'error_decay', (1.1, -0.1), '[0, 1]'),
  ('variance_based', 'error_decay', (1.1, -0.1), '[0, 1]'),
  ('dgc', 'tile', (0,), 'at least 1'),
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
  ('dgc', 'seed', SEEDS, 'in 0..4294967295'),
  ('power_sgd', 'seed', SEEDS, 'in 0..4294967295'),
  ('dgc', 'axis_name', ((), '', ('a', '')), 'name an axis'),
  ('gtopk', 'axis_name', (('a', 'a'),), 'name each axis once'),
)

WRONG_KINDS = {
  'number': (True, '0.1', object(), 1j, np.ones(2, np.float32), np.True_),
  'whole number': (
    1.5, 7.0, True, '7', object(), np.float32(7), np.ones(2, int),
  ),
  'word': (3, object(), True, ('fixed',)),
  'flag': (1, 0.0, 'yes', None, object()),
  'ladder': (0.5, '0.5', None, object(), ('a', 'b')),
  'axis_name': (3, 0.5, object(), ['w']),
  'dense_paths': (3, 0.5, object(), ['w']),
}  # fmt: skip


def kind_of(recipe: str, name: str) -> str:
  """A key of `WRONG_KINDS`, by the annotation of the argument."""
  factory = gs.recipes.RECIPES[recipe].factory
  annotation = typing.get_type_hints(factory)[name]
  union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
  plain = {float: 'number', int: 'whole number', bool: 'flag'}
  for kind in typing.get_args(annotation) if union else (annotation,):
    if typing.get_origin(kind) is typing.Literal:
      return 'word'
    if kind in plain:
      return plain[kind]
  return name


ARGUMENTS = tuple(
  (recipe, name)
  for recipe, line in gs.recipes.RECIPES.items()
  for name in inspect.signature(line.factory).parameters
)


def of_recipes() -> Iterator[Case]:
  """Every argument of every recipe."""
  for recipe, name, wrong, rule in OUT_OF_RANGE:
    yield from values(
      recipe, lambda v, r=recipe, n=name: made(r, **{n: v}), name, wrong, rule
    )
  for recipe, name in ARGUMENTS:
    more = {'exchange': 'reduce_scatter'} if name == 'bucket_size' else {}
    for value in WRONG_KINDS[kind_of(recipe, name)]:
      yield Case(
        f'{recipe}-{name}={label(value)}',
        lambda r=recipe, k=more | {name: value}: made(r, **k),
        TypeError,
        f'{name}.* must be .*got .',
      )


def combinations() -> Iterator[Case]:
  """What does not go together, or is no number of its kind."""
  for recipe, kwargs, says in (
    ('dgc', dict(indices='run_length', values='bfloat16'), 'run_length'),
    ('qsgd', dict(code='elias', exchange='reduce_scatter'), "'fixed'"),
    ('one_bit_sgd', dict(bucket_size=64), 'bucket_size.*all_gather.*64'),
    (
      'one_bit_sgd',
      dict(bucket_size=0, exchange='reduce_scatter'),
      'bucket_size must be at least 1, got 0',
    ),
    (
      'variance_based',
      dict(rounding='paper', values='float32'),
      "rounding='paper' describes the four-bit code",
    ),
    (
      'variance_based',
      dict(values='float32', indices='word28'),
      "needs values='exponent4'",
    ),
    ('strom', dict(ladder=(0.1, 2)), r'each rung of ladder must .*\(0, 1\].*2'),
    ('strom', dict(ladder=(NAN,)), r'each rung of ladder must .*got nan'),
    ('strom', dict(ladder=(0.0, 1.0)), r'each rung of ladder must .*got 0.0'),
  ):
    yield Case(
      f'{recipe}-{kwargs}',
      lambda r=recipe, k=kwargs: made(r, **k),
      ValueError,
      says,
    )
  yield Case(
    'random_k-schedule',
    lambda: gs.random_k(lambda step: 0.5, axis_name=None),
    TypeError,
    'density must be a number, got <function',
  )
  for name, schedule in (
    ('if', lambda step: 0.5 if step < 3 else 0.1),
    ('no argument', lambda: 0.5),
  ):
    yield Case(
      f'dgc-schedule-{name}',
      lambda s=schedule: gs.dgc(s, axis_name=None).init(jnp.ones((300, 40))),
      TypeError,
      r'density must be a function of one traced step, .* got <function',
    )


CASES = (*of_recipes(), *combinations())
