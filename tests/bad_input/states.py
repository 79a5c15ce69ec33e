"""Wrong states: given to an update, read, or switched."""

from __future__ import annotations

from collections.abc import Iterator

import gradsparse as gs
import jax
import jax.numpy as jnp
import optax
from tests.bad_input.cases import Case
from tests.bad_input.subjects import DENSE
from tests.bad_input.subjects import DROPPING
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import NO_TRANSFORMATIONS
from tests.bad_input.subjects import PARAMS
from tests.bad_input.subjects import SCHEMES
from tests.bad_input.subjects import STATE
from tests.bad_input.subjects import fresh
from tests.bad_input.subjects import scheme
from tests.bad_input.subjects import traced

# (scheme, whose state it gets, words)
FOREIGN = (
  ('gradient_dropping', 'dgc', 'MomentumCorrectionState and not ResidualState'),
  ('gradient_dropping', 'variance_based', 'VarianceState and not Residual'),
  ('gradient_dropping', 'ef21', 'EstimateState and not ResidualState'),
  ('dgc', 'gradient_dropping', 'ResidualState and not MomentumCorrectionState'),
  ('dense', 'gradient_dropping', 'ResidualState and not NoMemoryState'),
  ('qsgd', 'strom', 'ResidualState and not NoMemoryState'),
  ('gradient_dropping', 'power_sgd', r'compressor: \[0\] should not be there'),
  ('power_sgd', 'gradient_dropping', r'compressor: \[0\] is missing'),
  (
    'gradient_dropping',
    'scattered',
    r"exchange: \['bias'\] should not be there",
  ),
  ('scattered', 'gradient_dropping', r"exchange: \['bias'\] is missing"),
)


def given() -> Iterator[Case]:
  """States given to an update: another scheme's, or none."""
  for own, foreign, says in FOREIGN:
    name = own if own in gs.recipes.RECIPES else 'one_bit_sgd'
    yield Case(
      f'{own}-state-of-{foreign}',
      lambda o=own, f=foreign: traced(SCHEMES[o], PARAMS, fresh(SCHEMES[f])),
      ValueError,
      f"{name} was given another scheme's state: its .*{says}.*gs.switch",
    )
  yield Case(
    'power_sgd-state-of-another-rank',
    lambda: traced(
      gs.power_sgd(2, axis_name=None),
      jnp.ones((8, 6)),
      gs.power_sgd(1, axis_name=None).init(jnp.ones((8, 6))),
    ),
    ValueError,
    r'shape \(1, 6\) and not \(2, 6\)',
  )
  for what, state, says in (
    ('steps-float', STATE._replace(steps=jnp.float32(0)), 'float32 .* int32'),
    ('steps-None', STATE._replace(steps=None), 'steps: the only leaf is miss'),
    ('stats-empty', STATE._replace(stats=()), 'stats: .*is missing'),
    (
      'memory-int',
      STATE._replace(memory=jax.tree.map(jnp.int32, STATE.memory)),
      'memory: .*int32 and not float32',
    ),
    (
      'memory-bfloat16',
      STATE._replace(memory=jax.tree.map(jnp.bfloat16, STATE.memory)),
      'memory: .*bfloat16 and not float32',
    ),
    ('memory-None', STATE._replace(memory=None), 'NoneType and not Residual'),
  ):
    yield Case(
      f'state-{what}',
      lambda s=state: DROPPING.update(PARAMS, s),
      ValueError,
      f"gradient_dropping was given another scheme's state: .*{says}",
    )
  yield Case(
    'state-of-text',
    lambda: DROPPING.update(PARAMS, jax.tree.map(lambda x: 'x', STATE)),
    TypeError,
    "state: .*must be an array or a number, got 'x'",
  )
  local, acc = gs.local_gradient(DROPPING), gs.accumulate(DROPPING, every=2)
  for name, tx, wanted in (
    ('gradient_dropping', DROPPING, 'CompressedMeanState'),
    ('dgc', SCHEMES['dgc'], 'CompressedMeanState'),
    ('local_gradient', local, 'LocalGradientState'),
    ('accumulate', acc, 'AccumulateState'),
    ('skip_rejected', gs.skip_rejected(DROPPING), 'SkipRejectedState'),
  ):
    for state in (None, (), optax.EmptyState(), 3, (STATE,), PARAMS):
      kind = type(state).__name__
      yield Case(
        f'{name}-state-{kind}-{len(jax.tree.leaves(state))}',
        lambda tx=tx, s=state: tx.update(PARAMS, s),
        ValueError,
        f'{name} needs the state .* its own init returned, an? {wanted}, got '
        f'{kind}',
      )
  stacked = gs.workers.stack(STATE, 2)
  yield Case(
    'state-stacked',
    lambda: DROPPING.update(PARAMS, stacked),
    ValueError,
    r'state.steps must have shape \(\) in update, got \(2,\)',
  )


def readers() -> Iterator[Case]:
  """States that are read or switched."""
  for where, call in {
    'pending': gs.pending,
    'metrics': gs.metrics,
    'switch': lambda s: gs.switch(DROPPING, DROPPING, s),
  }.items():
    for name, state, found in (
      ('None', None, 0),
      ('number', 3, 0),
      ('text', 'state', 0),
      ('parameters', PARAMS, 0),
      ('transformation', DROPPING, 0),
      ('adam', optax.adam(0.1).init(PARAMS), 0),
      ('two', (STATE, STATE), 2),
    ):
      if where == 'metrics' and found:
        continue  # it adds them up
      kind = type(state).__name__
      yield Case(
        f'{where}-{name}',
        lambda call=call, s=state: call(s),
        ValueError,
        f'state must be .* gradsparse scheme.*, found {found} .*{kind}',
      )
  owing = STATE._replace(memory=jax.tree.map(jnp.ones_like, STATE.memory))
  sgd = optax.sgd(0.1)
  for name, args, says in (
    (
      'no-memory',
      (DROPPING, scheme('dense'), owing),
      'pending values would be lost',
    ),
    ('old-sgd', (sgd, DROPPING, STATE), 'state does not belong to tx_old'),
    (
      'new-sgd',
      (DROPPING, sgd, STATE),
      'the state of tx_new must be .*found 0',
    ),
    ('old-dgc', (scheme('dgc'), DROPPING, STATE), 'does not belong to tx_old'),
  ):
    yield Case(f'switch-{name}', lambda a=args: gs.switch(*a), ValueError, says)
  yield Case(
    'resize-dgc',
    lambda: gs.workers.resize(
      scheme('dgc'), gs.workers.init(DROPPING_ON, PARAMS, 2), 1
    ),
    ValueError,
    r'does not belong to tx: .*; gs.switch\(tx_old, tx, state\)',
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


CASES = (*given(), *readers())
