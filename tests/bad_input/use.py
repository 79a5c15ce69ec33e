"""Wrong use of what factories made: trees, states, axes, workers, readers.

Nearly all of it is found from shapes, before a program is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import re
from typing import Any

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
from tests.bad_input.cases import NAN
from tests.bad_input.cases import NOT_AN_AXIS
from tests.bad_input.cases import Case
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.factories import NO_TRANSFORMATIONS
from tests.schemes import example

AXIS = gs.workers.AXIS
PARAMS = {'kernel': jnp.ones((4, 3)), 'bias': jnp.ones(3)}
ONES = jnp.ones(3)


def scheme(name: str, axis_name: str | None = None) -> gs.CompressedMean:
  return example(name, axis_name=axis_name, min_size=0)


DROPPING, DROPPING_ON = (
  scheme('gradient_dropping', axis) for axis in (None, AXIS)
)
STATE = DROPPING.init(PARAMS)


def fresh(tx: Any) -> Any:
  """Shapes of a scheme's first state."""
  return jax.eval_shape(tx.init, PARAMS)


def traced(tx: Any, grads: Any, state: Any, **extra: Any) -> Any:
  """An update of one worker, traced only."""
  return jax.eval_shape(lambda g, s: tx.update(g, s, **extra), grads, state)


def mapped(fn: Callable[[Any], Any]) -> Callable[[], Any]:
  """fn of one worker's ones, under the axis that is really there."""
  return lambda: jax.eval_shape(jax.vmap(fn, axis_name=AXIS), jnp.ones((2, 3)))


# --- leaves -----------------------------------------------------------------

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


# --- trees and states -------------------------------------------------------

UNLIKE = (
  ('missing', {'kernel': jnp.ones((4, 3))}, r"\['bias'\] is missing"),
  ('more', PARAMS | {'more': ONES}, r"\['more'\] is one too many"),
  ('shape', PARAMS | {'bias': jnp.ones(2)}, r'\(2,\) and not \(3,\)'),
  ('rank', PARAMS | {'bias': jnp.ones((3, 1))}, r'\(3, 1\) and not \(3,\)'),
  ('list', [*PARAMS.values()], r"\['bias'\] is missing"),
  ('empty', {}, r"\['bias'\] is missing"),
  ('None', None, r"\['bias'\] is missing"),
  ('number', 1.0, r"\['bias'\] is missing"),
)

# (scheme, whose state it gets, words)
FOREIGN = (
  ('gradient_dropping', 'dgc', 'MomentumCorrectionState and not ResidualState'),
  ('gradient_dropping', 'variance_based', 'VarianceState and not Residual'),
  ('gradient_dropping', 'ef21', 'EstimateState and not ResidualState'),
  ('dgc', 'gradient_dropping', 'ResidualState and not MomentumCorrectionState'),
  ('dense', 'gradient_dropping', 'ResidualState and not NoMemoryState'),
  ('qsgd', 'strom', 'ResidualState and not NoMemoryState'),
  ('gradient_dropping', 'power_sgd', r'compressor: \[0\] is one too many'),
  ('power_sgd', 'gradient_dropping', r'compressor: \[0\] is missing'),
  ('gradient_dropping', 'scattered', r"exchange: \['bias'\] is one too many"),
  ('scattered', 'gradient_dropping', r"exchange: \['bias'\] is missing"),
)


def trees_and_states() -> Iterator[Case]:
  """Gradients unlike the parameters, and states of something else."""
  schemes = {name: scheme(name) for name in gs.recipes.RECIPES}
  schemes['scattered'] = example(
    'one_bit_sgd', axis_name=None, exchange='reduce_scatter'
  )
  for name, tx in schemes.items():
    for what, wrong, says in UNLIKE:
      yield Case(
        f'{name}-gradients-{what}',
        lambda tx=tx, w=wrong: traced(tx, w, fresh(tx)),
        ValueError,
        f'gradients must be a tree like the parameters given to init: .*{says}',
      )
  dense = schemes['dense']
  yield Case(
    'dense-gradients-container',
    lambda: traced(dense, [ONES], dense.init((ONES,))),
    ValueError,
    'gradients must .*: it is .*not',
  )
  for own, foreign, says in FOREIGN:
    name = own if own in gs.recipes.RECIPES else 'one_bit_sgd'
    yield Case(
      f'{own}-state-of-{foreign}',
      lambda o=own, f=foreign: traced(schemes[o], PARAMS, fresh(schemes[f])),
      ValueError,
      f"{name} was given another scheme's state: its .*{says}.*gs.switch",
    )
  yield Case(
    'power_sgd-state-of-another-rank',
    lambda: traced(
      gs.power_sgd(2, axis_name=None),
      PARAMS,
      fresh(gs.power_sgd(1, axis_name=None)),
    ),
    ValueError,
    r'shape \(3, 1\) and not \(3, 2\)',
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
    ('dgc', schemes['dgc'], 'CompressedMeanState'),
    ('local_gradient', local, 'LocalGradientState'),
    ('accumulate', acc, 'AccumulateState'),
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
    r'state.steps has shape \(2,\) in update, and \(\) was wanted',
  )


