"""Arguments of all but recipes: what is refused, in which words, and numbers.

No program is compiled here: all of it is checked before anything is traced.
"""

from __future__ import annotations

from collections.abc import Callable
import math

import gradsparse as gs
from gradsparse import arguments
from gradsparse import extend
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

NAN, INF = math.nan, math.inf
PARAMS = {'kernel': jnp.zeros((40, 25)), 'bias': jnp.zeros(11)}


W = gs.workers.AXIS
DENSE = gs.dense(axis_name=W)


def step_of(**kwargs):
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


def average(**kwargs):
  return gs.periodic_average({}, {}, 0, **{'axis_name': None, **kwargs})


def qsvrg(**kwargs):
  defaults = dict(learning_rate=0.1, inner_steps=2, axis_name=None)
  loss_fn = kwargs.pop('loss_fn', lambda p, x: 0.0)
  return gs.qsvrg(loss_fn, **{**defaults, **kwargs})


def joined(**kwargs):
  sockets = dict(
    memory=extend.memories.residual(),
    compressor=extend.compressors.everything(
      'dense', extend.codes.plain.of_leaves()
    ),
    exchange=extend.exchanges.all_reduce(),
  )
  sockets |= {k: kwargs.pop(k) for k in list(kwargs) if k in sockets}
  return gs.compressed_mean(**sockets, **{'axis_name': None, **kwargs})


def loss(params, example):
  return 0.0


STAGES = gs.schedules.DensitySchedule

