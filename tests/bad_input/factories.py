"""Wrong arguments of factories: recipes, what goes around them, schedules.

All of it is refused before anything is traced.
"""

from __future__ import annotations

from collections.abc import Iterator
import inspect
import re
import types
import typing

import gradsparse as gs
from gradsparse import extend
import jax.numpy as jnp
import numpy as np
import optax
from tests.bad_input.cases import INF
from tests.bad_input.cases import NAN
from tests.bad_input.cases import NOT_A_FLAG
from tests.bad_input.cases import NOT_A_FUNCTION
from tests.bad_input.cases import NOT_AN_AXIS
from tests.bad_input.cases import Case
from tests.bad_input.cases import label
from tests.bad_input.cases import number
from tests.bad_input.cases import values
from tests.bad_input.cases import whole

AXIS = gs.workers.AXIS
POSITIVE = 'a finite number > 0'
NOT_POSITIVE = (0, 0.0, -1, INF, NAN)
SEEDS = (-1, 2**32, 10**30)


def made(recipe: str, **kwargs):
  """The example of a recipe with these arguments, on one worker."""
  return gs.recipes.RECIPES[recipe].make(**{'axis_name': None, **kwargs})


# --- recipes ----------------------------------------------------------------

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


# --- what goes around a scheme ----------------------------------------------

DENSE = gs.dense(axis_name=None)
DROPPING = gs.gradient_dropping(0.5, axis_name=None)
NO_TRANSFORMATIONS = (None, 'dgc', 3, gs.dgc, (1, 2), {})


def loss(params, example):
  return 0.0


def average(**kwargs):
  return gs.periodic_average({}, {}, **{'step': 0, 'axis_name': None, **kwargs})


def qsvrg(**kwargs):
  defaults = dict(learning_rate=0.1, inner_steps=2, axis_name=None)
  return gs.qsvrg(kwargs.pop('loss_fn', loss), **{**defaults, **kwargs})