# --- what an update is told, and schedules ----------------------------------


def told() -> Iterator[Case]:
  """Second moments, and what a schedule says at the first step."""
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


# --- axes -------------------------------------------------------------------


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
    yield Case(f'{where}-axis-misspelt', call, NameError, meant)
  for where, call in {
    'mean': lambda: gs.workers.mean(ONES),
    'update': lambda: DROPPING_ON.update(PARAMS, STATE),
  }.items():
    yield Case(
      f'{where}-outside',
      call,
      NameError,
      r"axis_name must be an axis .* over, \(\), got 'workers'",
    )
  for sizes, says in (
    ({'worker': 2}, r"\{'worker': 2\} \(did you mean 'worker'\?\)"),
    ({}, r'\{\}'),
    ({3: 2}, r'\{3: 2\}'),
  ):
    yield Case(
      f'plan-num_workers={sizes}',
      lambda s=sizes: gs.plan(DROPPING_ON, PARAMS, s),
      ValueError,
      f"num_workers must give the size of axis 'workers', got {says}",
    )
  plan = gs.plan(DROPPING_ON, PARAMS, 2)
  yield from whole('over_run', plan.over_run, 'steps', (0, -1), 'at least 1')
  for axis in ('worker', 3, None):
    yield Case(
      f'plan.over-{axis}',
      lambda a=axis: plan.over(a),
      ValueError,
      f"nothing is exchanged over axis {axis!r}, only over .*'workers'",
    )
  yield from whole(
    'plan',
    lambda v: gs.plan(DROPPING_ON, PARAMS, 2, step=v),
    'step',
    (-1, 10**12),
    'in 0..2147483647',
  )


def flat_ones(name: str) -> Any:
  """Parameters for any scheme; PowerSGD takes matrices."""
  return jnp.ones((4, 3)) if name == 'power_sgd' else ONES


# --- workers ----------------------------------------------------------------

# None, and as many as no memory holds.
WRONG_NUMBERS = (0, -1, 65_537, 10**9, 10**30)


def parallel(**kwargs):
  return gs.workers.parallel(
    kwargs.pop('step', lambda x: x),
    **{
      'runner': 'simulate',
      'num_workers': 2,
      'in_specs': (P(),),
      'out_specs': P(),
      **kwargs,
    },
  )


def on_shapes(*args: Any, **kwargs: Any) -> Any:
  return jax.eval_shape(parallel(**kwargs), *args)


