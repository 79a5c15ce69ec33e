"""The path of the messages: select, round, pack, exchange, and back.

What comes before (accumulating, agreeing, choosing a size) is the same for
every size of the messages. one_step.py does it, once.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

from gradsparse import health
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Delivered
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Full
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Memory
from gradsparse.sockets import Message
from gradsparse.sockets import Signal
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.sockets import ownership
from gradsparse.state.scheme import Stats
from gradsparse.traffic import counting
from gradsparse.transform import layout as layouts
from gradsparse.transform import planning
import jax
import jax.numpy as jnp


class Scheme(NamedTuple):
  """What `compressed_mean` was made of."""

  memory: Memory
  compressor: Compressor
  exchange: Exchange
  axis_name: AxisName | None
  min_size: int | None
  dense_paths: layouts.DensePaths
  seed: int
  param_specs: Any
  verify: bool


class Part(NamedTuple):
  """A group of leaves that travel together.

  Attributes:
    group: which leaves.
    ctx: of their message.
    comm: the workers, and the devices of each over which they are divided.
  """

  group: layouts.Group
  ctx: Context
  comm: Comm


class Before(NamedTuple):
  """What is known before the size of the messages is.

  Attributes:
    layout: of the leaves.
    signals: of each leaf.
    kept: the memory's state, after accumulating.
    healthy: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's state by the numbers of leaves; empty if it has none.
    dtypes: of the gradients.
  """

  layout: layouts.Layout
  signals: list[Signal]
  kept: Any
  healthy: jax.Array
  owed: dict[int, jax.Array]
  dtypes: list[Any]


class After(NamedTuple):
  """What comes of the messages; the same shapes at every rung.

  Attributes:
    updates: the tree for the optimizer, NaN if the step was rejected.
    delivered: float32 tree, this worker's part of the mean; None if nobody
      asked.
    memory: new state.
    compressor: new state.
    stats: of the step.
    exchange: new state.
    accepted: bool scalar, the same everywhere.
  """

  updates: Any
  delivered: Any
  memory: Any
  compressor: Any
  stats: Stats
  exchange: Any
  accepted: jax.Array


class Back(NamedTuple):
  """What came back of one part.

  Attributes:
    part: of which it is.
    exchanged: what the exchange returned.
    overflow: int32, how many elements found no room.
    rows: of a plan, while one is made.
  """

  part: Part
  exchanged: Exchanged
  overflow: jax.Array
  rows: list[counting.Row]


def send(
  scheme: Scheme, comm: Comm, before: Before, parts: Sequence[Part]
) -> list[Back]:
  """Sends the messages.

  Args:
    scheme: the sockets.
    comm: the workers.
    before: what does not depend on the size of the messages.
    parts: what travels together, with the size of each message.
  """
  # A worker that is not healthy sends too: the others wait for its message,
  # which tells them to take nothing from anybody.
  backs = [_exchange(scheme, before, part) for part in parts]
  if comm.recorder is not None:
    comm.recorder.message = [row for back in backs for row in back.rows]
  return backs


def of_any_size(
  comm: Comm, backs: Sequence[Back]
) -> list[tuple[Exchanged, jax.Array]]:
  """What came back, in arrays whose shapes the size of a message leaves alone.

  With what each part's overflow is. The rest of a `Back` is not of arrays.
  """

  def whole(sent):
    return sent if sent is None else comm.local(sent.joined())

  def joined(mean):
    return Leaves(mean).joined() if isinstance(mean, list) else mean

  return [
    (
      back.exchanged._replace(
        mean=joined(back.exchanged.mean),
        delivered=whole(back.exchanged.delivered),
        released=whole(back.exchanged.released),
        owed=comm.local(back.exchanged.owed),
        message_bytes=jnp.float32(back.exchanged.message_bytes),
        transport=None,
      ),
      comm.local(back.overflow),
    )
    for back in backs
  ]


def leaf_by_leaf(part: Part, exchanged: Exchanged, overflow: jax.Array) -> Back:
  """What `of_any_size` joined, in leaves again."""
  shapes = part.ctx.shapes

  def cut(sent):
    return sent if sent is None else sent.cut(shapes)

  exchanged = exchanged._replace(
    delivered=cut(exchanged.delivered), released=cut(exchanged.released)
  )
  return Back(part, exchanged, overflow, [])


def finish(
  scheme: Scheme,
  comm: Comm,
  before: Before,
  backs: Sequence[Back],
  tell: bool,
) -> After:
  """Brings update and state up to date with what came back.

  Args:
    scheme: the sockets.
    comm: the workers.
    before: what does not depend on the size of the messages.
    backs: what came of them.
    tell: whether to return what was delivered.
  """
  layout = before.layout
  means = layout.tree(_merged(_means(back) for back in backs))
  flat = _updates(scheme, comm, before, means)
  accepted, sent, overflow = _verdict(comm, before, backs, flat)

  def moved(new, old):
    return jax.tree.map(lambda n, o: jnp.where(accepted, n, o), new, old)

  memory, told = before.kept, None
  if comm.recorder is None or comm.recorder.computes:
    delivered, released = _deliveries(before, backs, accepted)
    memory = scheme.memory.sent(memory, released)
    memory = scheme.memory.arrived(memory, means, layout.whole(), accepted)
    if tell:
      told = comm.local(_dense(layout, delivered))
  stats = Stats(
    payload_bytes=sum(
      (_payload(layout, back) for back in backs), jnp.float32(0)
    ),
    sent_bytes=jnp.float32(0),  # the caller knows
    sent_elements=jnp.where(accepted, sent, 0),
    overflow_elements=jnp.where(accepted, overflow, 0),
    rejected_steps=jnp.int32(0),
  )
  return After(
    updates=jax.tree.unflatten(
      layout.treedef, [jnp.where(accepted, u, jnp.nan) for u in flat]
    ),
    delivered=told,
    memory=typed(memory, comm, local=True),
    compressor=typed(_learnt(scheme, backs, moved), comm, local=False),
    stats=comm.local(stats),
    exchange=comm.local(_owed(before, backs, moved)),
    accepted=accepted,
  )


def _means(back: Back) -> dict[int, jax.Array]:
  """The means of the leaves of a part, by their numbers."""
  group, exchanged = back.part.group, back.exchanged
  mean = exchanged.mean
  if isinstance(mean, jax.Array):
    mean = Space.whole(back.part.ctx.shapes).split(mean)
  by_number = dict(zip(group.compressed, mean, strict=True))
  return by_number | dict(zip(group.dense, exchanged.dense, strict=True))


def _deliveries(
  before: Before, backs: Sequence[Back], accepted: jax.Array
) -> tuple[Any, Any]:
  """Trees of what was delivered and of what the memory lets go of."""
  layout = before.layout

  def tree(sent):
    by_leaf: dict[int, Delivered] = {}
    for back, own in zip(backs, sent, strict=True):
      there = own.only_if(accepted).deliveries()
      by_leaf |= zip(back.part.group.compressed, there, strict=True)
      for i in back.part.group.dense:
        x = before.signals[i].value
        by_leaf[i] = Full(jnp.where(accepted, x, 0.0), whole=True)
    return layout.tree(by_leaf)

  exchanged = [back.exchanged for back in backs]
  delivered = tree([e.delivered for e in exchanged])
  if all(e.released is None for e in exchanged):
    return delivered, delivered
  return delivered, tree([e.released or e.delivered for e in exchanged])


def _dense(layout: layouts.Layout, delivered: Any) -> Any:
  """What was delivered as a float32 tree like params."""
  arrived = layout.treedef.flatten_up_to(delivered)
  return layout.tree(
    {
      i: d.dense(shape)
      for i, (d, shape) in enumerate(zip(arrived, layout.shapes, strict=True))
    }
  )


def _merged(dicts) -> dict[int, Any]:
  return {i: x for one in dicts for i, x in one.items()}


def typed(state: Any, comm: Comm, local: bool) -> Any:
  """A state, what is a worker's own in it typed so.

  Args:
    state: of a scheme, a memory or a compressor.
    comm: the workers.
    local: what it is, unless it says otherwise.
  """
  return jax.tree.map(
    lambda x, own: comm.local(x) if own else x,
    state,
    ownership.is_local(state, default=local),
  )


def _exchange(scheme: Scheme, before: Before, part: Part) -> Back:
  """Sends the message of one part."""
  layout, group, comm = before.layout, part.group, part.comm
  dense = [before.signals[i].value for i in group.dense]
  overflow, own = jnp.int32(0), None
  if group.compressed or not group.dense:
    message, overflow = _message(scheme, before, part, dense)
    own = message.own
    back = scheme.exchange.run(message, comm)
  else:
    means = common.reduce_dense(dense, comm)
    # The word for this worker's health travels with the other parts.
    back = Exchanged([], Leaves([]), means, jnp.bool_(True), 0, 'dense')
  rows = []
  if comm.recorder is not None:
    rows = planning.message_rows(
      scheme.compressor.name, scheme.axis_name, layout, group, own, back
    )
  return Back(part, back, overflow, rows)


def _message(
  scheme: Scheme, before: Before, part: Part, dense: list[jax.Array]
) -> tuple[Message, jax.Array]:
  """This worker's message, and how many entries found no slot in it."""
  code, ctx = scheme.compressor.code, part.ctx
  signals = [before.signals[i] for i in part.group.compressed]
  selected = scheme.compressor.select(signals, ctx)
  takes = (code.takes, Marked) if code.takes_marked else code.takes
  if not isinstance(selected, takes):
    raise TypeError(
      f'{scheme.compressor.name} selects {type(selected).__name__}, and its '
      f'code takes {code.takes.__name__}'
    )
  arranged = scheme.exchange.arrange(selected, code, part.comm.size)
  rounded = code.round(arranged, ctx)
  own = code.decode(rounded, ctx, 1)
  healthy, overflow = before.healthy, jnp.int32(0)
  if isinstance(own, Sparse):  # few numbers: looked at before they are sent
    healthy &= health.can_send(own.values, part.comm.size)
  if code.crowds:
    overflow = jnp.int32(selected.count() - rounded.count())
  ladder = scheme.compressor.ladder
  if ladder is not None and ladder.overflow is not None:
    overflow += ladder.overflow(ctx)
  message = Message(
    code.pack(rounded, ctx),
    rounded,
    own,
    code,
    ctx,
    dense,
    healthy,
    [before.owed[i] for i in part.group.compressed] if before.owed else (),
  )
  return message, overflow