def around() -> Iterator[Case]:
  """Arguments of clipping, accumulation, local gradients, QSVRG."""

  def clip(threshold):
    return gs.clip_local_norm(threshold, axis_name=None)

  yield from number('clip', clip, 'threshold', NOT_POSITIVE, POSITIVE)
  for where, call in (
    ('clip', lambda v: gs.clip_local_norm(1.0, axis_name=v)),
    ('average', lambda v: average(axis_name=v)),
    ('qsvrg', lambda v: qsvrg(axis_name=v)),
    ('mean', lambda v: gs.workers.mean(1.0, v)),
    ('local', lambda v: gs.workers.local(1.0, v)),
  ):
    yield from values(
      where, call, 'axis_name', NOT_AN_AXIS, 'be a string', TypeError
    )
  yield from whole(
    'accumulate',
    lambda v: gs.accumulate(DENSE, every=v),
    'every',
    (0, -1),
    'at least 1',
  )
  yield from values(
    'local_gradient',
    lambda v: gs.local_gradient(DROPPING, v),
    'mode',
    ('sums', ''),
    "one of ('sum', 'partial', 'error')",
  )
  for value in (1, None, ['sum']):
    yield Case(
      f'local_gradient-mode={value}',
      lambda v=value: gs.local_gradient(DROPPING, v),
      TypeError,
      rf"mode must be one of \('sum', .*got {re.escape(repr(value))}",
    )
  for name, inner, mode, error, says in (
    ('a chain', optax.chain(DROPPING), 'sum', TypeError, 'gradsparse scheme'),
    ('nothing', None, 'sum', TypeError, 'gradsparse scheme .*got NoneType'),
    ('ef21', made('ef21'), 'sum', ValueError, 'ef21 sends corrections'),
    ('qsgd', made('qsgd'), 'error', ValueError, "mode='error' .* qsgd keeps"),
  ):
    yield Case(
      f'local_gradient-{name}',
      lambda i=inner, m=mode: gs.local_gradient(i, m),
      error,
      says,
    )
  yield from whole(
    'average', lambda v: average(every=v), 'every', (0, -5), 'at least 1'
  )
  yield from whole(
    'average', lambda v: average(step=v), 'step', (-1,), 'at least 0'
  )
  yield from number(
    'qsvrg',
    lambda v: qsvrg(learning_rate=v),
    'learning_rate',
    NOT_POSITIVE,
    POSITIVE,
  )
  yield from whole(
    'qsvrg', lambda v: qsvrg(inner_steps=v), 'inner_steps', (0,), 'at least 1'
  )
  yield from whole(
    'qsvrg', lambda v: qsvrg(levels=v), 'levels', (0, 65_535), 'in 1..65534'
  )
  yield from whole('qsvrg', lambda v: qsvrg(seed=v), 'seed', SEEDS, 'in 0..')
  yield from values(
    'qsvrg', lambda v: qsvrg(code=v), 'code', ('rice',), "'fixed'"
  )
  for where, call in (
    ('qsvrg', lambda v: qsvrg(loss_fn=v)),
    ('moments', gs.value_and_grad_moments),
    ('batch_moments', gs.batch_value_and_grad_moments),
    ('microbatches', lambda v: gs.moments_from_microbatches(v, 2)),
  ):
    yield from values(
      where, call, 'loss_fn', NOT_A_FUNCTION, 'a function', TypeError
    )
  for where, factory in (
    ('moments', gs.value_and_grad_moments),
    ('batch_moments', gs.batch_value_and_grad_moments),
  ):
    yield from whole(
      where,
      lambda v, f=factory: f(loss, microbatch=v),
      'microbatch',
      (0, -1),
      'at least 1',
    )
    yield from values(
      where,
      lambda v, f=factory: f(loss, has_aux=v),
      'has_aux',
      NOT_A_FLAG,
      'True or False',
      TypeError,
    )
  yield from whole(
    'microbatches',
    lambda v: gs.moments_from_microbatches(loss, v),
    'num_microbatches',
    (0, 1),
    'at least 2',
  )
  for tx in (*NO_TRANSFORMATIONS, optax.MultiSteps(optax.sgd(0.1), 2)):
    kind = type(tx).__name__
    yield Case(
      f'accumulate-tx-{kind}',
      lambda tx=tx: gs.accumulate(tx, every=2),
      TypeError,
      f'tx must be a GradientTransformation, got {kind}',
    )
  for where, call, name in (
    ('switch', lambda v: gs.switch(v, DENSE, ()), 'tx_old'),
    ('switch', lambda v: gs.switch(DENSE, v, ()), 'tx_new'),
  ):
    for value in NO_TRANSFORMATIONS:
      kind = type(value).__name__
      yield Case(
        f'{where}-{name}-{kind}',
        lambda call=call, v=value: call(v),
        TypeError,
        f'{name} must be an optax transformation .*got {kind}',
      )
  yield from values(
    'check_scheme', gs.testing.check_scheme, 'make', (3,), 'a function',
    TypeError,
  )  # fmt: skip
  yield from whole(
    'check_scheme',
    lambda v: gs.testing.check_scheme(lambda axis: DENSE, steps=v),
    'steps',
    (0, 2),
    'at least 3',
  )


# --- schedules --------------------------------------------------------------


class Listed:
  """A schedule that lists its densities."""

  def __init__(self, ladder):
    self.ladder = ladder

  def __call__(self, step):
    return 0.5


