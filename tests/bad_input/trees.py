"""Wrong trees: parameters, gradients, second moments."""

from __future__ import annotations

from collections.abc import Iterator

import gradsparse as gs
import jax
from jax.experimental import sparse
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from tests.bad_input.cases import Case
from tests.bad_input.subjects import AXIS
from tests.bad_input.subjects import DROPPING
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import ONES
from tests.bad_input.subjects import PARAMS
from tests.bad_input.subjects import SCHEMES
from tests.bad_input.subjects import STATE
from tests.bad_input.subjects import dot
from tests.bad_input.subjects import fresh
from tests.bad_input.subjects import scheme
from tests.bad_input.subjects import traced

# name: (a leaf, what the message says of it)
NO_GRADIENTS = {
  'complex': (np.ones((4, 3), np.complex64), 'complex64; give its real'),
  'int': (np.ones((4, 3), np.int32), 'int32; .*optax.set_to_zero'),
  'bool': (np.ones((4, 3), bool), 'bool; .*optax.partition'),
  'float0': (np.zeros(3, jax.dtypes.float0), '.*float0'),
}
NO_ARRAYS = {
  'text': ('kernel', "'kernel'"),
  'dtype': ('f4', "'f4'"),
  'type': (float, "<class 'float'>"),
  'function': (len, '<built-in function len>'),
  'object': (object(), '<object object'),
  'spec': (P(), r'P\(\)'),
  'objects': (np.array([None, 1]), r'array\(\[None, 1\]'),
  'words': (np.array(['a']), r"array\(\['a'\]"),
}


def leaves() -> Iterator[Case]:
  """Leaves that are no real floating-point numbers, or no numbers at all."""
  clip = gs.clip_local_norm(1.0, axis_name=None)
  local, acc = gs.local_gradient(DROPPING), gs.accumulate(DROPPING, every=2)
  qsvrg = gs.qsvrg(dot, learning_rate=0.1, inner_steps=1, axis_name=None)
  takers = {
    **{f'{n}.init': scheme(n).init for n in gs.recipes.RECIPES},
    'update': lambda t: DROPPING.update(t, STATE),
    'clip.update': lambda t: clip.update(t, clip.init(PARAMS)),
    'local_gradient.init': local.init,
    'local_gradient.update': lambda t: local.update(t, local.init(PARAMS)),
    'accumulate.init': acc.init,
    'accumulate.update': lambda t: acc.update(t, acc.init(PARAMS)),
    'qsvrg.init': qsvrg.init,
    'qsvrg.bytes_per_epoch': qsvrg.bytes_per_epoch,
    'moments': lambda t: gs.value_and_grad_moments(dot)(t, ONES),
    'batch_moments': lambda t: gs.batch_value_and_grad_moments(dot)(t, ONES),
    'microbatches': lambda t: gs.moments_from_microbatches(dot, 3)(t, ONES),
    'workers.init': lambda t: gs.workers.init(DROPPING_ON, t, 2),
  }
  # Those that let other trees through to optax, and look at arrays only.
  readers = {
    'plan': lambda t: gs.plan(DROPPING_ON, t, 2),
    'workers.specs': lambda t: gs.workers.specs(DROPPING_ON, t, 2),
    'workers.params_spec': lambda t: gs.workers.params_spec(DROPPING, t),
    'workers.shardings': lambda t: gs.workers.shardings(
      DROPPING_ON, t, jax.make_mesh((2,), (AXIS,))
    ),
    'workers.stack': lambda t: gs.workers.stack(t, 2),
    'workers.mean': lambda t: gs.workers.mean(t, None),
    'average': lambda t: gs.periodic_average(t, (), 0, axis_name=None),
    'average.state': lambda t: gs.periodic_average((), t, 0, axis_name=None),
  }
  for where, call in (takers | readers).items():
    for name, (leaf, says) in NO_ARRAYS.items():
      yield Case(
        f'{where}-leaf-{name}',
        lambda call=call, leaf=leaf: call(PARAMS | {'kernel': leaf}),
        TypeError,
        rf"\['kernel'\] must be an array or a number, got {says}",
      )
  checks = ('plan', 'workers.specs', 'workers.shardings')
  takers |= {name: readers[name] for name in checks}
  for where, call in takers.items():
    for name, (leaf, says) in NO_GRADIENTS.items():
      yield Case(
        f'{where}-leaf-{name}',
        lambda call=call, leaf=leaf: call(PARAMS | {'kernel': leaf}),
        TypeError,
        rf"\['kernel'\] must be floating-point numbers, got {says}",
      )
    yield Case(
      f'{where}-leaf-sparse',
      lambda call=call: call(
        PARAMS | {'kernel': sparse.BCOO.fromdense(PARAMS['kernel'])}
      ),
      TypeError,
      r"\['kernel'\] must be a dense array, got BCOO: .*x\.todense\(\)",
    )


