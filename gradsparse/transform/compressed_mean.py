"""Joins a memory, a compressor and an exchange to one optax transformation.

Data flow of one update, on each worker:

  check that gradients are local -> accumulate (float32) -> pre-reduce -> choose
  a rung and agree on it -> { select, round, pack -> exchange } -> update, cast
  -> accept? -> sent, arrived -> count

A rung is a size of the message. If there are several, only the steps in braces
are compiled for each.

This is one transformation, not a chain of three, because the delivered values
flow back from the exchange into the memory.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.collectives import VerifiedComm
from gradsparse.collectives import surroundings
from gradsparse.sockets import Compressor
from gradsparse.sockets import Exchange
from gradsparse.sockets import Memory
from gradsparse.sockets import first_state
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import Stats
from gradsparse.traffic import demands
from gradsparse.transform import guards
from gradsparse.transform import inputs
from gradsparse.transform import sharding
from gradsparse.transform.described import Described
from gradsparse.transform.described import call
from gradsparse.transform.layout import DensePaths
from gradsparse.transform.layout import Layout
from gradsparse.transform.layout import check_dense_paths
from gradsparse.transform.layout import check_something_to_do
from gradsparse.transform.layout import make_layout
from gradsparse.transform.messages import Scheme
from gradsparse.transform.step import REDUCTIONS
from gradsparse.transform.step import one_step
import jax
import jax.numpy as jnp


class CompressedMean(Described):
  """An optax transformation that can also return what it delivered.

  Attributes:
    init: params -> CompressedMeanState.
    update: (grads, state, params, **extra) -> (updates, state).
    step: like update, but returns (updates, state, delivered). `delivered` has
      this worker's values in the mean: a float32 tree like params, float64 for
      leaves that are sent as float64.
    scheme: the memory, compressor, exchange and further arguments.
    layout: params -> Layout: which leaves are compressed.
  """

  @property
  def step(self) -> Callable[..., tuple[Any, CompressedMeanState, Any]]:
    return self.known('step')

  @property
  def scheme(self) -> Scheme:
    return self.known('scheme')

  @property
  def layout(self) -> Callable[[Any], Layout]:
    return self.known('layout')

  def _lines(self) -> list[tuple[str, str]]:
    scheme = self.scheme
    if scheme is None:
      return super()._lines()
    kept, size = ', '.join(scheme.memory.fields), 4 * scheme.memory.floats
    mean = 'unbiased' if scheme.compressor.unbiased else 'biased'
    axes = ' and '.join(map(repr, arguments.axis_names(scheme.axis_name)))
    along = f'{scheme.exchange.name}, workers along {axes}'
    return [
      ('scheme', self.text),
      ('keeps', f'{kept}: {size} bytes a parameter' if size else 'nothing'),
      ('sends', f'{scheme.compressor.name}, {mean}'),
      ('exchanges', along if axes else 'nothing, it is one worker'),
    ]


def may_be_divided(comm: Comm, axis_name: AxisName | None) -> bool:
  """Whether JAX itself shards arrays over the devices of each worker."""
  is_mapped = comm.mode in ('checked', 'manual')
  return is_mapped and bool(surroundings(axis_name).automatic)


def compressed_mean(
  memory: Memory,
  compressor: Compressor,
  exchange: Exchange,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: DensePaths = None,
  seed: int = 0,
  verify: bool = False,
  param_specs: Any = None,
) -> CompressedMean:
  """Turns local gradients into their mean over workers, by compressed messages.

  Compressed leaves are float32 inside, whatever the gradients' dtype: of
  float64 (`jax_enable_x64`) the last 29 bits are rounded off before selection,
  and no memory keeps them; numbers below 1.2e-38 may become zero, and numbers
  beyond float32 reject the step. Leaves that stay dense, and all leaves of
  `gs.dense`, are not rounded: for float64 the mean is that of `jax.lax.pmean`,
  at 8 bytes an element.

  >>> import gradsparse as gs
  >>> extend = gs.extend
  >>> gs.compressed_mean(
  ...   extend.memories.residual(),
  ...   extend.compressors.top_k(0.01, extend.codes.sparse()),
  ...   extend.exchanges.all_gather(),
  ...   axis_name='w',
  ... )
  gs.compressed_mean(compressor='top_k', exchange='all-gather', axis_name='w')

  Args:
    memory: what a worker keeps between steps.
    compressor: what is sent.
    exchange: how the messages become a mean.
    axis_name: mapped axis of the workers (vmap, pmap or shard_map); None is
      one worker without communication.
    min_size: leaves with fewer elements stay dense; None is the scheme's own
      rule, 0 compresses every leaf that the scheme accepts.
    dense_paths: leaves whose path matches this regular expression (or for
      which this function of the path is True) stay dense.
    seed: seed of the random draws, equal on all workers; fold it with the run's
      seed.
    verify: whether messages carry a checksum of 4 bytes. All workers reject a
      step in which a message arrived damaged on any of them. Sums have no
      message, so workers compare the results. The verdict takes one more small
      all-reduce.
    param_specs: tree, or prefix tree, of PartitionSpecs: how parameters are
      sharded over other mesh axes; see `gs.sharded`.

  Returns:
    A transformation. Its update has the sign and the dtype of the gradients,
    and is bit-identical on all workers. A step is rejected if any worker's
    gradient, or a number computed from it, is not finite, its second moment is
    negative, or a traced argument such as a schedule's density is out of range.
    Then the whole update is NaN on all workers, nothing is delivered, and all
    state stays finite. `gs.skip_rejected` skips such a step.

  Raises:
    TypeError: an argument is of the wrong kind; from init and update: a leaf is
      not floating-point.
    ValueError: an argument is out of range, or the exchange cannot carry this
      compressor; from init: no leaf qualifies, or leaves are masked out; from
      update: the gradients were summed already, their tree is not like the
      parameters, the state is another scheme's, or an enclosing transformation
      would deadlock.
  """
  arguments.instance('memory', memory, Memory)
  arguments.instance('compressor', compressor, Compressor)
  arguments.instance('exchange', exchange, Exchange)
  if compressor.pre_reduce is not None:
    reduce = compressor.pre_reduce.reduce
    arguments.one_of('PreReduce.reduce', reduce, REDUCTIONS)
  axis_name = arguments.axis_name(axis_name)
  min_size = arguments.min_size(min_size)
  dense_paths = arguments.dense_paths(dense_paths)
  seed = arguments.seed(seed)
  verify = arguments.flag('verify', verify)
  reason = exchange.refuses(compressor)
  if compressor.state and not exchange.adds:
    reason = 'its state needs an exchange that sums words'
  if reason:
    raise ValueError(
      f'{compressor.name} cannot go through {exchange.name}: {reason}'
    )
  scheme = Scheme(
    memory,
    compressor,
    exchange,
    axis_name,
    min_size,
    dense_paths,
    seed,
    param_specs,
    verify,
  )
  if param_specs is not None:
    sharding.check(scheme)
  said: set[str] = set()

  def layout_of(tree):
    return make_layout(
      tree,
      compressor.leaves,
      min_size,
      dense_paths,
      cuts=None if param_specs is None else sharding.cuts(param_specs, tree),
      selects_globally=compressor.selects_globally,
      limits=compressor.code.limits,
    )

  def init(params):
    guards.refuse_masked(params)
    if inputs.is_placeholder(params):
      return unknown(params)
    inputs.check_floating(params, 'parameters')
    layout = layout_of(params)
    check_dense_paths(layout, dense_paths)
    check_something_to_do(layout, compressor.leaves, compressor.name)
    told = {}
    if param_specs is None:
      layout.check_sizes()
    else:
      told = sharding.specs_by_name(layout)
    demands.tell(second_moment=memory.facts.moments, param_specs=told)
    if compressor.ladder is not None and compressor.ladder.at_step is not None:
      with jax.ensure_compile_time_eval():
        compressor.ladder.at_step(jnp.int32(0))
    return fresh(params, layout)

  def fresh(params, layout):
    return CompressedMeanState(
      steps=jnp.zeros([], jnp.int32),
      memory=first_state(memory, params),
      compressor=(
        compressor.state.init(layout.compressed_shapes)
        if compressor.state
        else ()
      ),
      stats=Stats(
        payload_bytes=jnp.zeros([], jnp.uint32),
        sent_bytes=jnp.zeros([], jnp.uint32),
        sent_elements=jnp.zeros([], layout.count_type),
        overflow_elements=jnp.zeros([], layout.count_type),
        rejected_steps=jnp.zeros([], jnp.int32),
        worker=jnp.int32(0),
      ),
      exchange=layout.spread(
        exchange.init(layout.compressed_shapes, compressor.code)
      ),
      dense_leaves={str(i): () for i in layout.dense},
    )

  def unknown(params):
    # For optax.tree.map_params. A scalar stands for each part that depends on
    # the leaves but is no copy of the parameters.
    any_tree = jnp.int32(0)
    shapes = (jnp.shape(any_tree),)
    state = fresh(params, layout_of(params))
    return state._replace(
      memory=memory.init(params) if memory.floats else any_tree,
      compressor=any_tree if compressor.state else (),
      exchange=params if exchange.init(shapes, compressor.code) else (),
      dense_leaves=any_tree,
    )

  def run(grads, state, extra, return_delivered):
    guards.check_update(memory.facts, grads, said)
    inputs.check_floating(grads, 'gradients')
    grads = jax.tree.map(jnp.asarray, grads)
    layout = layout_of(grads)
    expected = jax.eval_shape(lambda: fresh(grads, layout))
    inputs.refuse_stacked(state, expected)
    inputs.check_state(state, expected, grads, compressor.name)
    comm = VerifiedComm(axis_name) if verify else Comm(axis_name)
    if guards.only_shapes_wanted():
      return comm.replicated(grads), state, grads
    if not layout.shapes:  # no leaf has this label of optax.partition
      idle = state.idle()._replace(steps=state.steps + 1)
      return grads, idle, grads
    comm.check_local(grads)
    # Typed as the new state, so that it can be the carry of a loop.
    state = state.typed(comm)
    if memory.facts.moments:
      extra |= {'second_moment': inputs.second_moment_of(extra, grads)}
    step = functools.partial(one_step, scheme)
    if param_specs is not None or may_be_divided(comm, axis_name):
      step = functools.partial(sharding.per_shard, scheme)
    elif compressor.selects_globally:
      comm.check_unsharded(grads, f'{compressor.name} (joined leaves)')
    if param_specs is not None or not scheme.adds_leaves:
      comm.check_not_spmd(compressor.name)
    out = step(
      comm, layout, grads, state, extra, return_delivered=return_delivered
    )
    plans = comm.recorder is not None and not comm.recorder.computes
    return (grads, state, grads) if plans else out

  def update(updates, state, params=None, **extra):
    del params
    with jax.named_scope('gradsparse.compress'):
      mean, state, _ = run(updates, state, extra, return_delivered=False)
      # Under vmap, `update` returns the first worker's copy of shared values;
      # `step` returns every worker's copy, so that tests can compare them.
      comm = Comm(axis_name)
      return comm.unmapped(mean), state.unmapped(comm)

  def step(updates, state, params=None, **extra):
    del params
    with jax.named_scope('gradsparse.compress'):
      return run(updates, state, extra, return_delivered=True)

  text = call(
    'compressed_mean',
    {
      'compressor': compressor.name,
      'exchange': exchange.name,
      'axis_name': axis_name,
    },
  )
  return CompressedMean.of(
    init, update, text=text, step=step, scheme=scheme, layout=layout_of
  )