def workers() -> Iterator[Case]:
  """Wrong arguments of `gs.workers` and of the programs that it makes."""
  for where, call in {
    'plan': lambda v: gs.plan(DROPPING_ON, PARAMS, v),
    'plan.mapping': lambda v: gs.plan(DROPPING_ON, PARAMS, {AXIS: v}),
    'init': lambda v: gs.workers.init(DROPPING_ON, PARAMS, v),
    'specs': lambda v: gs.workers.specs(DROPPING_ON, PARAMS, v),
    'stack': lambda v: gs.workers.stack(PARAMS, v),
    'parallel': lambda v: parallel(num_workers=v),
  }.items():
    yield from whole(where, call, 'num_workers', WRONG_NUMBERS, 'in 1..65536')
  both = {'a': 65_536, 'b': 65_536}
  for where, call in {
    'plan': lambda: gs.plan(gs.dense(axis_name=('a', 'b')), PARAMS, both),
    'parallel': lambda: parallel(num_workers=both),
  }.items():
    yield Case(
      f'{where}-too-many-in-all',
      call,
      ValueError,
      r'num_workers must be in 1..65536, got 4294967296',
    )
  for where, call in {
    'specs': lambda v: gs.workers.specs(DROPPING_ON, PARAMS, 2, axis_name=v),
    'parallel': lambda v: parallel(axis_name=v),
  }.items():
    yield from values(
      where,
      call,
      'axis_name',
      (*(v for v in NOT_AN_AXIS if v != ['w']), None),
      'be a string',
      TypeError,
    )
  for where, call in {
    'plan': lambda t: gs.plan(t, PARAMS, 2),
    'init': lambda t: gs.workers.init(t, PARAMS, 2),
    'specs': lambda t: gs.workers.specs(t, PARAMS, 2),
    'params_spec': lambda t: gs.workers.params_spec(t, PARAMS),
    'shardings': lambda t: gs.workers.shardings(t, PARAMS, None),
  }.items():
    for tx in NO_TRANSFORMATIONS:
      kind = type(tx).__name__
      yield Case(
        f'{where}-tx-{kind}',
        lambda call=call, tx=tx: call(tx),
        TypeError,
        f'tx must be an optax transformation .*got {kind}',
      )
  for name, kwargs, error, says in (
    ('runner', dict(runner='vmap'), ValueError, "one of .*got 'vmap'"),
    ('runner-None', dict(runner=None), TypeError, "'simulate'.*got None"),
    ('step', dict(step=3), TypeError, 'step must be a function, got 3'),
    ('in_specs', dict(in_specs=3), TypeError, 'in_specs must be a sequence.*3'),
    ('in_specs-P', dict(in_specs=P()), TypeError, r'in_specs must .*P\(\)'),
    ('in_specs-None', dict(in_specs=None), TypeError, 'in_specs must .*None'),
    ('in_specs-text', dict(in_specs=(AXIS,)), TypeError, "must be .*'workers'"),
    ('out_specs', dict(out_specs=AXIS), TypeError, "out_specs .*got 'workers'"),
    (
      'in_specs-misspelt',
      dict(in_specs=(P('worker'),)),
      ValueError,
      "a spec must name axes of .*'workers'.*'worker'",
    ),
    (
      'in_specs-second-dimension',
      dict(in_specs=(P(None, AXIS),)),
      ValueError,
      'a spec must name axes of',
    ),
    ('axes', dict(num_workers={}), ValueError, 'axis_name must name an axis'),
    (
      'axes-pmap',
      dict(runner='pmap', num_workers={'a': 2, 'b': 2}, in_specs=()),
      ValueError,
      "'pmap' has one axis, got num_workers=.*'a': 2",
    ),
    ('check_vma', dict(check_vma='no'), TypeError, "True or False, got 'no'"),
    (
      'donate',
      dict(donate_argnums=0),
      TypeError,
      'donate_argnums must .*got 0',
    ),
    (
      'donate-1',
      dict(donate_argnums=(1,)),
      ValueError,
      r'each of donate_argnums must be in 0..0, got 1',
    ),
    ('devices', dict(runner='pmap', devices=3), TypeError, 'devices must .*3'),
    (
      'devices-text',
      dict(runner='pmap', devices=['a', 'b']),
      TypeError,
      'each of devices must be a Device, got str',
    ),
    (
      'devices-twice',
      dict(runner='pmap', devices=2 * jax.devices()[:1]),
      ValueError,
      'devices must be different ones, got',
    ),
    (
      'devices-few',
      dict(runner='shard_map', num_workers=10_000),
      ValueError,
      "'shard_map' needs a device for each of 10000 workers, found",
    ),
  ):
    yield Case(f'parallel-{name}', lambda k=kwargs: parallel(**k), error, says)
  for name, args, kwargs, says in (
    ('fewer', (), {}, 'in_specs must have a spec for each .*got 1 for 0'),
    ('more', (ONES, ONES), {}, 'in_specs must have .*got 1 for 2 arguments'),
    (
      'prefix',
      ({'b': ONES},),
      dict(in_specs=({'a': P()},)),
      r"in_specs must be a prefix .*got .*'a': P\(\).*'b'",
    ),
    (
      'out_prefix',
      (ONES,),
      dict(out_specs={'a': P()}),
      r"out_specs of the result, got \{'a': P\(\)\}",
    ),
    (
      'rows',
      (ONES,),
      dict(in_specs=(P(AXIS),)),
      r'args\[0\] has shape \(3,\), and its spec .* wants .*\(2, \.\.\.\)',
    ),
  ):
    yield Case(
      f'parallel-call-{name}',
      lambda a=args, k=kwargs: on_shapes(*a, **k),
      ValueError,
      says,
    )
  on = gs.dense(axis_name='replica')
  real = jax.make_mesh((2,), ('replica',))
  for name, args, error, says in (
    ('mesh', (3,), TypeError, 'mesh must be a Mesh, got int'),
    (
      'axis',
      (real, 'replic'),
      ValueError,
      r"axis_name must be an axis of the mesh, \('replica',\), got 'replic' "
      r"\(did you mean 'replica'\?\)",
    ),
    ('axis-3', (real, 3), TypeError, 'axis_name must be a string .*got 3'),
  ):
    yield Case(
      f'shardings-{name}',
      lambda a=args: gs.workers.shardings(on, PARAMS, *a),
      error,
      says,
    )


