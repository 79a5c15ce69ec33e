"""Arguments of those who join a scheme of their own, and check it."""

from __future__ import annotations

from collections.abc import Iterator

import gradsparse as gs
from gradsparse import extend
from tests.bad_input.cases import NAN
from tests.bad_input.cases import SEEDS
from tests.bad_input.cases import Case
from tests.bad_input.cases import number
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.subjects import DENSE


def joined(**kwargs):
  sockets = dict(
    memory=extend.memories.residual(),
    compressor=extend.compressors.identity(
      'dense', extend.codes.plain.of_leaves()
    ),
    exchange=extend.exchanges.all_reduce(),
  )
  return gs.compressed_mean(**{**sockets, 'axis_name': None, **kwargs})


def sockets() -> Iterator[Case]:
  """Sockets, their arguments, and the check of what was joined."""
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
  for wrong, error in (('sum', ValueError), (max, TypeError)):
    pre_reduce = extend.PreReduce(wrong, lambda signals, ctx: ())
    compressor = extend.compressors.terngrad()._replace(pre_reduce=pre_reduce)
    yield Case(
      f'compressed_mean-PreReduce-{wrong}',
      lambda compressor=compressor: joined(compressor=compressor),
      error,
      r"PreReduce.reduce must be one of \('max', 'mean'\), got",
    )
  yield from whole(
    'compressed_mean', lambda v: joined(seed=v), 'seed', SEEDS, 'in 0..'
  )
  yield from number(
    'residual',
    lambda v: extend.memories.residual(error_decay=v),
    'error_decay',
    (1.5, -0.1, NAN),
    '[0, 1]',
  )
  yield Case(
    'sparse-values',
    lambda: extend.codes.sparse('elias_fano', 3),
    TypeError,
    'values must be .*got 3',
  )
  for name, code, error in (
    ('table4', extend.codes.sparse(values='table4'), ValueError),
    ('leaves', extend.codes.plain.of_leaves(), ValueError),
    ('str', 'float32', TypeError),
  ):
    yield Case(
      f'by_rule-code-{name}',
      lambda code=code: extend.compressors.by_rule(
        extend.compressors.rule.strom(0.1), code, name='mine'
      ),
      error,
      'code must (have a `mark`.*got one without|be a Code, got str)',
    )
  yield Case(
    'majority-scatter',
    lambda: extend.exchanges.majority('x'),
    TypeError,
    "scatter must be True or False, got 'x'",
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


CASES = (*sockets(),)
