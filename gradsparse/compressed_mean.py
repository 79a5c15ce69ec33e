"""Joins a memory, a compressor and an exchange to one optax transformation.

Data flow of one update, on each worker:

  check that gradients are local -> accumulate (float32) -> agree -> choose a
  rung -> { encode -> exchange -> update, cast -> accept? -> release } -> count

It is one transformation and not three in a chain because of the feedback
edge: what was delivered flows back from the exchange into the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gradsparse import arguments
from gradsparse import guards
from gradsparse import health
from gradsparse import inputs
from gradsparse import layout as layouts
from gradsparse import planning
from gradsparse import worker_axis
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.delivery import Delivered
from gradsparse.delivery import Full
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Compressor
from gradsparse.interfaces import Context
from gradsparse.interfaces import Encoded
from gradsparse.interfaces import Exchange
from gradsparse.interfaces import Memory
from gradsparse.state import CompressedMeanState
from gradsparse.state import Stats
import jax
import jax.numpy as jnp
import optax


class Scheme(NamedTuple):
  """What `compressed_mean` was made of."""

  memory: Memory
  compressor: Compressor
  exchange: Exchange
  axis_name: AxisName | None
  min_size: int | None
  dense_paths: layouts.DensePaths


class CompressedMean(optax.GradientTransformationExtraArgs):
  """An optax transformation that can also say what it delivered.

  Attributes:
    init: params -> CompressedMeanState.
    update: (grads, state, params, **extra) -> (updates, state).
    step: like update, but returns (updates, state, delivered), `delivered` a
      float32 tree like params: what of this worker's is in the mean.
    scheme: the three sockets and the axis, for tables.
  """

  step: Callable[..., tuple[Any, CompressedMeanState, Any]]
  scheme: Scheme

  def __new__(cls, init, update, step, scheme):
    self = super().__new__(cls, init, update)
    self.step = step
    self.scheme = scheme
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
    memory: what is kept of what was not delivered.
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
  if reason:
    raise ValueError(
      f'{compressor.name} cannot go through {exchange.name}: {reason}'
    )
  scheme = Scheme(
    memory, compressor, exchange, axis_name, min_size, dense_paths
  )
  warner = guards.Warner()

  def layout_of(tree):
    return layouts.make_layout(tree, compressor, min_size, dense_paths)

  def init(params):
    guards.refuse_masked(params)
    inputs.check_floating(params, 'parameters')
    layout = layout_of(params)
    layouts.check_something_to_do(layout, compressor)
    return fresh(params, layout)

  def fresh(params, layout):
    return CompressedMeanState(
      steps=jnp.zeros([], jnp.int32),
      memory=memory.init(params),
      compressor=compressor.init(layout.compressed_shapes),
      stats=Stats(
        payload_bytes=jnp.zeros([], jnp.float32),
        sent_bytes=jnp.zeros([], jnp.float32),
        sent_elements=jnp.zeros([], jnp.int32),
        overflow_elements=jnp.zeros([], jnp.int32),
        rejected_steps=jnp.zeros([], jnp.int32),
      ),
      exchange=layout.spread(exchange.init(layout.compressed_shapes)),
    )

  def run(grads, state, extra, tell):
    guards.refuse_conditional()
    warner.multi_steps()
    warner.second_momentum(memory.momentum, grads)
    inputs.check_floating(grads, 'gradients')
    layout = layout_of(grads)
    expected = jax.eval_shape(lambda: fresh(grads, layout))
    worker_axis.refuse_stacked(state, expected)
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
      health.largest_kept(comm.size, compressor.gain(layout.compressed_shapes)),
    )
    healthy &= _in_range(moments, compressor, state.steps)
    # A worker that cannot keep what comes of its gradient leaves its memory
    # alone, and contributes nothing; that the step is rejected, the others
    # learn from its message.
    kept = _in_place_if(healthy, accumulate, state.memory)
    local = jax.tree.map(lambda g: jnp.where(healthy, g, 0.0), wide)
    flat = signals_of(local, kept)
    picked = layout.pick(flat, layout.compressed)
    dense = [s.value for s in layout.pick(flat, layout.dense)]

    key = jax.random.fold_in(jax.random.key(seed), state.steps)
    rungs = compressor.rungs(layout.compressed_shapes)
    ctx = Context(
      shapes=layout.compressed_shapes,
      workers=comm.size,
      step=state.steps,
      key=jax.random.fold_in(key, 1 + comm.index()),
      shared_key=jax.random.fold_in(key, 0),
      state=state.compressor,
      rung=rungs[-1],
    )
    shared = _agree(compressor, picked, ctx, comm)
    prepared = compressor.prepare(picked, shared, ctx)

    owed = layout.collect(state.exchange)
    dtypes = [g.dtype for g in jax.tree.leaves(grads)]
    before = _Before(
      layout, prepared, dense, kept, shared, healthy, owed, dtypes
    )

    def at_rung(rung):
      return _finish(scheme, comm, before, ctx._replace(rung=rung), tell)

    if comm.recorder is not None:
      if len(rungs) > 1 and compressor.choose and not compressor.agreed:
        comm.max(jnp.int32(0))  # workers agree on the rung, as below
      out = planning.count_rungs(
        at_rung, rungs, compressor, axis_name, comm.recorder
      )
    elif len(rungs) == 1 or compressor.choose is None:
      out = at_rung(rungs[-1])
    else:
      number = compressor.choose(prepared, shared, ctx)
      if not compressor.agreed:
        number = comm.max(number)
      out = comm.switch(number, [lambda r=r: at_rung(r) for r in rungs])
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

  return CompressedMean(init, update, step, scheme)


def _in_range(moments: Any, compressor: Compressor, step: Any) -> jax.Array:
  """bool scalar: what is known at run time only is what it must be."""
  fits = inputs.not_negative(moments)
  return fits & compressor.usable(step) if compressor.usable else fits


def _in_place_if(
  wanted: jax.Array, fn: Callable[[Any], Any], state: Any
) -> Any:
  """fn(state) where `wanted`, else the state, in the state's own memory.

  A loop of one turn or none. Its result has one place: a donated state is
  overwritten, and what reads the new state reads it. As a plain expression XLA
  would compute it once more for every reader (selection, update, ...), and on
  CPUs keep a copy of the old state for that.
  """
  if not jax.tree.leaves(state):
    return state
  _, state = jax.lax.while_loop(
    lambda carry: carry[0],
    lambda carry: (jnp.logical_and(carry[0], False), fn(carry[1])),
    (wanted, state),
  )
  return state


def _agree(compressor, signals, ctx, comm):
  if compressor.agreement is None:
    return None
  proposed = compressor.agreement.propose(signals, ctx)
  reduce = {'max': comm.max, 'mean': comm.mean}[compressor.agreement.reduce]
  return compressor.agreement.settle(reduce(proposed), ctx)


class _Before(NamedTuple):
  """What is known before the size of the message is."""

  layout: layouts.Layout
  prepared: Any
  dense: list[jax.Array]
  kept: Any
  shared: Any
  healthy: jax.Array
  owed: Any
  dtypes: list[Any]


class _After(NamedTuple):
  """What one rung makes of it; all rungs return the same shapes."""

  updates: Any
  delivered: Any
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any
  accepted: jax.Array


def _finish(
  scheme: Scheme, comm: Comm, before: _Before, ctx: Context, tell: bool
) -> _After:
  """Encode, exchange and release at one size of the message."""
  compressor, layout = scheme.compressor, before.layout
  # A worker that is not healthy sends too: the others wait for its message,
  # which tells them to take nothing from anybody.
  payload = compressor.encode(before.prepared, before.shared, ctx)
  crowded_out = jnp.int32(0)
  if isinstance(payload, Sparse) and compressor.codec is not None:
    selected = payload
    payload = compressor.codec.quantise(selected, ctx.key)
    if compressor.codec.bounded:
      crowded_out = jnp.sum(selected.valid) - jnp.sum(payload.valid)
  healthy = before.healthy
  sparse = isinstance(payload, Sparse)
  if sparse:
    healthy &= health.can_send(payload.values, comm.size)
  back = scheme.exchange.run(
    Encoded(
      payload,
      compressor,
      before.shared,
      ctx,
      before.dense,
      healthy,
      before.owed,
    ),
    comm,
  )
  if comm.recorder is not None:
    comm.recorder.message = planning.message_rows(
      compressor, scheme.axis_name, layout, payload, back
    )
  means = layout.join(back.mean, back.dense)
  updates = scheme.memory.update(before.kept, means, layout.whole())
  # The momentum of dense leaves is kept in this worker's memory, and so typed
  # as its own, but it is made of means alone.
  flat = layout.treedef.flatten_up_to(updates)
  for i in layout.dense:
    flat[i] = comm.replicated(flat[i])
  flat = [u.astype(dtype) for u, dtype in zip(flat, before.dtypes, strict=True)]
  # Updates are equal on all workers, and so is what they show. Sums of sparse
  # messages are finite, because those could be sent.
  unsure = [
    u
    for i, u in enumerate(flat)
    if i in layout.dense
    or not sparse
    or jnp.finfo(u.dtype).max < health.LARGEST
  ]
  accepted = back.healthy & health.all_finite(unsure)

  def only_accepted(delivered):
    whole = [Full(x, whole=True) for x in before.dense]
    return jax.tree.map(
      lambda d: d.only_if(accepted),
      layout.join(delivered, whole),
      is_leaf=lambda x: isinstance(x, Delivered),
    )

  def moved(new, old):
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  delivered = only_accepted(back.delivered)
  released = delivered
  if back.released is not None:
    released = only_accepted(back.released)
  memory = scheme.memory.release(before.kept, means, released, accepted)
  learnt = compressor.learn(ctx.state, back.total, before.shared, ctx)
  overflow = crowded_out.astype(jnp.int32)
  if compressor.overflow is not None:
    overflow += compressor.overflow(before.prepared, before.shared, ctx)
  stats = Stats(
    payload_bytes=jnp.float32(
      back.message_bytes + sum(4 * x.size for x in before.dense)
    ),
    sent_bytes=jnp.float32(0),  # the caller knows
    sent_elements=jnp.where(accepted, _sent_elements(back.delivered), 0),
    overflow_elements=jnp.where(accepted, overflow, 0),
    rejected_steps=jnp.int32(0),
  )
  told = None
  if tell:
    arrived = layout.treedef.flatten_up_to(delivered)
    pairs = zip(arrived, layout.shapes, strict=True)
    told = jax.tree.unflatten(
      layout.treedef, [comm.local(d.dense(shape)) for d, shape in pairs]
    )
  return _After(
    updates=jax.tree.unflatten(
      layout.treedef, [jnp.where(accepted, u, jnp.nan) for u in flat]
    ),
    delivered=told,
    memory=comm.local(memory),
    compressor=moved(learnt, ctx.state),
    stats=comm.local(stats),
    exchange=comm.local(layout.spread(moved(back.owed, before.owed))),
    accepted=accepted,
  )


def _sent_elements(delivered) -> jax.Array:
  """Coordinates of the compressed leaves that something was delivered of."""
  counts = [
    d.values.size if isinstance(d, Full) else d.count() for d in delivered
  ]
  return jnp.asarray(sum(counts), jnp.int32)