UNLIKE = (
  ('missing', {'kernel': jnp.ones((4, 3))}, r"\['bias'\] is missing"),
  ('more', PARAMS | {'more': ONES}, r"\['more'\] should not be there"),
  ('shape', PARAMS | {'bias': jnp.ones(2)}, r'\(2,\) and not \(3,\)'),
  ('rank', PARAMS | {'bias': jnp.ones((3, 1))}, r'\(3, 1\) and not \(3,\)'),
  ('list', [*PARAMS.values()], r"\['bias'\] is missing"),
  ('empty', {}, r"\['bias'\] is missing"),
  ('None', None, r"\['bias'\] is missing"),
  ('number', 1.0, r"\['bias'\] is missing"),
)


def gradients() -> Iterator[Case]:
  """Gradients unlike the parameters."""
  for name, tx in SCHEMES.items():
    for what, wrong, says in UNLIKE:
      yield Case(
        f'{name}-gradients-{what}',
        lambda tx=tx, w=wrong: traced(tx, w, fresh(tx)),
        ValueError,
        f'gradients must be a tree like the parameters given to init: .*{says}',
      )
  dense = SCHEMES['dense']
  yield Case(
    'dense-gradients-container',
    lambda: traced(dense, [ONES], dense.init((ONES,))),
    ValueError,
    'gradients must .*: it is .*not',
  )


def dense_paths() -> Iterator[Case]:
  """A choice of leaves that chooses none of them, or all."""
  for what, paths, says in (
    ('typo', 'encoder/norm', 'none of the 2 leaves'),
    ('function', lambda path: False, 'none of the 2 leaves'),
    ('everything', '.', 'all of the 2 leaves'),
    ('every-path', lambda path: True, 'all of the 2 leaves'),
  ):
    tx = gs.dgc(0.3, axis_name='workers', min_size=0, dense_paths=paths)
    for where, call in (
      ('init', lambda tx=tx: gs.workers.init(tx, PARAMS, 2)),
      ('plan', lambda tx=tx: gs.plan(tx, PARAMS, 2)),
    ):
      yield Case(
        f'{where}-dense_paths-{what}',
        call,
        ValueError,
        rf"dense_paths must match some .*{says}.*\['bias'\], \['kernel'\]",
      )


def second_moments() -> Iterator[Case]:
  """Second moments unlike the parameters, or none."""
  tx = scheme('variance_based')
  acc = gs.accumulate(tx, every=2)
  for what, moments, error, says in (
    ('none', None, ValueError, 'of the per-example gradients: .*update'),
    ('shape', PARAMS | {'bias': jnp.ones(2)}, ValueError, 'must .*and not'),
    ('missing', {'bias': ONES}, ValueError, r"must .*\['kernel'\] is missing"),
    ('number', 1.0, ValueError, r"must .*\['bias'\] is missing"),
    (
      'negative',
      PARAMS | {'bias': -ONES},
      ValueError,
      r"must be at least 0, a sum of squares, got -1.0 in \['bias'\]",
    ),
    (
      'int',
      PARAMS | {'bias': np.ones(3, int)},
      TypeError,
      r"\['bias'\] must be floating-point numbers, got int",
    ),
    (
      'complex',
      PARAMS | {'bias': ONES * 1j},
      TypeError,
      r"\['bias'\] must be floating-point numbers, got complex",
    ),
  ):
    for where, taker in (('update', tx), ('accumulate', acc)):
      yield Case(
        f'{where}-second_moment-{what}',
        lambda t=taker, m=moments: t.update(
          PARAMS, t.init(PARAMS), second_moment=m
        ),
        error,
        f'second.moment.*{says}',
      )


CASES = (*leaves(), *gradients(), *second_moments())