# (call, error, words that its message must have)
ELSEWHERE: tuple[tuple[Callable[[], object], type[Exception], str], ...] = (
  (
    lambda: gs.clip_local_norm(0.0, axis_name=None),
    ValueError,
    'threshold > 0',
  ),
  (
    lambda: gs.clip_local_norm(INF, axis_name=None),
    ValueError,
    'threshold inf',
  ),
  (
    lambda: gs.clip_local_norm(NAN, axis_name=None),
    ValueError,
    'threshold nan',
  ),
  (lambda: gs.clip_local_norm('1', axis_name=None), TypeError, "threshold '1'"),
  (lambda: gs.clip_local_norm(1.0, axis_name=3), TypeError, 'axis_name 3'),
  (
    lambda: gs.local_gradient(DENSE, 'some'),
    ValueError,
    "mode 'partial' 'some'",
  ),
  (lambda: gs.local_gradient(DENSE, 1), TypeError, 'mode 1'),
  (lambda: average(every=0), ValueError, 'every at least 1 0'),
  (lambda: average(every=2.5), TypeError, 'every whole 2.5'),
  (lambda: average(every='5'), TypeError, "every whole '5'"),
  (lambda: average(axis_name=5), TypeError, 'axis_name 5'),
  (lambda: qsvrg(learning_rate=0.0), ValueError, 'learning_rate > 0 0.0'),
  (lambda: qsvrg(learning_rate=INF), ValueError, 'learning_rate finite inf'),
  (lambda: qsvrg(learning_rate='1'), TypeError, 'learning_rate number'),
  (lambda: qsvrg(inner_steps=0), ValueError, 'inner_steps at least 1'),
  (lambda: qsvrg(inner_steps=1.5), TypeError, 'inner_steps whole 1.5'),
  (lambda: qsvrg(levels=0), ValueError, 'levels 1..65534'),
  (lambda: qsvrg(levels=True), TypeError, 'levels whole True'),
  (lambda: qsvrg(seed=-1), ValueError, 'seed -1'),
  (lambda: qsvrg(axis_name=1), TypeError, 'axis_name 1'),
  (lambda: qsvrg(loss_fn=3), TypeError, 'loss_fn function 3'),
  (lambda: STAGES(3), TypeError, 'stages pairs 3'),
  (lambda: STAGES((0.1,)), TypeError, 'stages pairs (0.1,)'),
  (lambda: STAGES((('0', 0.1),)), TypeError, "step '0'"),
  (lambda: STAGES(((0, '0.1'),)), TypeError, "density '0.1'"),
  (lambda: STAGES(((0, NAN),)), ValueError, 'density (0, 1] nan'),
  (lambda: gs.schedules.dgc_warmup(NAN, 4), ValueError, 'final_density nan'),
  (lambda: gs.schedules.dgc_warmup(0.1, 4.5), TypeError, 'warmup_steps 4.5'),
  (
    lambda: gs.schedules.staged_warmup((0.5, NAN), 0.1, 4),
    ValueError,
    'densities (0, 1] nan',
  ),
  (lambda: gs.schedules.LinearDropRatio(NAN), ValueError, 'drop_ratio nan'),
  (lambda: gs.schedules.LinearDropRatio('1'), TypeError, "drop_ratio '1'"),
  (
    lambda: gs.schedules.LinearDropRatio(0.9, 1.5),
    TypeError,
    'warmup_steps 1.5',
  ),
  (lambda: gs.value_and_grad_moments(3), TypeError, 'loss_fn function 3'),
  (
    lambda: gs.value_and_grad_moments(loss, microbatch=0),
    ValueError,
    'microbatch at least 1 0',
  ),
  (
    lambda: gs.value_and_grad_moments(loss, microbatch=1.5),
    TypeError,
    'microbatch whole 1.5',
  ),
  (
    lambda: gs.value_and_grad_moments(loss, has_aux='no'),
    TypeError,
    "has_aux 'no'",
  ),
  (
    lambda: gs.batch_value_and_grad_moments(loss, microbatch='2'),
    TypeError,
    "microbatch '2'",
  ),
  (
    lambda: gs.moments_from_microbatches(loss, 2.0),
    TypeError,
    'num_microbatches 2.0',
  ),
  (lambda: gs.plan(DENSE, PARAMS, '4'), TypeError, "num_workers whole '4'"),
  (lambda: gs.plan(DENSE, PARAMS, {W: '4'}), TypeError, "num_workers '4'"),
  (lambda: gs.plan(DENSE, PARAMS, 2.0), TypeError, 'num_workers 2.0'),
  (lambda: gs.plan(DENSE, PARAMS, 0), ValueError, 'num_workers 1..65536 0'),
  (lambda: gs.plan(DENSE, PARAMS, 10**9), ValueError, 'num_workers 1000000000'),
  (
    lambda: gs.plan(DENSE, PARAMS, 2, step=-1),
    ValueError,
    'step at least 0 -1',
  ),
  (lambda: gs.plan(DENSE, PARAMS, 2, step='1'), TypeError, "step whole '1'"),
  (lambda: gs.workers.init(DENSE, PARAMS, '2'), TypeError, "num_workers '2'"),
  (lambda: gs.workers.init(DENSE, PARAMS, 0), ValueError, 'num_workers 0'),
  (lambda: gs.workers.specs(DENSE, PARAMS, '2'), TypeError, "num_workers '2'"),
  (lambda: gs.workers.specs(DENSE, PARAMS, -1), ValueError, 'num_workers -1'),
  (
    lambda: gs.workers.specs(DENSE, PARAMS, 2, axis_name=7),
    TypeError,
    'axis_name 7',
  ),
  (lambda: step_of(num_workers='2'), TypeError, "num_workers '2'"),
  (lambda: step_of(num_workers=0), ValueError, 'num_workers 0'),
  (lambda: step_of(runner='vmap'), ValueError, "runner 'simulate' 'vmap'"),
  (lambda: step_of(runner=3), TypeError, "runner 'simulate' 3"),
  (lambda: step_of(axis_name=None), TypeError, 'axis_name None'),
  (lambda: step_of(step=3), TypeError, 'step function 3'),
  (
    lambda: joined(memory=extend.memories.residual),
    TypeError,
    'memory Memory',
  ),
  (lambda: joined(compressor='top_k'), TypeError, 'compressor Compressor str'),
  (lambda: joined(exchange=None), TypeError, 'exchange Exchange NoneType'),
  (lambda: joined(seed='0'), TypeError, "seed '0'"),
  (
    lambda: extend.memories.residual(decay=1.5),
    ValueError,
    'decay [0, 1] 1.5',
  ),
  (lambda: extend.memories.residual(decay='1'), TypeError, "decay '1'"),
  (lambda: extend.codes.sparse('elias_fano', 3), TypeError, 'values 3'),
)


@pytest.mark.parametrize('call, error, said', ELSEWHERE)
def test_wrong_arguments_elsewhere_are_named(call, error, said):
  with pytest.raises(error) as e:
    call()
  for word in said.split():
    assert word in str(e.value)


# --- what is a number -------------------------------------------------------


def test_numpy_scalars_outside_of_recipes():
  gs.clip_local_norm(np.float32(1), axis_name=None)
  qsvrg(learning_rate=np.float32(0.1), inner_steps=np.int64(2))
  schedule = gs.schedules.DensitySchedule(((np.int64(0), np.float32(0.1)),))
  assert schedule.stages == ((0, 0.1),)
  assert type(schedule.stages[0][1]) is float
  assert gs.plan(DENSE, PARAMS, np.int64(2)) == gs.plan(DENSE, PARAMS, 2)


def test_a_jax_scalar_is_checked_and_stays_one():
  given = jnp.float32(0.5)
  kept = arguments.number('x', given, arguments.FRACTION, traced=True)
  assert kept is given
  with pytest.raises(ValueError, match=r'density must be in \(0, 1\], got 1.5'):
    gs.dgc(jnp.float32(1.5), axis_name=None)
  with pytest.raises(TypeError, match='density must be a number'):
    gs.dgc(jnp.ones(2), axis_name=None)
