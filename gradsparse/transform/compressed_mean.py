"""Joins a memory, a compressor and an exchange to one optax transformation.

Data flow of one update, on each worker:

  check that gradients are local -> accumulate (float32) -> agree -> choose a
  rung -> { select, round, pack -> exchange -> update, cast -> accept? -> sent,
  arrived } -> count

It is one transformation and not three in a chain because of the feedback
edge: what was delivered flows back from the exchange into the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse import arguments
from gradsparse import health
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Exchange
from gradsparse.sockets import Memory
from gradsparse.sockets.ownership import local_fields
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import Stats
from gradsparse.transform import guards
from gradsparse.transform import inputs
from gradsparse.transform import layout as layouts
from gradsparse.transform import planning
from gradsparse.transform.round_trip import After
from gradsparse.transform.round_trip import Before
from gradsparse.transform.round_trip import Scheme
from gradsparse.transform.round_trip import finish
import jax
import jax.numpy as jnp
import optax


class CompressedMean(optax.GradientTransformationExtraArgs):
  """An optax transformation that can also say what it delivered.

  Attributes:
    init: params -> CompressedMeanState.
    update: (grads, state, params, **extra) -> (updates, state).
    step: like update, but returns (updates, state, delivered), `delivered` a
      float32 tree like params: what of this worker's is in the mean.
    scheme: the three sockets and the axis, for tables.
    layout: params -> Layout: which leaves are compressed.
  """

  step: Callable[..., tuple[Any, CompressedMeanState, Any]]
  scheme: Scheme
  layout: Callable[[Any], layouts.Layout]

  def __new__(cls, init, update, step, scheme, layout):
    self = super().__new__(cls, init, update)
    self.step = step
    self.scheme = scheme
    self.layout = layout
    return self


def compressed_mean(
  memory: Memory,
  compressor: Compressor,
  exchange: Exchange,
  *,
  axis_name: AxisName | None,
  min_size: int | None = None,
  dense_paths: layouts.DensePaths = None,
  seed: int = 0,
) -> CompressedMean:
  """Local gradients in, the mean over workers out, compressed in between.

  Args:
    memory: what a worker keeps between steps.
    compressor: what goes on the wire.
    exchange: how the messages become a mean.
    axis_name: mapped axis of the workers (vmap, pmap or shard_map); None is
      one worker without communication.
    min_size: leaves with fewer elements stay dense; None is the scheme's own
      rule, 0 compresses every leaf it accepts.
    dense_paths: leaves whose path matches this regular expression (or for
      which this function of the path is True) stay dense.
    seed: of the random draws; fold it with the run's seed. Equal on all
      workers.

  Returns:
    A transformation. The update it returns has the sign of the gradient and
    the dtype of the gradients, and is bit-identical on all workers. If any
    worker's gradient, or what is made of it, is not finite, or its second
    moment is negative, or a schedule's density is out of (0, 1], the step is
    rejected: the whole update is NaN on all workers, nothing is delivered,
    and all state stays finite (`health` has the details).

  Raises:
    TypeError: an argument of the wrong kind; from init and update: a leaf
      that is not of floating-point numbers.
    ValueError: an argument out of range, or the exchange cannot carry this
      compressor; from init: no leaf qualifies, or leaves are masked out; from
      update: the gradients were summed already, or are no tree like the
      parameters, or the state is another scheme's, or an enclosing
      transformation would deadlock.
  """
  arguments.instance('memory', memory, Memory)
  arguments.instance('compressor', compressor, Compressor)
  arguments.instance('exchange', exchange, Exchange)
  axis_name = arguments.axis_name(axis_name)
  min_size = arguments.min_size(min_size)
  dense_paths = arguments.dense_paths(dense_paths)
  seed = arguments.seed(seed)
  reason = exchange.refuses(compressor)
  if compressor.learning and not exchange.adds:
    reason = 'it learns from sums, and nothing is added up'
  if reason:
    raise ValueError(
      f'{compressor.name} cannot go through {exchange.name}: {reason}'
    )
  scheme = Scheme(
    memory, compressor, exchange, axis_name, min_size, dense_paths
  )
  warner = guards.Warner()

  def layout_of(tree):
    rule = compressor.leaves
    return layouts.make_layout(tree, rule, min_size, dense_paths)

  def init(params):
    guards.refuse_masked(params)
    inputs.check_floating(params, 'parameters')
    layout = layout_of(params)
    layouts.check_something_to_do(layout, compressor.leaves, compressor.name)
    if compressor.ladder is not None and compressor.ladder.at_step is not None:
      with jax.ensure_compile_time_eval():
        compressor.ladder.at_step(jnp.int32(0))
    return fresh(params, layout)

  def fresh(params, layout):
    return CompressedMeanState(
      steps=jnp.zeros([], jnp.int32),
      memory=memory.init(params),
      compressor=(
        compressor.learning.init(layout.compressed_shapes)
        if compressor.learning
        else ()
      ),
      stats=Stats(
        payload_bytes=jnp.zeros([], jnp.float32),
        sent_bytes=jnp.zeros([], jnp.float32),
        sent_elements=jnp.zeros([], jnp.int32),
        overflow_elements=jnp.zeros([], jnp.int32),
        rejected_steps=jnp.zeros([], jnp.int32),
      ),
      exchange=layout.spread(
        exchange.init(layout.compressed_shapes, compressor.code)
      ),
    )

  def run(grads, state, extra, tell):
    guards.refuse_conditional()
    warner.multi_steps()
    warner.second_momentum(memory.momentum, grads)
    inputs.check_floating(grads, 'gradients')
    layout = layout_of(grads)
    expected = jax.eval_shape(lambda: fresh(grads, layout))
    inputs.refuse_stacked(state, expected)
    inputs.check_state(state, expected, grads, compressor.name)
    comm = Comm(axis_name)
    if guards.only_shapes_wanted():
      return comm.replicated(grads), state, grads
    comm.check_local(grads)
    if compressor.joined:
      comm.check_unsharded(grads, f'{compressor.name} (joined leaves)')
    moments = extra.get('second_moment') if memory.moments else None
    if memory.moments:
      inputs.check_second_moment(moments, grads)
    wide = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    whole = layout.whole()

    def accumulate(kept):
      return memory.accumulate(wide, kept, extra, whole)

    def signals_of(grads, kept):
      return layout.treedef.flatten_up_to(memory.signals(grads, kept, whole))

    new = accumulate(state.memory)
    healthy = health.can_keep(
      new,
      state.memory,
      [s.value for s in signals_of(wide, new)],
      health.largest_kept(
        comm.size, compressor.code.gain(layout.compressed_shapes)
      ),
    )
    healthy &= _in_range(moments, compressor, state.steps)
    # A worker that cannot keep what comes of its gradient leaves its memory
    # alone and goes on with a gradient of zeros. Its message tells the others
    # to reject the step.
    kept = _in_own_place(healthy, accumulate, state.memory)
    local = jax.tree.map(lambda g: jnp.where(healthy, g, 0.0), wide)
    flat = signals_of(local, kept)
    picked = layout.pick(flat, layout.compressed)
    dense = [s.value for s in layout.pick(flat, layout.dense)]

    key = jax.random.fold_in(jax.random.key(seed), state.steps)
    ctx = Context(
      shapes=layout.compressed_shapes,
      workers=comm.size,
      step=state.steps,
      key=jax.random.fold_in(key, 1 + comm.index()),
      shared_key=jax.random.fold_in(key, 0),
      state=state.compressor,
    )
    ctx = ctx._replace(agreed=_agree(compressor, picked, ctx, comm))
    owed = layout.collect(state.exchange)
    dtypes = [g.dtype for g in jax.tree.leaves(grads)]
    before = Before(layout, picked, dense, kept, healthy, owed, dtypes)
    out = _at_one_size(scheme, comm, before, ctx, tell)
    rejected = state.stats.rejected_steps + jnp.where(out.accepted, 0, 1)
    new_state = CompressedMeanState(
      steps=state.steps + 1,
      memory=out.memory,
      compressor=out.compressor,
      stats=out.stats._replace(
        sent_bytes=comm.local(jnp.float32(comm.tally.most_sent)),
        rejected_steps=comm.local(rejected),
      ),
      exchange=out.exchange,
    )
    return out.updates, new_state, out.delivered

  def update(updates, state, params=None, **extra):
    del params
    with jax.named_scope('gradsparse.compress'):
      updates, state, _ = run(updates, state, extra, tell=False)
    return updates, state

  def step(updates, state, params=None, **extra):
    del params
    with jax.named_scope('gradsparse.compress'):
      return run(updates, state, extra, tell=True)

  return CompressedMean(init, update, step, scheme, layout_of)


def _in_own_place(
  wanted: jax.Array, accumulate: Callable[[Any], Any], memory: Any
) -> Any:
  """The memory, after accumulating if `wanted`; shared fields stay."""

  def own(memory):
    return {name: getattr(memory, name) for name in local_fields(memory)}

  return memory._replace(
    **health.in_place_if(
      wanted,
      lambda fields: own(accumulate(memory._replace(**fields))),
      own(memory),
    )
  )


def _at_one_size(
  scheme: Scheme, comm: Comm, before: Before, ctx: Context, tell: bool
) -> After:
  """Chooses the size of the message, and sends it."""
  ladder = scheme.compressor.ladder
  rungs: tuple[Any, ...] = (None,)
  if ladder is not None:
    rungs = ladder.rungs(ctx.shapes)
    ctx = ctx._replace(seen=ladder.look(before.signals, ctx))

  def at_rung(rung):
    return finish(scheme, comm, before, ctx._replace(rung=rung), tell)

  if ladder is None or len(rungs) == 1:
    out = at_rung(rungs[0])
    if comm.recorder is not None:
      comm.recorder.rows.extend(comm.recorder.message)
    return out
  if comm.recorder is not None:
    if not ladder.agreed:
      comm.max(jnp.int32(0))  # workers agree on the rung, as below
    return planning.count_rungs(
      at_rung, rungs, ladder, scheme.axis_name, comm.recorder
    )
  number = ladder.choose(ctx)
  if not ladder.agreed:
    number = comm.max(number)
  return comm.switch(number, [lambda r=r: at_rung(r) for r in rungs])


def _in_range(moments: Any, compressor: Compressor, step: Any) -> jax.Array:
  """bool scalar: the values that only the run time knows are in range."""
  fits = inputs.not_negative(moments)
  ladder = compressor.ladder
  if ladder is not None and ladder.usable is not None:
    fits &= ladder.usable(step)
  return fits


def _agree(compressor, signals, ctx, comm):
  if compressor.agreement is None:
    return None
  proposed = compressor.agreement.propose(signals, ctx)
  reduce = {'max': comm.max, 'mean': comm.mean}[compressor.agreement.reduce]
  return compressor.agreement.settle(reduce(proposed), ctx)
