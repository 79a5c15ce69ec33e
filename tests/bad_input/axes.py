"""What is no name of an axis, and names of axes that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gradsparse as gs
import jax
import jax.numpy as jnp
from tests.bad_input.cases import NOT_AN_AXIS
from tests.bad_input.cases import Case
from tests.bad_input.cases import values
from tests.bad_input.losses import qsvrg
from tests.bad_input.subjects import AXIS
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import ONES
from tests.bad_input.subjects import PARAMS
from tests.bad_input.subjects import STATE
from tests.bad_input.subjects import scheme
from tests.bad_input.wrappers import average


def mapped(fn: Callable[[Any], Any]) -> Callable[[], Any]:
  """fn of one worker's ones, under the axis that is really there."""
  return lambda: jax.eval_shape(jax.vmap(fn, axis_name=AXIS), jnp.ones((2, 3)))


def flat_ones(name: str) -> Any:
  """Parameters for any scheme; PowerSGD takes matrices."""
  return jnp.ones((4, 3)) if name == 'power_sgd' else ONES


def names() -> Iterator[Case]:
  """What is no name of an axis."""
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


def axes() -> Iterator[Case]:
  """Axes that are not there, with the one that was perhaps meant."""
  meant = r"axis_name must be an axis .*\('workers',\), got 'worker' \(did you "
  for name in gs.recipes.RECIPES:
    tx, state = scheme(name, 'worker'), scheme(name).init(flat_ones(name))
    yield Case(
      f'{name}-axis-misspelt',
      mapped(lambda x, tx=tx, s=state, n=name: tx.update(flat_ones(n), s)[0]),
      NameError,
      meant + "mean 'workers'",
    )
  for where, fn in {
    'mean': lambda x: gs.workers.mean(x, 'worker'),
    'local': lambda x: gs.workers.local(x, 'worker'),
    'clip': lambda x: gs.clip_local_norm(1.0, axis_name='worker').update(x, ()),
    'average': lambda x: gs.periodic_average(x, (), 0, axis_name='worker'),
  }.items():
    yield Case(f'{where}-axis-misspelt', mapped(fn), NameError, meant)
  wrong = gs.dense(axis_name='worker')
  for where, call in {
    'specs': lambda: gs.workers.specs(wrong, PARAMS, 2),
    'init': lambda: gs.workers.init(wrong, PARAMS, 2),
  }.items():
    yield Case(
      f'{where}-axis-misspelt',
      call,
      NameError,
      meant + ".*init, specs, wrap and parallel take axis_name='worker'",
    )
  for where, call in {
    'mean': lambda: gs.workers.mean(ONES),
    'update': lambda: DROPPING_ON.update(PARAMS, STATE),
    'jit': lambda: jax.jit(DROPPING_ON.update)(PARAMS, STATE),
  }.items():
    yield Case(
      f'{where}-outside',
      call,
      NameError,
      r"axis_name must be an axis .* over, \(\), got 'workers'.*plain jax.jit.*"
      r"gs.workers.wrap or jax.shard_map.*'workers'.*axis_name=None",
    )


CASES = (*names(), *axes())
