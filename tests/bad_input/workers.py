"""Wrong arguments of gs.workers, and of the programs that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradsparse as gs
import jax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from tests.bad_input.cases import NOT_AN_AXIS
from tests.bad_input.cases import Case
from tests.bad_input.cases import values
from tests.bad_input.cases import whole
from tests.bad_input.subjects import AXIS
from tests.bad_input.subjects import DROPPING_ON
from tests.bad_input.subjects import NO_TRANSFORMATIONS
from tests.bad_input.subjects import ONES
from tests.bad_input.subjects import PARAMS

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
  for where, call in {
    'plan': lambda v: gs.plan(DROPPING_ON, PARAMS, 2, update_kwargs=v),
    'init': lambda v: gs.workers.init(DROPPING_ON, PARAMS, 2, update_kwargs=v),
    'specs': lambda v: gs.workers.specs(
      DROPPING_ON, PARAMS, 2, update_kwargs=v
    ),
  }.items():
    yield Case(
      f'{where}-update_kwargs',
      lambda call=call: call([1.0]),
      TypeError,
      'update_kwargs must be a mapping .*got list',
    )
  for what, specs, says in (
    ('number', {'step': 0, 'opt_state': P()}, r"got 0 at \[0\]\['step'\]"),
    ('text', 'workers', r"got 'workers' at \[0\]"),
  ):
    yield Case(
      f'wrap-in_specs-{what}',
      lambda specs=specs: gs.workers.wrap(
        lambda x: x,
        mesh=AbstractMesh((2,), (AXIS,)),
        in_specs=(specs,),
        out_specs=P(),
      ),
      TypeError,
      f'in_specs must be trees of PartitionSpecs, {says}',
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
    (
      'prefix',
      ({'b': ONES},),
      dict(in_specs=({'a': P()},)),
      r"in_specs must be .*got at \[0\] dict with 'a' for dict with 'b'",
    ),
    (
      'out_prefix',
      (ONES,),
      dict(out_specs={'a': P()}),
      'of the result, got at their root dict for array of shape',
    ),
    (
      'rows',
      (ONES,),
      dict(in_specs=(P(AXIS),)),
      r'args\[0\] has shape \(3,\), but its spec .* needs .*\(2, \.\.\.\)',
    ),
  ):
    yield Case(
      f'parallel-call-{name}',
      lambda a=args, k=kwargs: on_shapes(*a, **k),
      ValueError,
      says,
    )
  for name, args in (('fewer', ()), ('more', (ONES, ONES))):
    says = f'in_specs must have a spec for each .*got 1 for {len(args)}'
    yield Case(
      f'parallel-call-{name}', lambda a=args: on_shapes(*a), TypeError, says
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


CASES = (*workers(),)