def schedules() -> Iterator[Case]:
  """Arguments of schedules."""
  stages = gs.schedules.DensitySchedule
  for wrong in (3, None, 'abc', (0.1,), ((0,),), ((0, 0.1, 3),), {0: 0.1}):
    yield Case(
      f'stages={wrong!r}',
      lambda v=wrong: stages(v),
      TypeError,
      rf'stages must be \(first step, density\) pairs, got '
      rf'{re.escape(repr(wrong))}',
    )
  for wrong in (
    (), ((1, 0.1),), ((0, 0.1), (0, 0.2)), ((0, 0.1), (5, 0.2), (3, 0.1)),
  ):  # fmt: skip
    firsts = re.escape(str([step for step, _ in wrong]))
    yield Case(
      f'stages={wrong!r}',
      lambda v=wrong: stages(v),
      ValueError,
      f'stages must begin at step 0 and ascend, got first steps {firsts}',
    )
  yield from whole(
    'stages', lambda v: stages(((v, 0.1),)), 'step', (-1,), 'at least 0'
  )
  yield from number(
    'stages', lambda v: stages(((0, v),)), 'density', (0, 1.5, NAN), '(0, 1]'
  )
  yield from whole(
    'stages.at', stages(((0, 0.1),)).at, 'step', (-1,), 'at least 0'
  )
  for warmup in (gs.schedules.dgc_warmup, gs.schedules.gtopk_warmup):
    where = warmup.__name__
    yield from number(
      where,
      lambda v, f=warmup: f(v, 4),
      'final_density',
      (0, 1.5, INF, NAN),
      '(0, 1]',
    )
    yield from whole(
      where,
      lambda v, f=warmup: f(0.1, v),
      'warmup_steps',
      (-1,),
      'at least 0',
    )

  def staged(densities):
    return gs.schedules.staged_warmup(densities, 0.1, 4)

  yield from values(
    'staged', staged, 'densities', (3, None, 'ab', {'a': 1}), 'a sequence',
    TypeError,
  )  # fmt: skip
  yield from number(
    'staged', lambda v: staged((v,)), 'densities', (0, 1.5, NAN), '(0, 1]'
  )
  linear = gs.schedules.LinearDropRatio
  yield from number('linear', linear, 'drop_ratio', (1.0, -0.1, NAN), '[0, 1)')
  yield from whole(
    'linear', lambda v: linear(0.9, v), 'warmup_steps', (0, -1), 'at least 1'
  )
  yield from number(
    'ladder_up', gs.schedules.ladder_up, 'density', (0, 2, NAN), '(0, 1]'
  )
  yield from values(
    'changes', gs.schedules.changes, 'number_at', (3,), 'a function', TypeError
  )

  def listed(ladder):
    tx = gs.gradient_dropping(Listed(ladder), axis_name=None)
    return tx.init(jnp.ones(3))

  yield from values(
    'listed', listed, 'ladder', ('ab', 3, None), 'a sequence', TypeError
  )
  yield from values('listed', listed, 'ladder', ((),), 'have a density')
  yield from number(
    'listed', lambda v: listed((v,)), 'ladder', (0, 2, NAN), '(0, 1]'
  )


# --- sockets ----------------------------------------------------------------


def joined(**kwargs):
  sockets = dict(
    memory=extend.memories.residual(),
    compressor=extend.compressors.everything(
      'dense', extend.codes.plain.of_leaves()
    ),
    exchange=extend.exchanges.all_reduce(),
  )
  return gs.compressed_mean(**{**sockets, 'axis_name': None, **kwargs})


def sockets() -> Iterator[Case]:
  """Arguments of those who join a scheme of their own."""
  for name, wrong, kind in (
    ('memory', extend.memories.residual, 'function'),
    ('memory', extend.exchanges.all_reduce(), 'Exchange'),
    ('compressor', 'top_k', 'str'),
    ('exchange', None, 'NoneType'),
  ):
    yield Case(
      f'compressed_mean-{name}-{kind}',
      lambda n=name, w=wrong: joined(**{n: w}),
      TypeError,
      f'{name} must be an? {name.title()}, got {kind}',
    )
  yield from whole(
    'compressed_mean', lambda v: joined(seed=v), 'seed', SEEDS, 'in 0..'
  )
  yield from number(
    'residual',
    lambda v: extend.memories.residual(decay=v),
    'decay',
    (1.5, -0.1, NAN),
    '[0, 1]',
  )
  yield Case(
    'sparse-values',
    lambda: extend.codes.sparse('elias_fano', 3),
    TypeError,
    'values must be .*got 3',
  )


CASES = (
  *of_recipes(),
  *combinations(),
  *around(),
  *schedules(),
  *sockets(),
)