def _updates(
  scheme: Scheme, comm: Comm, before: Before, means: Any
) -> list[jax.Array]:
  """The leaves of the update."""
  layout = before.layout
  updates = scheme.memory.update(before.kept, means, layout.whole())
  # The momentum of dense leaves is kept in this worker's memory, and so typed
  # as its own, but it is made of means alone.
  flat = layout.treedef.flatten_up_to(updates)
  for i in layout.dense:
    flat[i] = comm.replicated(flat[i])
  return [u.astype(dtype) for u, dtype in zip(flat, before.dtypes, strict=True)]


def _verdict(
  comm: Comm, before: Before, backs: Sequence[Back], updates: list[jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Whether all accept the step, and what this worker sent in all.

  Returns:
    (bool scalar, the same everywhere; how many elements were sent; how many
    found no room): of all devices of this worker, float32 where int32 could
    not count them.
  """
  layout = before.layout
  adds = bool(ownership.shared_fields(before.kept))

  def unsure(back):
    # Sums of sparse messages are finite, because every worker could send its
    # own. What the shared fields of a memory add to them need not be.
    for i in back.part.group.compressed:
      sparse = isinstance(back.exchanged.delivered, Sparse)
      if adds or not sparse or health.is_narrow(updates[i].dtype):
        yield updates[i]
    for i in back.part.group.dense:
      yield updates[i]

  totals = [jnp.int32(0), *jnp.zeros(2, layout.count_type)]
  for back in backs:
    # Updates are equal on all workers, so all judge them alike.
    fine = back.exchanged.healthy & health.all_finite(unsure(back))
    elements = back.exchanged.delivered.count()
    shards = back.part.comm.shards
    own = (
      jnp.where(fine, 0, 1),
      jnp.asarray(elements, layout.count_type),
      back.overflow.astype(layout.count_type),
    )
    totals = [t + shards.sum(x) for t, x in zip(totals, own, strict=True)]
  failed, sent, overflow = totals
  return (failed == 0) & comm.intact(), sent, overflow


def _payload(layout: layouts.Layout, back: Back) -> jax.Array:
  """float32, bytes: the message of this device, dense leaves included."""
  dense = sum(4 * math.prod(layout.shapes[i]) for i in back.part.group.dense)
  return jnp.float32(back.exchanged.message_bytes + dense)


def _learnt(scheme: Scheme, backs: Sequence[Back], moved) -> Any:
  """The compressor's new state, of all leaves."""
  learning = scheme.compressor.learning
  if learning is None:
    return ()

  def of(back):
    part = back.part
    new = learning.learn(back.exchanged.total, part.ctx)
    return moved(new, part.ctx.state)

  learners = [back for back in backs if back.part.group.compressed]
  if len(learners) == 1:
    return of(learners[0])
  by_leaf: dict[int, Any] = {}
  for back in learners:
    by_leaf |= zip(back.part.group.compressed, of(back), strict=True)
  return tuple(by_leaf[i] for i in sorted(by_leaf))


def _owed(before: Before, backs: Sequence[Back], moved) -> Any:
  """The exchange's new state, of all leaves."""
  if not before.owed:
    return ()
  by_leaf: dict[int, jax.Array] = {}
  for back in backs:
    numbers, new = back.part.group.compressed, back.exchanged.owed
    old = [before.owed[i] for i in numbers]
    by_leaf |= zip(numbers, moved(list(new), old), strict=True)
  return before.layout.spread([by_leaf[i] for i in before.layout.compressed])