# --- shards -----------------------------------------------------------------


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
    ('chain', optax.chain(tx), TypeError, 'needs a gradsparse scheme'),
    ('nothing', None, TypeError, 'needs a gradsparse scheme .*got NoneType'),
  ):
    yield Case(
      f'sharded-tx-{name}', lambda i=inner: gs.sharded(i, P()), error, says
    )


# --- losses and batches -----------------------------------------------------


def dot(params: Any, example: Any) -> Any:
  return sum(jnp.sum(p) for p in jax.tree.leaves(params)) * jnp.sum(example)


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

  def qsvrg(loss):
    made = gs.qsvrg(loss, learning_rate=0.1, inner_steps=1, axis_name=None)
    return lambda params, data: made.epoch(made.init(params), data)

  makers = {
    'moments': gs.value_and_grad_moments,
    'batch_moments': gs.batch_value_and_grad_moments,
    'microbatches': lambda loss: gs.moments_from_microbatches(loss, 3),
    'qsvrg': qsvrg,
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


# --- readers ----------------------------------------------------------------


def readers() -> Iterator[Case]:
  """States and programs that are read."""
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
    ('no-memory', (DROPPING, scheme('dense'), owing), 'pending would be lost'),
    ('old-sgd', (sgd, DROPPING, STATE), 'state does not belong to tx_old'),
    (
      'new-sgd',
      (DROPPING, sgd, STATE),
      'the state of tx_new must be .*found 0',
    ),
    ('old-dgc', (scheme('dgc'), DROPPING, STATE), 'does not belong to tx_old'),
  ):
    yield Case(f'switch-{name}', lambda a=args: gs.switch(*a), ValueError, says)
  jitted = jax.jit(lambda x: x)
  for program in (None, 3, b'', [], DROPPING):
    kind = type(program).__name__
    yield Case(
      f'audit-{kind}',
      lambda p=program: gs.audit(p),
      TypeError,
      f'program must be a function, or a compiled .*or its text, got {kind}',
    )
  for program in (len, jitted):
    yield Case(
      f'audit-{type(program).__name__}',
      lambda p=program: gs.audit(p),
      TypeError,
      'program cannot be called with args: missing a required argument',
    )
  for text in ('', 'hello', jitted.lower(1.0).as_text()):
    yield Case(
      f'audit-text-{text[:6]}',
      lambda t=text: gs.audit(t),
      ValueError,
      f'begins with HloModule, got {re.escape(repr(text[:40]))}',
    )
  for mesh in (3, 'workers'):
    yield Case(
      f'audit-mesh-{mesh}',
      lambda m=mesh: gs.audit('HloModule x', m),
      TypeError,
      f'mesh must be a .*Mesh.*, got {mesh!r}',
    )
  yield Case(
    'audit-mesh-size',
    lambda: gs.audit('HloModule x', AbstractMesh((2, 4), ('a', 'b'))),
    ValueError,
    'mesh must have the 1 devices that the program runs on, got 8',
  )


CASES = (
  *leaves(),
  *trees_and_states(),
  *told(),
  *axes(),
  *workers(),
  *shards(),
  *losses(),
  *readers(),
)
