"""Around a scheme: clipping, accumulation, local gradients, shards."""

from __future__ import annotations

from collections.abc import Iterator
import math
import re

import gradsparse as gs
from jax.sharding import PartitionSpec as P
import optax
from tests.bad_input.cases import NOT_POSITIVE
from tests.bad_input.cases import POSITIVE
from tests.bad_input.cases import Case
from tests.bad_input.cases import number
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.recipes import made
from tests.bad_input.subjects import DENSE
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import NO_TRANSFORMATIONS
from tests.bad_input.subjects import PARAMS


def average(**kwargs):
  return gs.periodic_average({}, {}, **{'step': 0, 'axis_name': None, **kwargs})


def arguments() -> Iterator[Case]:
  """Arguments of what goes around a scheme."""

  def clip(threshold):
    return gs.clip_local_norm(threshold, axis_name=None)

  dropping = gs.gradient_dropping(0.5, axis_name=None)
  yield from number('clip', clip, 'threshold', NOT_POSITIVE, POSITIVE)
  yield from whole(
    'accumulate',
    lambda v: gs.accumulate(DENSE, every=v),
    'every',
    (0, -1),
    'at least 1',
  )
  yield from whole(
    'skip_rejected',
    lambda v: gs.skip_rejected(DENSE, max_consecutive=v),
    'max_consecutive',
    (0, -1),
    'at least 1',
  )
  yield from values(
    'local_gradient',
    lambda v: gs.local_gradient(dropping, v),
    'mode',
    ('sums', ''),
    "one of ('sum', 'partial', 'error')",
  )
  for value in (1, None, ['sum']):
    yield Case(
      f'local_gradient-mode={value}',
      lambda v=value: gs.local_gradient(dropping, v),
      TypeError,
      rf"mode must be one of \('sum', .*got {re.escape(repr(value))}",
    )
  for name, inner, mode, error, says in (
    ('a chain', optax.chain(dropping), 'sum', TypeError, 'gradsparse scheme'),
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
  for make in (gs.diloco, gs.sparse_loco):
    for value, error, rule in (
      (None, TypeError, 'a number, got None'),
      ('0.1', TypeError, "a number, got '0.1'"),
      (math.nan, ValueError, 'a finite number >= 0, got nan'),
      (-1.0, ValueError, 'a finite number >= 0, got -1.0'),
    ):
      yield Case(
        f'{make.__name__}-learning_rate={value}',
        lambda m=make, v=value: m(axis_name=None, learning_rate=v),
        error,
        f'learning_rate must be {rule}',
      )
  yield Case(
    'diloco-momentum=1',
    lambda: gs.diloco(axis_name=None, momentum=1.0),
    ValueError,
    r'momentum must be in \[0, 1\), got 1.0',
  )
  yield Case(
    'sparse_loco-tile=4',
    lambda: gs.sparse_loco(axis_name=None, tile=4),
    ValueError,
    r'k must be at most tile \* tile, 16 for tile=4, got 64',
  )
  for tx in (*NO_TRANSFORMATIONS, optax.MultiSteps(optax.sgd(0.1), 2)):
    kind = type(tx).__name__
    yield Case(
      f'accumulate-tx-{kind}',
      lambda tx=tx: gs.accumulate(tx, every=2),
      TypeError,
      f'tx must be a GradientTransformation, got {kind}',
    )
    yield Case(
      f'skip_rejected-inner-{kind}',
      lambda tx=tx: gs.skip_rejected(tx),
      TypeError,
      f'inner must be a GradientTransformation, got {kind}',
    )


def shards() -> Iterator[Case]:
  """Specs that say what cannot be."""
  tx = gs.gradient_dropping(0.5, scope='leaf', min_size=0, axis_name='replica')
  sizes = {'replica': 2, 'fsdp': 4}

  def plan(specs, num_workers=sizes):
    return gs.plan(gs.sharded(tx, specs), PARAMS, num_workers)

  for name, specs, error, says in (
    (
      'unknown',
      {'kernel': P('fsdpp'), 'bias': P()},
      ValueError,
      r"num_workers must .*without 'fsdpp' \(did you mean 'fsdp'\?\)",
    ),
    (
      'long',
      {'kernel': P('fsdp', None, None), 'bias': P()},
      ValueError,
      r"at most the 2 dimensions of \['kernel'\], got P\('fsdp', None, None\)",
    ),
    (
      'twice',
      {'kernel': P('fsdp', 'fsdp'), 'bias': P()},
      ValueError,
      r"must name a mesh axis once in a spec, got P\('fsdp', 'fsdp'\)",
    ),
    (
      'twice-in-one',
      {'kernel': P(('fsdp', 'fsdp')), 'bias': P()},
      ValueError,
      'must name a mesh axis once in a spec',
    ),
    (
      'own',
      {'kernel': P('replica'), 'bias': P()},
      ValueError,
      "param_specs shards parameters over 'replica', which is the axis of the",
    ),
    (
      'indivisible',
      {'kernel': P(None, 'fsdp'), 'bias': P()},
      ValueError,
      r"\['kernel'\] has 3 elements in dimension 1, .*do not divide evenly",
    ),
    ('missing', {'kernel': P()}, ValueError, 'param_specs must be a prefix of'),
    (
      'more',
      {'kernel': P(), 'bias': P(), 'x': P()},
      ValueError,
      'param_specs must be a prefix of the tree of parameters',
    ),
    (
      'text',
      {'kernel': 'fsdp', 'bias': P()},
      TypeError,
      'param_specs .*got str',
    ),
    ('None', None, TypeError, 'param_specs must be a tree of .*got None'),
    ('None-leaf', {'kernel': None}, TypeError, 'param_specs must .*NoneType'),
    ('3', 3, TypeError, 'param_specs must be a tree of .*got int'),
    ('P(3)', P(3), TypeError, r'over named mesh axes, got P\(3'),
  ):
    yield Case(f'sharded-{name}', lambda s=specs: plan(s), error, says)
  cut = {'kernel': P('fsdp'), 'bias': P()}
  yield Case(
    'sharded-sizes',
    lambda: plan(cut, 2),
    ValueError,
    r"num_workers must give the size of each mesh axis.*got 2, without 'fsdp'",
  )
  for name, inner, error, says in (
    ('joined', DROPPING_ON, ValueError, "gradient_dropping .*scope='leaf'"),
    ('chain', optax.chain(tx), TypeError, 'tx must be a gradsparse scheme'),
    ('nothing', None, TypeError, 'tx must be a gradsparse .*got NoneType'),
  ):
    yield Case(
      f'sharded-tx-{name}', lambda i=inner: gs.sharded(i, P()), error, says
    )


CASES = (*arguments(), *shards())
