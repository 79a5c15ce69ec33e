"""Moments and QSVRG: their arguments, losses and examples."""

from __future__ import annotations

from collections.abc import Iterator

import gradsparse as gs
import jax.numpy as jnp
from tests.bad_input.cases import NOT_A_FLAG
from tests.bad_input.cases import NOT_A_FUNCTION
from tests.bad_input.cases import NOT_POSITIVE
from tests.bad_input.cases import POSITIVE
from tests.bad_input.cases import SEEDS
from tests.bad_input.cases import Case
from tests.bad_input.cases import number
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.subjects import ONES
from tests.bad_input.subjects import dot


def loss(params, example):
  return 0.0


def qsvrg(**kwargs):
  defaults = dict(learning_rate=0.1, inner_steps=2, axis_name=None)
  return gs.qsvrg(kwargs.pop('loss_fn', loss), **{**defaults, **kwargs})


def arguments() -> Iterator[Case]:
  """Arguments of those that are given a loss."""
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


BATCHES = (
  ('scalar', jnp.ones(()), ValueError, r'examples as leading axis, got .*\(\)'),
  ('ragged', (ONES, jnp.ones(4)), ValueError, r'\[\(3,\), \(4,\)\]'),
  ('none', None, ValueError, r'examples as leading axis, got shapes \[\]'),
  (
    'empty',
    jnp.ones((0, 2)),
    ValueError,
    r'at least 1 example, got .*\(0, 2\)',
  ),
  ('text', 'abc', TypeError, "must be an array or a number, got 'abc'"),
)
LOSSES = (
  ('vector', lambda p, x: p, 'a scalar of floating-point numbers, got .*3'),
  ('None', lambda p, x: None, 'a scalar of .*got None'),
  ('text', lambda p, x: 'f4', "a scalar of .*got 'f4'"),
  ('int', lambda p, x: 3, 'a scalar of floating-point numbers, got 3'),
  ('complex', lambda p, x: 1j, 'a scalar of floating-point numbers, got 1j'),
)


def losses() -> Iterator[Case]:
  """What is differentiated, and the examples that it is a function of."""

  def epoch(loss):
    made = gs.qsvrg(loss, learning_rate=0.1, inner_steps=1, axis_name=None)
    return lambda params, data: made.epoch(made.init(params), data)

  makers = {
    'moments': gs.value_and_grad_moments,
    'batch_moments': gs.batch_value_and_grad_moments,
    'microbatches': lambda loss: gs.moments_from_microbatches(loss, 3),
    'qsvrg': epoch,
  }
  for where, make in makers.items():
    for name, batch, error, says in BATCHES:
      yield Case(
        f'{where}-batch-{name}',
        lambda m=make, b=batch: m(dot)(ONES, b),
        error,
        f'(batch|data).*{says}',
      )
    for name, loss, says in LOSSES:
      yield Case(
        f'{where}-loss-{name}',
        lambda m=make, loss=loss: m(loss)(ONES, ONES),
        TypeError,
        f'loss_fn must return {says}',
      )
  for where, make in (
    ('moments', gs.value_and_grad_moments),
    ('batch_moments', gs.batch_value_and_grad_moments),
  ):
    yield Case(
      f'{where}-microbatch',
      lambda m=make: m(dot, microbatch=2)(ONES, ONES),
      ValueError,
      'microbatch must divide the batch of 3 examples, got 2',
    )
    yield Case(
      f'{where}-aux',
      lambda m=make: m(dot, has_aux=True)(ONES, ONES),
      TypeError,
      r'loss_fn must return \(loss, aux\) with has_aux=True, got',
    )
  yield Case(
    'microbatches-divide',
    lambda: gs.moments_from_microbatches(dot, 2)(ONES, ONES),
    ValueError,
    'num_microbatches must divide the batch of 3 examples, got 2',
  )
  made = gs.qsvrg(dot, learning_rate=0.1, inner_steps=1, axis_name=None)
  for name, call, error, says in (
    (
      'state',
      lambda: made.epoch(None, ONES),
      TypeError,
      'state must be a QSVRGState, got NoneType',
    ),
    (
      'params',
      lambda: made.init({}),
      ValueError,
      'params must have at least 1',
    ),
    (
      'bytes',
      lambda: made.bytes_per_epoch(None),
      ValueError,
      'params must have at least 1 element',
    ),
  ):
    yield Case(f'qsvrg-{name}', call, error, says)
  x, kernel = jnp.ones((5, 4)), jnp.ones((4, 3))
  for name, args, error, says in (
    ('x-1d', (x[0], kernel, kernel), ValueError, r'x must be a matrix.*\(4,\)'),
    ('x-3d', (x[None], kernel, kernel), ValueError, r'x must .*\(1, 5, 4\)'),
    ('x-text', ('x', kernel, kernel), TypeError, "x: .*must .*got 'x'"),
    ('x-int', (jnp.int32(x), kernel, kernel), TypeError, 'x: .*got int32'),
    ('kernel', (x, kernel.T, kernel.T), ValueError, r'kernel must .*\(3, 4\)'),
    (
      'tap',
      (x, kernel, kernel.T),
      ValueError,
      r'tap its shape, got .*\(3, 4\)',
    ),
    ('tap-1d', (x, kernel, ONES), ValueError, r'tap must be a matrix.*\(3,\)'),
  ):
    yield Case(
      f'dense_with_moment-{name}',
      lambda a=args: gs.dense_with_moment(*a),
      error,
      says,
    )


CASES = (*arguments(), *losses())
