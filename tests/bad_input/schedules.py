"""Schedules: their arguments, and a density at step 0 that is none."""

from __future__ import annotations

from collections.abc import Iterator
import re

import gradsparse as gs
import jax.numpy as jnp
import numpy as np
from tests.bad_input.cases import INF
from tests.bad_input.cases import NAN
from tests.bad_input.cases import Case
from tests.bad_input.cases import number
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.subjects import AXIS
from tests.bad_input.subjects import PARAMS


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


def first_densities() -> Iterator[Case]:
  """What a schedule says at the first step."""
  for recipe in (gs.dgc, gs.gtopk, gs.gradient_dropping):
    for value in (7.0, NAN, 0, -1, np.ones(2), '0.1', None, 1j, True, [0.5]):
      wrong = isinstance(value, (int, float)) and not isinstance(value, bool)
      on, off = (
        recipe(lambda step, v=value: v, axis_name=axis, min_size=0)
        for axis in (AXIS, None)
      )
      for where, call in (
        ('init', lambda tx=off: tx.init(PARAMS)),
        ('plan', lambda tx=on: gs.plan(tx, PARAMS, 2)),
        ('specs', lambda tx=on: gs.workers.specs(tx, PARAMS, 2)),
      ):
        yield Case(
          f'{recipe.__name__}-{where}-schedule-{value}',
          call,
          ValueError if wrong else TypeError,
          'density .* step 0.* must be .* got',
        )


CASES = (*schedules(), *first_densities())
