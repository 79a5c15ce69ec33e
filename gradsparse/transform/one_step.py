"""One update, on the leaves as one device has them.

What is the same for every size of the messages is done here, once: accumulate,
judge, agree, choose the size. round_trip.py sends; finishing.py does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradsparse import health
from gradsparse.backend import barriers
from gradsparse.collectives import Comm
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Ladder
from gradsparse.sockets import Memory
from gradsparse.sockets import Signal
from gradsparse.sockets.ownership import local_fields
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.traffic import counting
from gradsparse.transform import inputs
from gradsparse.transform import planning
from gradsparse.transform.finishing import After
from gradsparse.transform.finishing import finish
from gradsparse.transform.layout import Group
from gradsparse.transform.layout import Layout
from gradsparse.transform.nodes import Nodes
from gradsparse.transform.nodes import make_nodes
from gradsparse.transform.round_trip import Back
from gradsparse.transform.round_trip import Before
from gradsparse.transform.round_trip import Part
from gradsparse.transform.round_trip import Scheme
from gradsparse.transform.round_trip import from_any_size
from gradsparse.transform.round_trip import of_any_size
from gradsparse.transform.round_trip import send
import jax
import jax.numpy as jnp

# Leads to random keys of which no worker's number can lead to one.
_APART = 2**31 - 1


class Stepped(NamedTuple):
  """What an update returns.

  Attributes:
    updates: tree for the optimizer.
    state: new state.
    delivered: tree of float32, or of float64 where a leaf travels so; None if
      nobody asked.
  """

  updates: Any
  state: CompressedMeanState
  delivered: Any


def one_step(
  scheme: Scheme,
  comm: Comm,
  layout: Layout,
  grads: Any,
  state: CompressedMeanState,
  extra: dict[str, Any],
  *,
  tell: bool,
) -> Stepped:
  """Local gradients in, the mean over workers out.

  Args:
    scheme: the sockets.
    comm: the workers; its shards are the other devices of this worker.
    layout: of the leaves, as this device has them.
    grads: likewise.
    state: likewise.
    extra: keyword arguments of the update.
    tell: whether to return what was delivered.
  """
  memory, compressor = scheme.memory, scheme.compressor
  groups = layout.groups()
  nodes = make_nodes(layout, groups, memory, grads, state.steps)
  wide = nodes.join(_widened(scheme, layout, grads))
  old = nodes.join_state(state.memory)
  whole = nodes.whole()
  if memory.moments:
    moments = nodes.join(extra['second_moment'])
    extra = {**extra, 'second_moment': moments}

  def accumulate(kept):
    return memory.accumulate(wide, kept, extra, whole)

  def signals_of(grads, kept):
    return nodes.treedef.flatten_up_to(memory.signals(grads, kept, whole))

  new = accumulate(old)
  in_memory = {id(x) for x in jax.tree.leaves(new)}
  values = [s.value for s in signals_of(wide, new)]
  healthy = health.can_keep(
    memory.held(new, whole),
    memory.held(old, whole),
    [x for x in values if id(x) not in in_memory],
    health.largest_kept(
      comm.size,
      compressor.code.gain([layout.undivided[i] for i in layout.compressed]),
    ),
  )
  moments = extra.get('second_moment') if memory.moments else None
  healthy &= _in_range(moments, memory, compressor, state.steps)
  healthy = comm.shards.all(healthy)
  # A worker that cannot keep what comes of its gradient leaves its memory
  # alone and goes on with a gradient of zeros. Its message tells the others
  # to reject the step.
  kept = _in_own_place(healthy, accumulate, old)
  local = jax.tree.map(lambda g: jnp.where(healthy, g, 0.0), wide)
  of_nodes = signals_of(local, kept)
  signals = nodes.signals(of_nodes)
  parts = _parts(scheme, comm, nodes, groups, signals, state)
  before = Before(
    nodes,
    signals,
    [signal.value for signal in of_nodes],
    kept,
    healthy,
    layout.collect(state.exchange),
    [g.dtype for g in jax.tree.leaves(grads)],
  )
  out = _at_one_size(scheme, comm, before, parts, tell)
  rejected = state.stats.rejected_steps + jnp.where(out.accepted, 0, 1)
  new_state = CompressedMeanState(
    steps=state.steps + 1,
    memory=nodes.cut_state(out.memory),
    compressor=out.compressor,
    stats=out.stats._replace(
      sent_bytes=comm.local(counting.total([comm.tally.most_sent])),
      rejected_steps=comm.local(rejected),
      worker=comm.local(_whose(state.stats.worker, comm)),
    ),
    exchange=out.exchange,
    dense_leaves=state.dense_leaves,
  )
  return Stepped(out.updates, new_state, out.delivered)


def _whose(worker: jax.Array, comm: Comm) -> jax.Array:
  """`Stats.worker`, for all time: a wrong one must not be lost again."""
  if comm.size == 1:
    return worker
  return jnp.where(worker == 0, 1 + comm.index(), worker)


def _widened(scheme: Scheme, layout: Layout, grads: Any) -> Any:
  """The gradients as float32; as float64 what is so and is not compressed."""
  leaves, treedef = jax.tree.flatten(grads)
  own = range(len(leaves)) if scheme.adds_leaves else set(layout.dense)
  return jax.tree.unflatten(
    treedef,
    [
      g.astype(health.wide(g.dtype) if i in own else jnp.float32)
      for i, g in enumerate(leaves)
    ],
  )


def _parts(
  scheme: Scheme,
  comm: Comm,
  nodes: Nodes,
  groups: Sequence[Group],
  signals: Mapping[int, Signal],
  state: CompressedMeanState,
) -> list[Part]:
  """What travels together, and what the workers agree on about it."""
  layout = nodes.layout
  key = jax.random.fold_in(jax.random.key(scheme.seed), state.steps)
  learners = [group for group in groups if group.compressed]
  parts = []
  for number, group in enumerate(groups):
    shards = comm.shards.over(group.axes)
    own = key
    if number or shards.axes:
      # All groups draw for themselves, and so do all shards of a worker.
      for part in (_APART, number, shards.index()):
        own = jax.random.fold_in(own, part)
    ctx = Context(
      shapes=layout.shapes_of(group.compressed),
      workers=comm.size,
      step=state.steps,
      key=jax.random.fold_in(own, 1 + comm.index()),
      shared_key=jax.random.fold_in(own, 0),
      state=state.compressor,
      cuts=tuple(layout.cuts[i] for i in group.compressed),
      shards=shards,
      runs=nodes.runs(group),
    )
    if state.compressor and len(learners) > 1:
      places = [layout.compressed.index(i) for i in group.compressed]
      ctx = ctx._replace(state=tuple(state.compressor[i] for i in places))
    proposed_bytes = 0
    if group.compressed or len(groups) == 1:
      picked = [signals[i] for i in group.compressed]
      agreed, proposed_bytes = _agree(scheme.compressor, picked, ctx, comm)
      ctx = ctx._replace(agreed=agreed)
    parts.append(Part(group, ctx, comm.within(group.axes), proposed_bytes))
  return parts


def _in_own_place(
  wanted: jax.Array, accumulate: Callable[[Any], Any], memory: Any
) -> Any:
  """The memory, after accumulating if `wanted`; shared fields stay."""

  def own(memory):
    return {name: getattr(memory, name) for name in local_fields(memory)}

  return memory._replace(
    **barriers.in_place_if(
      wanted,
      lambda fields: own(accumulate(memory._replace(**fields))),
      own(memory),
    )
  )


def _at_one_size(
  scheme: Scheme,
  comm: Comm,
  before: Before,
  parts: Sequence[Part],
  tell: bool,
) -> After:
  """Chooses the size of the messages, and sends them."""
  ladder = scheme.compressor.ladder
  if ladder is None:
    backs = _recorded(comm, send(scheme, comm, before, parts))
    return finish(scheme, comm, before, backs, tell)
  # All groups take the rung of the same number, or their last one.
  seen, rungs = [], []
  for part in parts:
    signals = [before.signals[i] for i in part.group.compressed]
    rungs.append(ladder.rungs(part.ctx.shapes) if signals else (None,))
    if signals:
      part = part._replace(
        ctx=part.ctx._replace(seen=ladder.look(signals, part.ctx))
      )
    seen.append(part)
  longest = max(rungs, key=len)

  def at_rung(number):
    sized = [
      part._replace(ctx=part.ctx._replace(rung=own[min(number, len(own) - 1)]))
      for part, own in zip(seen, rungs, strict=True)
    ]
    return send(scheme, comm, before, sized)

  if len(longest) == 1:
    backs = _recorded(comm, at_rung(0))
  elif comm.recorder is not None:
    if not ladder.agreed:
      comm.agree(jnp.int32(0))  # workers agree on the rung, as below
    backs = planning.count_rungs(
      at_rung, longest, ladder, scheme.axis_name, comm.recorder
    )
  else:
    # Only what depends on the size of the messages is written out for each.
    number = _agreed_rung(ladder, seen, comm)
    out = comm.switch(
      number,
      [
        lambda n=n: of_any_size(ladder, comm, at_rung(n))
        for n in range(len(longest))
      ],
    )
    backs = [
      from_any_size(ladder, part, *own)
      for part, own in zip(seen, out, strict=True)
    ]
  return finish(scheme, comm, before, backs, tell)


def _agreed_rung(
  ladder: Ladder, parts: Sequence[Part], comm: Comm
) -> jax.Array:
  """int32, the number of the smallest rung that is enough for all messages."""
  wanted = [ladder.choose(part.ctx) for part in parts if part.group.compressed]
  number = wanted[0]
  for other in wanted[1:]:
    number = jnp.maximum(number, other)
  return number if ladder.agreed else comm.agree(number)


def _recorded(comm: Comm, backs: list[Back]) -> list[Back]:
  """Adds the rows of the messages that were just sent to the plan, if any."""
  if comm.recorder is not None:
    comm.recorder.rows.extend(comm.recorder.message)
  return backs


def _in_range(
  moments: Any, memory: Memory, compressor: Compressor, step: Any
) -> jax.Array:
  """bool scalar: the values that only the run time knows are in range."""
  fits = inputs.not_negative(moments) & memory.usable()
  ladder = compressor.ladder
  if ladder is not None and ladder.usable is not None:
    fits &= ladder.usable(step)
  return fits


def _agree(
  compressor: Compressor, signals: Sequence[Signal], ctx: Context, comm: Comm
) -> tuple[Any, int]:
  """What the workers agree upon, and the bytes of what this one proposed."""
  if compressor.agreement is None:
    return None, 0
  proposed = compressor.agreement.propose(list(signals), ctx)
  nbytes = sum(x.nbytes for x in jax.tree.leaves(proposed))
  reduce = {'max': comm.max, 'mean': comm.mean}[compressor.agreement.reduce]
  return compressor.agreement.settle(reduce(proposed), ctx), nbytes
